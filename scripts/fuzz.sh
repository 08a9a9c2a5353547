#!/usr/bin/env bash
# Feeds damaged files to everything that reads one, under the address and undefined behaviour sanitizers.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]   how long each of these, one on each core; 20 seconds of all by default:
#                                           checkpoint decisions hardware mlir plan profile pt2 tensors
#
# FSDP_FUZZ_SEED repeats a run, as far as time allows; without it, each begins elsewhere.
# What reached new code lies in build/fuzz/TARGET afterwards, and what failed in build/fuzz/TARGET-crash-*, which
# `build/asan/bin/fuzz-TARGET FILE` runs again. See docs/internals/fuzzing.md.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1-20}
targets=("${@:2}")
[ ${#targets[@]} -ne 0 ] || targets=(checkpoint decisions hardware mlir plan profile pt2 tensors)
cmake --preset asan >/dev/null
jobs=$(env -u OMP_NUM_THREADS nproc)
cmake --build --preset asan -j"$jobs" --target fuzzers

export ASAN_OPTIONS=allow_user_poisoning=0:detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
touch "$TMPDIR/begun"
seed=${FSDP_FUZZ_SEED-$RANDOM}
echo "fuzz: FSDP_FUZZ_SEED=$seed"

fuzz() { # TARGET
  local target=$1 result=ok found=build/fuzz/$1 seeds=fuzz/corpus/$1 runs
  mkdir -p "$found"
  [ "$target" != plan ] || seeds=build/asan/fuzz/seeds # the format may change: compiled by this build
  if ! build/asan/bin/fuzz-"$target" -seed="$seed" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=3072 -print_final_stats=1 \
      -artifact_prefix="$found-" "$found" "$seeds" >"$found.log" 2>&1; then
    result="FAILED, see $found.log"
    echo "$target" >>"$TMPDIR/failed"
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found.log")
  printf 'fuzz: %-10s %10s runs in %s s  %s\n' "$target" "${runs:-?}" "$seconds" "$result"
}

touch "$TMPDIR/failed"
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  fuzz "$target" &
done
wait
mapfile -t failed <"$TMPDIR/failed"
# What a machine that is gone tomorrow knows of it: where it failed, and on what.
for target in "${failed[@]}"; do
  echo "fuzz: $target failed:"
  grep -m1 -A9 -E 'ERROR:|Assertion|runtime error:' build/fuzz/"$target".log | cut -c1-300
  find build/fuzz -maxdepth 1 -name "$target-*" -newer "$TMPDIR/begun" -size -8k -exec sh -c 'echo "$1, in base64:"; gzip -c "$1" | base64 -w0; echo' _ {} \;
done
[ ${#failed[@]} -eq 0 ]
