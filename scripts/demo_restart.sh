#!/usr/bin/env bash
# A training that is killed and goes on: the demo's model, out of a folder of Hugging Face, is trained by
# four processes of MPI; one of them is killed, the others name it and end, and all start again from the
# newest checkpoint, several times. All losses and the parameters at the end have the bits of a training
# that nobody disturbed, transformers loads the model, and PyTorch goes on from the same checkpoint with
# the same losses.
#
#   scripts/demo_restart.sh [KILLS [SECONDS]]     default 3 kills, each after a new checkpoint and so many
#                                                 seconds (0); needs a build
set -euo pipefail
cd "$(dirname "$0")/.."
kills=${1:-3} seconds=${2:-0}
[[ $kills =~ ^[1-9][0-9]*$ && $seconds =~ ^[0-9]+$ ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 1; }
out=${FSDP_DEMO_OUT:-.demo/restart}
python=.venv/bin/python
bin=${FSDP_BUILD:-build/gcc}/bin
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# As root, and on fewer cores than ranks; without a lock that a killed process may hold (docs/running.md).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PMIX_MCA_gds=hash
say() { printf '\n== %s\n' "$*"; }
fail() { echo "error: $*"; cat "$out/disturbed.log"; exit 2; }
rm -rf "$out"
mkdir -p "$out"

say "capture the model and compile it for 4 ranks"
$python scripts/capture_demo.py "$out"
$bin/fsdp-plan "$out/gpt2.pt2" --ranks 4 -o "$out/step.plan" >"$out/report.txt"
training=("$out/step.plan" --weights "$out/hub" --data "$out/tokens.bin" --lr 1e-3 --json)
processes=(mpirun -n 4 "$bin/fsdp-run" "${training[@]}" --backend mpi --checkpoint "$out/run" --every 5 --keep 3 --resume auto)
newest() { { ls "$out/run" 2>/dev/null || true; } | tail -n 1; }

say "train as 4 processes, of which one is killed $kills times"
for ((kill = 1; kill <= kills; ++kill)); do
  before=$(newest)
  "${processes[@]}" --steps 1000000 >>"$out/disturbed.jsonl" 2>"$out/disturbed.log" &
  while [ "$(newest)" = "$before" ]; do
    kill -0 $! 2>/dev/null || fail "expected a training that goes on until it is killed, found its end"
    sleep 0.1
  done
  sleep "$seconds.$((RANDOM % 30 + 10))"
  victim=$(pgrep -P $! fsdp-run | shuf -n 1) || fail "expected processes of fsdp-run"
  kill -9 "$victim"
  ! wait $! || fail "expected a training without process $victim to fail"
  grep "^error: rank [0-3] (process $victim on " "$out/disturbed.log" || fail "expected the others to name process $victim"
  echo "demo: killed after $(newest), kill $kill of $kills"
done
last=$(newest)
steps=$((10#${last#step-} + 10))
"${processes[@]}" --steps $steps --export "$out/trained" >>"$out/disturbed.jsonl" 2>"$out/disturbed.log" || fail "expected $steps steps"

say "train the same $steps steps undisturbed, as threads of one process"
$bin/fsdp-run "${training[@]}" --steps $steps >"$out/undisturbed.jsonl"

say "compare the bits of the loss of every step, and of all parameters"
bits() { grep -o '"step": [0-9]*, "loss": [^,]*,\|"parameters": "[0-9a-f]*"' "$1" | sort -Vu; } # steps done again are the same
bits "$out/undisturbed.jsonl" | tail -n 1; bits "$out/undisturbed.jsonl" | head -n 1
cmp <(bits "$out/undisturbed.jsonl") <(bits "$out/disturbed.jsonl") || { echo "error: the bits differ"; exit 2; }
$bin/fsdp-ckpt verify "$out/run"

say "go on for 5 steps, in fsdp-run and in PyTorch with the model that transformers loads and the states of the checkpoint"
cp "$out/hub/config.json" "$out/trained"
newest="$out/run/$(newest)"
$bin/fsdp-run "${training[@]}" --steps $((steps + 5)) --resume "$newest" >"$out/more.jsonl"
$python scripts/compare_demo.py "$out" --ranks 4 --lr 1e-3 --losses "$out/more.jsonl" --checkpoint "$newest" --exported "$out/trained"
