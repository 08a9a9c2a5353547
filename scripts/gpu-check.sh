#!/usr/bin/env bash
# Runs training steps on a GPU and compares loss and every gradient with PyTorch's, a different batch on every rank.
#
#   scripts/gpu-check.sh --pack DIR   where the project is built (build/gcc, or $FSDP_BUILD): fills DIR with all that the
#                                     other machine needs (programs, plans for cuda, weights, references, this script)
#   DIR/gpu-check.sh [WORD]           there: one line per check, those whose line contains WORD; ends `N passed, N failed`
#
# The other machine has a driver and a python3 with torch 2.11 (CUDA 13); no compiler, no LLVM, no network.
set -euo pipefail

graphs="gpt2 llama bert frozen llama_bf16"
strategies="full_shard shard_grad_op no_shard"
all_ranks="1 2 4"
trained="gpt2 frozen" # also five steps of AdamW, on two ranks

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 1; }

# The sums of a GPU are not added in the CPU's order.
tolerance() { case $1 in *bf16) echo 3e-2 ;; *) echo 1e-4 ;; esac; }

reference() { if [ "$2" = 1 ]; then echo "$1_ref.safetensors"; else echo "$1_ref$2.safetensors"; fi; }

pack() {
  local to=$1 root build graph strategy ranks
  root=$(cd "$(dirname "$0")/.." && pwd)
  build=${FSDP_BUILD:-$root/build/gcc}
  for file in bin/fsdp-plan bin/fsdp-run lib/libfsdp_cuda.so lib/libfsdp_nccl.so; do
    [ -e "$build/$file" ] || { echo "gpu-check: $build/$file is not built" >&2; exit 1; }
  done
  [ ! -e "$to" ] || [ -z "$(ls -A "$to")" ] || { echo "gpu-check: $to is not empty" >&2; exit 1; }
  mkdir -p "$to"/{bin,lib,plans,data}
  cp "$0" "$to/gpu-check.sh"
  cp "$build/bin/fsdp-run" "$to/bin/"
  cp "$build/lib/libfsdp_cuda.so" "$build/lib/libfsdp_nccl.so" "$to/lib/"
  # Libraries that neither torch nor every Linux has.
  ldd "$build/bin/fsdp-run" |
    awk '$3 ~ /^\// && $3 !~ /\/(torch|nvidia)\/|\/lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s)\.so/ { print $3 }' |
    xargs -r cp -Lt "$to/lib"
  strip --strip-unneeded "$to"/bin/* "$to"/lib/*

  for graph in $graphs; do
    cp "$root/test/fixtures/$graph.pt2" "$root/test/fixtures/$(reference "$graph" 1)" "$to/data/"
    for ranks in $all_ranks; do
      if [ -e "$root/test/fixtures/$(reference "$graph" "$ranks")" ]; then
        cp "$root/test/fixtures/$(reference "$graph" "$ranks")" "$to/data/"
      else
        "$root/.venv/bin/python" "$root/scripts/make_rank_reference.py" "$ranks" "$to/data/$graph.pt2"
      fi
      for strategy in $strategies; do
        "$build/bin/fsdp-plan" "$to/data/$graph.pt2" --ranks "$ranks" --strategy "$strategy" --device cuda \
          -o "$to/plans/$graph-$strategy-$ranks.plan" >/dev/null
      done
    done
  done
  for graph in $trained; do cp "$root/test/fixtures/${graph}_train2x5.safetensors" "$to/data/"; done
  du -sh "$to"
}

passed=0 failed=0
# check LINE ARGUMENTS...: one run of fsdp-run in the packed folder; by torchrun, with so many processes, if $processes says so
check() {
  local line=$1 output launcher=()
  shift
  [[ $line == *"$word"* ]] || return 0
  [ -z "${processes-}" ] || launcher=(python3 -m torch.distributed.run --standalone --nproc-per-node "$processes" --no-python)
  if output=$(timeout 120 "${launcher[@]}" bin/fsdp-run "$@" --device cuda 2>&1); then
    passed=$((passed + 1))
    printf 'ok      %-36s %s\n' "$line" "$(tail -n 1 <<<"$output")"
  else
    failed=$((failed + 1))
    printf 'FAILED  %-36s %s\n' "$line" "$(tail -n 5 <<<"$output")"
  fi
}

run() {
  local torch graph strategy ranks
  cd "$(dirname "$0")"
  [ -d plans ] || usage
  torch=$(python3 -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))") ||
    { echo "gpu-check: python3 has no torch" >&2; exit 1; }
  # The machine may have another NCCL of its own.
  export LD_LIBRARY_PATH=$PWD/lib:$torch/lib:${torch%/*}/nvidia/cu13/lib:${torch%/*}/nvidia/nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export OMP_NUM_THREADS=1
  for graph in $graphs; do
    for strategy in $strategies; do
      for ranks in $all_ranks; do
        check "$graph $strategy ranks=$ranks" "plans/$graph-$strategy-$ranks.plan" --ranks "$ranks" \
          --weights "data/$graph.pt2" --reference "data/$(reference "$graph" "$ranks")" \
          --tolerance "$(tolerance "$graph")"
      done
    done
  done
  for graph in $trained; do
    for strategy in $strategies; do
      check "$graph $strategy ranks=2 five steps" "plans/$graph-$strategy-2.plan" --ranks 2 \
        --weights "data/$graph.pt2" --reference "data/${graph}_train2x5.safetensors" --tolerance "$(tolerance "$graph")"
    done
  done
  # Processes that NCCL connects: one, and one for each GPU. NCCL takes a GPU for one process only.
  local gpus
  gpus=$(python3 -c "import torch; print(torch.cuda.device_count())")
  for graph in $graphs; do
    for processes in 1 2 4; do
      [ "$processes" -le "$gpus" ] || { echo "not run: $graph with $processes processes of NCCL needs as many GPUs"; continue; }
      for strategy in $strategies; do
        check "$graph $strategy nccl processes=$processes" "plans/$graph-$strategy-$processes.plan" --backend nccl \
          --weights "data/$graph.pt2" --reference "data/$(reference "$graph" "$processes")" --tolerance "$(tolerance "$graph")"
      done
    done
  done
  echo "$passed passed, $failed failed"
  [ $failed = 0 ] && [ $passed != 0 ]
}

case ${1-} in
  --pack) [ $# = 2 ] || usage; pack "$2" ;;
  -*) usage ;;
  *) [ $# -le 1 ] || usage; word=${1-}; run ;;
esac
