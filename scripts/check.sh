#!/usr/bin/env bash
# Installs what is missing, builds, runs every test and ends with `N passed, M failed`.
#
#   scripts/check.sh         g++ release in full, address sanitizer for bad input, thread sanitizer for the runtime
#   scripts/check.sh --all   the same, and 100 seeds of chaos, every mutant (docs/internals/mutation.md), every pair of features beside
#                            PyTorch's FSDP, every model (docs/models.md), comparisons through NCCL, clang release, debug, clang-tidy
#
# Logs of each stage lie in build/check; a stage that fails prints the end of its log.
set -uo pipefail
cd "$(dirname "$0")/.."

all=no
case "${1-}" in
  "") ;;
  --all) all=yes ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 1 ;;
esac

out=$PWD/build/check
rm -rf "$out"
mkdir -p "$out/results"
export CCACHE_DIR=${CCACHE_DIR:-$PWD/.ccache}
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
jobs=$(nproc) # ahead of the export, which nproc obeys
workers=$((jobs + 1)) # of pytest: many tests wait, for processes that are late or dead
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# What is only sampled follows the commit, so that none is left out for long; set it to repeat a failure.
export FSDP_SAMPLE=${FSDP_SAMPLE:-$((16#$(git rev-parse HEAD | cut -c-7)))}
echo "check: FSDP_SAMPLE=$FSDP_SAMPLE"

# stage NAME COMMAND...: runs it with its output in a log; a stage counts as one test of its own.
stage() {
  local name=$1 started=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "$name ok $((SECONDS - started))" >>"$out/stages.txt"
    printf 'check: %-28s ok      %4d s\n' "$name" $((SECONDS - started))
  else
    echo "$name FAILED $((SECONDS - started))" >>"$out/stages.txt"
    printf 'check: %-28s FAILED  %4d s, the end of %s:\n' "$name" $((SECONDS - started)) "build/check/$name.log"
    tail -n 40 "$out/$name.log"
    return 1
  fi
}

build() { cmake --preset "$1" && cmake --build --preset "$1" -j"$jobs" -- "${@:2}"; }

unit_tests() {
  mkdir -p "$out/results/$1"
  GTEST_OUTPUT="xml:$out/results/$1/" ctest --test-dir "build/$1" -j"$jobs" --output-on-failure -E "fsdp-lit${leave_out:+|$leave_out}" "${@:2}"
}

lit_tests() {
  /usr/lib/llvm-22/bin/lit -sv --xunit-xml-output "$(mktemp "$out/results/lit-$1-XXXX.xml")" "${@:2}" "build/$1/test"
}

# ended PROCESS FILE: waits for it, shows what it has said, and has its exit status.
ended() {
  local status=0
  wait "$1" || status=$?
  cat "$2"
  return $status
}

formatted() {
  git ls-files -z '*.h' '*.cpp' | xargs -0 clang-format-22 --dry-run --Werror
}

python_tests() {
  FSDP_CHAOS_SEEDS=$([ $all = yes ] && echo 100 || echo 10) \
    .venv/bin/python -m pytest -q -n $workers --dist worksteal -o junit_family=xunit1 --junitxml "$out/results/pytest.xml" test/Python test/EndToEnd "$@"
}

# Comparisons with PyTorch once more, by processes that a NCCL of ordinary memory connects.
through_nccl() {
  .venv/bin/python -m pytest -q -n $workers --dist worksteal --junitxml "$out/results/nccl.xml" --through-nccl \
    test/EndToEnd/test_{accumulation,agreement,clipping,comm_hooks,decay_groups,grad_scaler,hybrid,mixed_precision,models,names,parity,random,remat,roles,unproved,updates,weights}.py
}

models() {
  .venv/bin/python -m pytest -q -n $workers --dist worksteal --junitxml "$out/results/models.xml" test/Zoo "$@"
}

stage setup scripts/setup.sh || { echo "0 passed, 1 failed"; exit 1; }
stage format formatted
stage op-facts .venv/bin/python scripts/generate_op_facts.py --check
if stage build-gcc build gcc; then
  # Kernels are not instrumented: guard pages see what they do, in any build. Needs one core, beside other stages.
  FSDP_FUZZ_SECONDS=60 GTEST_OUTPUT="xml:$out/results/operators.xml" build/gcc/bin/OperatorFuzzTest >"$out/operators.txt" 2>&1 &
  operators=$!
  leave_out=OperatorFuzzTest stage unit-gcc unit_tests gcc
  stage lit-gcc lit_tests gcc
  stage lit-roundtrip lit_tests gcc --param verify_roundtrip=1 --filter 'Dialect|Analysis|Conversion'
  stage operators ended $operators "$out/operators.txt"
  stage python python_tests $([ $all = yes ] && echo --all-mutants --all-pairs)
  stage models models $([ $all = yes ] && echo --all-models)
  [ $all = yes ] && stage nccl through_nccl
  stage site env PYTHONPATH=python-bindings NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
  # A comparison of times has the cores for itself.
  stage presets .venv/bin/python benchmarks/presets.py --width 512 --rounds 10 --steps 20
  # Killed and restarted, with PyTorch before and after it.
  command -v mpirun >/dev/null && stage restart env FSDP_DEMO_OUT="$out/restart" scripts/demo_restart.sh
fi
# The sanitizers' stages build what they run, and no more.
if stage build-asan build asan fsdp-opt fsdp-translate fsdp-plan FSDPArchiveTests FSDPOperatorsTests FSDPPlanFileTests SymbolicTests \
  RuntimeFilesTest CommTest SessionTest TrainingTest FsdpRunTest fuzzers; then
  export ASAN_OPTIONS=allow_user_poisoning=0:detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
  # Twice in one process: what a test leaves behind is what the next one finds.
  GTEST_REPEAT=2 stage unit-asan unit_tests asan -R 'FSDPArchiveTests|FSDPOperatorsTests|FSDPPlanFileTests|SymbolicTests|RuntimeFilesTest|CommTest|SessionTest|TrainingTest|FsdpRunTest'
  stage lit-asan lit_tests asan --filter 'bad-input|invalid'
  # Another part of what there is for each commit.
  stage fuzz env FSDP_FUZZ_SEED=$FSDP_SAMPLE scripts/fuzz.sh
  unset ASAN_OPTIONS UBSAN_OPTIONS
fi
mpi_test=$(command -v mpirun >/dev/null && echo MPITest)
[ -n "$mpi_test" ] || echo "check: there is no mpirun: tests of processes are not run"
nccl_test=$([ -e build/gcc/bin/NCCLTest ] && echo NCCLTest) # Where PyTorch has CUDA.
if stage build-tsan build tsan CommTest RaceTest $mpi_test $nccl_test; then
  # What the race test runs; the compiler is not in its build.
  stage race-plan build/gcc/bin/fsdp-plan test/fixtures/gpt2.pt2 --ranks 4 -o "$out/race.plan"
  export FSDP_RACE_PLAN=$out/race.plan
  stage unit-tsan unit_tests tsan -R 'CommTest|RaceTest|MPITest-2|NCCLTest'
fi
if [ $all = yes ]; then
  unset FSDP_UNITY # clang-tidy reads the command that compiles each file
  for preset in clang debug; do
    stage "build-$preset" build $preset && stage "unit-$preset" unit_tests $preset && stage "lit-$preset" lit_tests $preset
  done
  stage tidy /usr/lib/llvm-22/bin/run-clang-tidy -quiet -hide-progress -p build/clang "^$PWD/(lib|tools)/"
fi
scripts/check_pages.sh
.venv/bin/python scripts/count_results.py "$out/results" --stages "$out/stages.txt"
