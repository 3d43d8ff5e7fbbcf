#!/usr/bin/env bash
# Builds the fuzz targets with clang and libFuzzer, and runs each, as many at once as there are
# processors. Each begins with its inputs in tests/fuzz/corpus and those that earlier runs found,
# which stay in build/fuzz/corpus. Installs missing packages when it runs as root.
#
#   tests/fuzz/run.sh [SECONDS [NOUN...]]
#
#   SECONDS   for each target (20)
#   NOUN      only these targets, such as chunk_header
#
# An input that breaks a target is kept in build/fuzz/crashes; the command that runs it again is
# printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:-20}
shift || true
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
(($# > 0)) || set -- $(ls tests/fuzz/corpus)

# Lets ccache, where there is one, serve another checkout from what this one compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}

run_one() {
  local noun=$1 target=build/fuzz/tests/fuzz/fuzz_$1 log=build/fuzz/logs/$1.log before
  mkdir -p "build/fuzz/corpus/$noun"
  before=$(ls build/fuzz/crashes)
  if nice -n 10 "$target" -max_total_time="$2" -timeout=20 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$noun-" "build/fuzz/corpus/$noun" \
    "tests/fuzz/corpus/$noun" >"$log" 2>&1; then
    echo "fuzz: $noun: $(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log") edges," \
      "$(sed -n 's/stat::number_of_executed_units: //p' "$log") executions, no findings"
    return
  fi
  tail -n 40 "$log"
  echo "fuzz: $noun: FAILED, see $log. To run it again:"
  comm -13 <(echo "$before") <(ls build/fuzz/crashes) | grep "^$noun-" |
    sed "s|^|  $target build/fuzz/crashes/|"
  return 1
}
export -f run_one

deploy/install-deps.sh --fuzz
cmake --preset fuzz
cmake --build --preset fuzz -j "$(nproc)"
mkdir -p build/fuzz/crashes build/fuzz/logs
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'run_one "$@"' _ {} "$seconds"
