#!/usr/bin/env bash
# Installs all that building and testing needs on Debian 12: packages and a
# virtual environment with pinned wheels. Quick when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(libmlir-22-dev mlir-22-tools llvm-22-dev llvm-22-tools lld-22 clang-22
  libclang-rt-22-dev clang-format-22 clang-tidy-22 g++-12 cmake ninja-build ccache pkg-config git
  libsimdjson-dev libzip-dev zlib1g-dev libflatbuffers-dev flatbuffers-compiler libxxhash-dev
  libcli11-dev libtomlplusplus-dev libgtest-dev libgmock-dev librapidcheck-dev
  libbenchmark-dev libzstd-dev libopenmpi-dev openmpi-bin iproute2 procps zstd python3-venv python3-dev)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "setup: installing ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp=.venv/installed.txt
if ! cmp -s scripts/requirements.txt "$stamp"; then
  echo "setup: installing the Python wheels (torch is large)"
  [ -x .venv/bin/pip ] || /usr/bin/python3 -m venv .venv
  .venv/bin/pip install -q --disable-pip-version-check -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi
echo "setup: done"
