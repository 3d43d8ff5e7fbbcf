#!/usr/bin/env bash
# From a bare Debian 12 to a daemon that serves: installs the packages (as root; another user is
# told which are missing), builds, starts kvstreamd on two temporary directories, replays generated
# requests with every byte checked, shows some metrics, and stops it. No GPU is needed, and nothing
# is left behind but build/release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "quickstart: $*"; }

die() {
  say "$*" >&2
  exit 1
}

work=
pid=
clean_up() {
  local rc=$?
  if [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null; then
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
  fi
  if ((rc != 0)) && [[ -n $work && -s $work/kvstreamd.log ]]; then
    say "the daemon's last lines:" >&2
    tail -n 20 "$work/kvstreamd.log" >&2
  fi
  [[ -z $work ]] || rm -rf "$work"
}
trap clean_up EXIT
# The exit that follows runs clean_up.
trap 'exit 130' INT TERM

# A value of the daemon's status: status_field NAME, in either spelling that JSON has for a field of
# a message. Empty when the daemon does not answer.
status_field() {
  "$ctl" --socket "$socket" --json status 2>/dev/null | python3 -c '
import json, sys
status = {key.replace("_", "").lower(): value for key, value in json.load(sys.stdin).items()}
value = status.get(sys.argv[1].replace("_", ""), "")
print(str(value).lower() if isinstance(value, bool) else value)
' "$1" 2>/dev/null || true
}

wait_until_ready() {
  local deadline=$((SECONDS + 30))
  until [[ $(status_field ready) == true ]]; do
    kill -0 "$pid" 2>/dev/null || die "kvstreamd ended before it was ready"
    ((SECONDS < deadline)) || die "kvstreamd was not ready within 30 s"
    sleep 0.1
  done
}

# Some lines of the metrics at host:port.
show_metrics() {
  local host=${1%:*} port=${1##*:}
  exec 3<>"/dev/tcp/$host/$port"
  printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" >&3
  tr -d '\r' <&3 | grep -E \
    '^kvstreamd_(info|ready|read_steps_total|delivered_bytes_total|tier_(read|written)_bytes_total)'
  exec 3>&-
}

deploy/install-deps.sh
say "building (the first time takes some minutes)"
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target kvstreamd kvstreamctl

work=$(mktemp -d "${TMPDIR:-/tmp}/kvstream.XXXXXX")
daemon=build/release/server/kvstreamd
ctl=build/release/client/kvstreamctl
socket=$work/kvstreamd.sock
mkdir "$work/nvme" "$work/pfs"
cat >"$work/config.textproto" <<CONFIG
sockets { grpc: "$socket" mode: "0600" }
tiers { name: "nvme" root: "$work/nvme" }
tiers { name: "pfs" root: "$work/pfs" }
pool { mib: 256 }
metrics { listen: "127.0.0.1:0" }
CONFIG

say "starting $daemon"
"$daemon" --config "$work/config.textproto" >"$work/kvstreamd.log" 2>&1 &
pid=$!
wait_until_ready
"$ctl" --socket "$socket" status

say "replaying 200 generated requests"
"$ctl" --socket "$socket" replay --generate 200 --chunk-bytes 256KiB

address=$(status_field metrics_address)
say "metrics at http://$address/metrics, among them:"
show_metrics "$address"

say "stopping"
kill -TERM "$pid"
rc=0
wait "$pid" || rc=$?
pid=
((rc == 0)) || die "kvstreamd ended with exit status $rc"
say "done: no wrong byte came back"
