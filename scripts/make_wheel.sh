#!/usr/bin/env bash
# Builds build/wheels/fsdp_mlir-*.whl: the Python package, with the programs and all libraries that these need, but for PyTorch and
# MPI. The build folder is build/wheel: a second wheel takes seconds. Arguments are those of pip wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/wheels
.venv/bin/pip wheel -q --no-deps --no-build-isolation ./python-bindings -w build/wheels/plain "$@"
# LLVM and what else Debian has goes into the wheel, with names of its own. PyTorch's libraries and NCCL are those of the torch wheel.
PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair -w build/wheels build/wheels/plain/*.whl \
  --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcud*' --exclude 'libnccl*' --exclude 'libmpi*'
rm -r build/wheels/plain
ls -l build/wheels
