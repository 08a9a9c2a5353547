#!/usr/bin/env bash
# From nothing to a trained model: captures a real GPT-2, compiles it for four ranks, trains it fully
# sharded, and replays the first five steps in plain PyTorch to show that the losses agree.
#
#   scripts/demo.sh [STEPS]     default 300 steps; everything it makes lies in .demo/
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${1:-300}
[[ $steps =~ ^[1-9][0-9]*$ ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 1; }

say() { printf '\n== %s\n' "$*"; }
jobs=$(nproc) # ahead of the export, which nproc obeys
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export CCACHE_DIR=${CCACHE_DIR:-$PWD/.ccache} CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

say "1/6 install what is missing"
scripts/setup.sh
say "2/6 build the compiler and the runtime (a few minutes the first time)"
cmake --preset gcc -DFSDP_BUILD_TESTS=OFF >/dev/null
cmake --build --preset gcc -j"$jobs" --target fsdp-plan fsdp-run
cmake --preset gcc -DFSDP_BUILD_TESTS=ON >/dev/null
bin=build/gcc/bin
python=.venv/bin/python
mkdir -p .demo

say "3/6 capture a byte-level GPT-2 with torch.export, and make tokens of the licenses that Debian ships"
$python scripts/capture_demo.py .demo
say "4/6 compile it for 4 ranks, fully sharded"
$bin/fsdp-plan .demo/gpt2.pt2 --ranks 4 -o .demo/step.plan --report .demo/report.json
say "5/6 train $steps steps"
$bin/fsdp-run .demo/step.plan --ranks 4 --weights .demo/gpt2.pt2 --data .demo/tokens.bin --token-bits 16 \
  --steps "$steps" --lr 1e-3 --json >.demo/losses.jsonl
say "6/6 replay the first five steps in plain PyTorch, on the same global batches"
$python scripts/compare_demo.py .demo --ranks 4 --lr 1e-3 --losses .demo/losses.jsonl
