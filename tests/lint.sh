#!/usr/bin/env bash
# Checks the sources with clang's thread safety analysis, and with clang-tidy (.clang-tidy has the
# checks and their reasons). Every finding is an error. Needs a built tree, and installs clang-tidy
# when it runs as root.
#
#   tests/lint.sh [--preset NAME] [--all]
#
#   --preset NAME    whose compile commands to use: release (default), debug
#   --all            clang-tidy over every source. Without it, sources that see gRPC's headers get
#                    the thread safety analysis alone: clang-tidy takes some 15 s for each
#   --help           this text
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

preset=release
all=
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
    --all)
      all=yes
      shift
      ;;
    *)
      echo "tests/lint.sh: unknown option: $1" >&2
      usage >&2
      exit 2
      ;;
  esac
done

deploy/install-deps.sh --lint
[[ -f build/$preset/compile_commands.json ]] || cmake --preset "$preset"

tidy() {
  xargs -P "$(nproc)" -n 1 clang-tidy -p "build/$preset" --quiet --warnings-as-errors='*' \
    --extra-arg=-Wthread-safety 2> >(grep -v 'warnings generated' >&2)
}
analyse() {
  xargs -P "$(nproc)" -n 1 clang++ -fsyntax-only -std=c++20 -Wthread-safety -Werror=thread-safety \
    -I. "-Ibuild/$preset/proto" -isystem "$cuda/include" '-DKVSTREAM_VERSION=""'
}

# Without the toolkit there is nothing to analyse its users with.
cuda=${CUDA_HOME:-/usr/local/cuda}
needs_cuda='^client/cuda/|^server/gpu/cuda_gpu|^bench/gpu/'
[[ ! -e $cuda/include/cuda_runtime_api.h ]] || needs_cuda='^$'

sees_grpc='^(server/rpc/|server/[a-z_]*\.cc$|client/|bench/)'
sources=$(git ls-files 'server/*.cc' 'client/*.cc' 'bench/*.cc' | grep -vE "$needs_cuda")
if [[ -n $all ]]; then
  tidy <<<"$sources"
else
  grep -vE "$sees_grpc" <<<"$sources" | tidy
  grep -E "$sees_grpc" <<<"$sources" | analyse
fi
echo "lint: $(wc -l <<<"$sources") sources, no findings"
