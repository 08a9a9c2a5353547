#!/usr/bin/env bash
# A training that is killed and goes on: the demo's model, out of a folder of Hugging Face, is trained by
# four processes of MPI; one of them is killed now and then; a loop restarts them all from the newest
# checkpoint. What comes out has the bits of a training that nobody disturbed, transformers loads it, and
# PyTorch goes on from the same checkpoint with the same losses.
#
#   scripts/demo_restart.sh [STEPS [KILLS [SECONDS]]]     default 100 steps and 3 kills, each after a new checkpoint
#                                                         and so many seconds (0); needs a build
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${1:-100} kills=${2:-3} seconds=${3:-0}
[[ $steps =~ ^[1-9][0-9]*$ && $kills =~ ^[0-9]+$ && $seconds =~ ^[0-9]+$ ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 1; }
out=${FSDP_DEMO_OUT:-.demo/restart}
python=.venv/bin/python
bin=${FSDP_BUILD:-build/gcc}/bin
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# As root, and on fewer cores than ranks.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
say() { printf '\n== %s\n' "$*"; }
rm -rf "$out"
mkdir -p "$out"

say "capture the model and compile it for 4 ranks"
$python scripts/capture_demo.py "$out"
$bin/fsdp-plan "$out/gpt2.pt2" --ranks 4 -o "$out/step.plan" >"$out/report.txt"
training=("$out/step.plan" --weights "$out/hub" --data "$out/tokens.bin" --lr 1e-3 --json)

say "train $steps steps undisturbed, as threads of one process"
$bin/fsdp-run "${training[@]}" --steps "$steps" >"$out/undisturbed.jsonl"

say "train $steps steps as 4 processes, of which one is killed $kills times"
killer() {
  local seen="" newest victim
  for ((kill = 0; kill < kills;)); do
    newest=$(ls "$out/run" 2>/dev/null | tail -n 1) || true
    [ "$newest" != "$seen" ] || { sleep 0.1; continue; }
    sleep "$seconds.$((RANDOM % 30 + 10))"
    # Not mpirun, whose command line has the same words after its own.
    victim=$(pgrep -f "^[^ ]*fsdp-run $out/step.plan .*--backend mpi" | shuf -n 1) || true
    [ -n "$victim" ] && kill -9 "$victim" || continue
    echo "demo: killed process $victim after $newest" | tee -a "$out/kills.txt"
    kill=$((kill + 1)) seen=$newest
  done
}
killer &
trap 'kill %1 2>/dev/null || true' EXIT
starts=1
until mpirun -n 4 $bin/fsdp-run "${training[@]}" --steps "$steps" --backend mpi --checkpoint "$out/run" --every 5 --keep 3 \
  --resume auto --export "$out/trained" >"$out/disturbed.jsonl" 2>"$out/disturbed.log"; do
  grep "^error: " "$out/disturbed.log" || cat "$out/disturbed.log"
  starts=$((starts + 1))
  [ $starts -lt 100 ] || { echo "error: expected the training to end after 100 starts"; exit 1; }
done
kill %1 2>/dev/null || true
[ "$(cat "$out/kills.txt" 2>/dev/null | wc -l)" = "$kills" ] || { echo "error: expected $kills kills before the training ended: give it more steps"; exit 1; }
echo "demo: done after $starts starts"

say "compare the bits of all parameters"
parameters() { grep -o '"parameters": "[0-9a-f]*"' "$1"; }
parameters "$out/undisturbed.jsonl"
[ "$(parameters "$out/undisturbed.jsonl")" = "$(parameters "$out/disturbed.jsonl")" ] || { echo "error: the bits differ"; exit 2; }
$bin/fsdp-ckpt verify "$out/run"

say "go on for 5 steps, in fsdp-run and in PyTorch with the model that transformers loads and the states of the checkpoint"
cp "$out/hub/config.json" "$out/trained"
newest=$(printf '%s/run/step-%08d' "$out" "$steps")
$bin/fsdp-run "${training[@]}" --steps $((steps + 5)) --resume "$newest" >"$out/more.jsonl"
$python scripts/compare_demo.py "$out" --ranks 4 --lr 1e-3 --losses "$out/more.jsonl" --checkpoint "$newest" --exported "$out/trained"
