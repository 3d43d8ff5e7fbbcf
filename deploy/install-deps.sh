#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing KVStream needs. This is the one list;
# deploy/quickstart.sh and tests/run.sh call it. As root it installs what is missing; as another
# user it names what is missing and fails, so that nothing is half done.
#
#   deploy/install-deps.sh          install or report
#   deploy/install-deps.sh --lint   the same, with what tests/lint.sh needs
#   deploy/install-deps.sh --fuzz   the same, with what tests/fuzz/run.sh needs
#   deploy/install-deps.sh --pfs    the same, with what tests/run.sh --pfs needs
#   deploy/install-deps.sh --list   print the list, one package a line
set -euo pipefail

packages=(
  build-essential
  ccache
  cmake
  libabsl-dev
  libbenchmark-dev
  libfmt-dev
  libgmock-dev
  libgrpc++-dev
  libgtest-dev
  libprotobuf-dev
  libspdlog-dev
  liburing-dev
  libxxhash-dev
  ninja-build
  pkg-config
  prometheus-cpp-dev
  protobuf-compiler
  protobuf-compiler-grpc
  python3
  python3-venv
  util-linux
)

case "${1:-}" in
  "") ;;
  --lint) packages+=(clang-14 clang-tidy) ;;
  --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
  --pfs) packages+=(glusterfs-client glusterfs-server iproute2) ;;
  --list)
    printf '%s\n' "${packages[@]}"
    exit 0
    ;;
  *)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "install-deps: this needs Debian 12 (dpkg is missing); install by hand: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

if ((EUID != 0)); then
  echo "install-deps: missing packages; run as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "install-deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
