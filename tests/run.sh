#!/usr/bin/env bash
# Builds KVStream and runs its tests, the style test among them. Installs missing packages when it
# runs as root.
#
#   tests/run.sh [--preset NAME] [--filter REGEX] [--gpu] [--pfs]
#                [--engines [NAME]] [--fuzz [SECONDS]]
#   tests/run.sh [--preset NAME] (--seeds N [--first-seed F] | --seed S)
#
#   --preset NAME    preset of CMakePresets.json: release (default), debug, asan-ubsan, tsan
#   --filter REGEX   only the tests whose name matches
#   --gpu            only the mini-engine's scenarios on a GPU, in a minute: needs one, the CUDA
#                    toolkit and nvcc, and says SKIPPED and which of them is missing
#   --pfs            only the tests on a distributed file system, GlusterFS, in two minutes: needs
#                    root, and says SKIPPED without
#   --engines [NAME] only the connectors in real engines on the CPU, or in the one of that name
#                    (tests/NAME/engine): installs them, 8 GiB each, in the build folder; half an
#                    hour
#   --seeds N        only the simulation of the whole engine, in N worlds, on all cores
#   --first-seed F   from this seed on (default 1), so that machines can share the work
#   --seed S         only that world, with a trace of all that happens in it
#   --fuzz [SECONDS] only the fuzz targets, each for so long (20): tests/fuzz/run.sh
#   --help           this text
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

die() {
  echo "tests/run.sh: $1" >&2
  usage >&2
  exit 2
}

preset=release
filter=
gpu=
pfs=
engines=
seeds=
first_seed=1
seed=
fuzz=
while (($# > 0)); do
  case "$1" in
    --preset)
      preset=${2:-}
      [[ -n $preset ]] || die "--preset needs a name"
      shift 2
      ;;
    --filter)
      filter=${2:-}
      [[ -n $filter ]] || die "--filter needs a regular expression"
      shift 2
      ;;
    --seeds | --first-seed | --seed)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "$1 needs a number from 1 on"
      name=${1#--}
      printf -v "${name//-/_}" %s "$2"
      shift 2
      ;;
    --gpu)
      gpu=yes
      shift
      ;;
    --pfs)
      pfs=yes
      shift
      ;;
    --engines)
      engines='*'
      shift
      if [[ ${1:-} =~ ^[a-z]+$ ]]; then
        engines=$1
        [[ -f tests/$engines/engine/run_engines.py ]] || die "no such engine: $engines"
        shift
      fi
      ;;
    --fuzz)
      fuzz=20
      shift
      if [[ ${1:-} =~ ^[0-9]+$ ]]; then
        fuzz=$1
        shift
      fi
      ;;
    --help)
      usage
      exit 0
      ;;
    *) die "unknown option: $1" ;;
  esac
done

# Simulates the whole engine: one world, or many with a process for each core.
simulate() {
  local sim=build/$preset/tests/sim/engine_sim_test logs pids=() shards i status=0
  sim+=" --gtest_filter=EngineSimTest.EveryPromiseHoldsInEveryWorld"
  if [[ -n $seed ]]; then
    KVSTREAM_SEED=$seed $sim
    return
  fi
  logs=$(mktemp -d)
  shards=$(nproc)
  ((shards <= seeds)) || shards=$seeds
  for ((i = 0; i < shards; ++i)); do
    KVSTREAM_FIRST_SEED=$((first_seed + seeds * i / shards)) \
      KVSTREAM_SEEDS=$((seeds * (i + 1) / shards - seeds * i / shards)) $sim >"$logs/$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; ++i)); do
    wait "${pids[i]}" || {
      status=1
      cat "$logs/$i"
    }
  done
  rm -r "$logs"
  ((status != 0)) || echo "seeds $first_seed .. $((first_seed + seeds - 1)): every promise holds"
  return "$status"
}

# Lets ccache, where there is one, serve another checkout from what this one compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

[[ -z $fuzz ]] || exec tests/fuzz/run.sh "$fuzz"

deploy/install-deps.sh ${pfs:+--pfs}
cmake --preset "$preset"
if [[ -n $pfs ]]; then
  build=build/$preset
  cmake --build --preset "$preset" -j "$(nproc)" \
    --target kvstreamd kvstreamctl kvstream_e2e_mixed_load
  status=0
  python3 tests/e2e/gluster_test.py "$build"/server/kvstreamd "$build"/client/kvstreamctl \
    "$build"/tests/e2e/kvstream_e2e_mixed_load || status=$?
  ((status != 77)) || exit 0
  exit "$status"
fi
if [[ -n $engines ]]; then
  build=build/$preset
  cmake --build --preset "$preset" -j "$(nproc)" --target kvstreamd kvstreamctl
  status=0
  for program in tests/$engines/engine/run_engines.py; do
    one=0
    python3 "$program" "$build" "$build"/server/kvstreamd "$build"/client/kvstreamctl || one=$?
    ((one == 0 || one == 77)) || status=$one
  done
  exit "$status"
fi
if [[ -n $seeds$seed ]]; then
  cmake --build --preset "$preset" -j "$(nproc)" --target engine_sim_test
  simulate
  exit
fi
cmake --build --preset "$preset" -j "$(nproc)"

# A sanitizer's finding must fail its test: UBSan goes on by default.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}
if [[ -n $gpu ]]; then
  build=build/$preset
  if [[ ! -x $build/tests/gpu/mini_engine ]]; then
    echo "SKIPPED: no CUDA toolkit with nvcc was found when $build was configured"
    exit 0
  fi
  status=0
  python3 tests/gpu/gpu_test.py "$build"/server/kvstreamd "$build"/client/kvstreamctl \
    "$build"/tests/gpu/mini_engine || status=$?
  ((status != 77)) || exit 0
  exit "$status"
fi
ctest --preset "$preset" -j 8 --no-tests=error ${filter:+-R "$filter"}
