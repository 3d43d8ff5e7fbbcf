#!/usr/bin/env bash
# Checks the sources with clang-tidy (.clang-tidy has the checks and their reasons) and clang's
# thread safety analysis. Every finding is an error. Sources are read as CMake's unity build puts
# them together, since most of the time goes into headers. Installs missing packages when it runs as
# root.
#
#   tests/lint.sh [REGEX]
#
#   REGEX     only targets whose path matches, such as server/engine; else server, client and bench,
#             but for what is not built where the CUDA toolkit is, or is not
#   --help    this text
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

only=${1:-.}
if [[ $only == -* ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  [[ $only == --help ]]
  exit
fi

deploy/install-deps.sh --lint
cmake --preset lint
cmake --build --preset lint -j "$(nproc)"

units=$(sed -n 's#.*"file": "\(.*/build/lint/\(server\|client\|bench\)/.*\.cxx\)".*#\1#p' \
  build/lint/compile_commands.json | grep -E "$only") || {
  echo "tests/lint.sh: no target matches $only" >&2
  exit 2
}
printf '%s\n' "$units" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/lint --quiet \
  --warnings-as-errors='*' --extra-arg=-Wthread-safety --extra-arg=-Werror=thread-safety \
  2> >(grep -v 'warnings generated' >&2)
echo "lint: $(xargs cat <<<"$units" | grep -c '^#include') sources, no findings"
