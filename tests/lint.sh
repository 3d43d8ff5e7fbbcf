#!/usr/bin/env bash
# Checks the sources with clang-tidy (.clang-tidy has the checks and their reasons) and clang's
# thread safety analysis. Every finding is an error. Needs a configured build tree, and installs
# clang-tidy when it runs as root.
#
#   tests/lint.sh [--preset NAME] [FILE...]
#
#   --preset NAME    whose compile commands to use: release (default), debug
#   FILE             sources to check; all of server, client and bench when absent
#   --help           this text
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

preset=release
files=()
while (($# > 0)); do
  case "$1" in
    --preset)
      preset=${2:?lint.sh: --preset needs a name}
      shift 2
      ;;
    --help)
      usage
      exit 0
      ;;
    -*)
      echo "tests/lint.sh: unknown option: $1" >&2
      usage >&2
      exit 2
      ;;
    *)
      files+=("$1")
      shift
      ;;
  esac
done

deploy/install-deps.sh --lint
[[ -f build/$preset/compile_commands.json ]] || cmake --preset "$preset"
((${#files[@]} > 0)) || mapfile -t files < <(git ls-files 'server/*.cc' 'client/*.cc' 'bench/*.cc')

printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy -p "build/$preset" --quiet --warnings-as-errors='*' \
    --extra-arg=-Wthread-safety 2> >(grep -v 'warnings generated' >&2)
echo "lint: ${#files[@]} files, no findings"
