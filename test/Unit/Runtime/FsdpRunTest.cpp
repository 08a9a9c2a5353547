//===- FsdpRunTest.cpp - The command fsdp-run as a process ----------------===//

#include "Files.h"
#include "Support/TestPlan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <sys/wait.h>

using namespace fsdp;
using test::TestPlan;
using testing::HasSubstr;
using testing::MatchesRegex;

namespace {

struct Result {
  int code;
  std::string out, err;
};

class FsdpRun : public testing::Test {
protected:
  void SetUp() override {
    writePlan(test::makeSmallPlan(2));
    weights.add("w", {4, 4}, std::vector<float>(16, 0.5f));
    weights.add("b", {4}, std::vector<float>(4, 1));
    writeFile(weights, "w.safetensors");
    files.add("in_0", {3, 2, 4}, std::vector<float>(24, 1));
    writeFile(files, "d.safetensors");
  }

  void writePlan(TestPlan plan) {
    auto sealed = plan.seal();
    ASSERT_TRUE(sealed) << sealed.error().message;
    ASSERT_TRUE(sealed->write(files.path("small.plan")));
  }
  void writeFile(const test::Files &from, const std::string &name) {
    std::filesystem::copy_file(
        from.write("made." + name), files.path(name),
        std::filesystem::copy_options::overwrite_existing);
  }

  /// Runs the command in the folder of the files.
  Result run(const std::string &arguments) {
    std::string command = "cd " + files.path("") +
                          " && OMP_NUM_THREADS=1 " FSDP_RUN " " + arguments +
                          " >out.txt 2>err.txt";
    // Not sh, whose quotes know no bytes.
    std::string quoted = "bash -c '" +
                         std::regex_replace(command, std::regex("'"), "'\\''") +
                         "'";
    int status = std::system(quoted.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out.txt"),
            read("err.txt")};
  }
  /// What stands on stderr of a run that must be rejected.
  std::string rejection(const std::string &arguments, int code = 1) {
    Result result = run(arguments);
    EXPECT_EQ(result.code, code) << result.out;
    EXPECT_EQ(result.out, "");
    return result.err;
  }
  std::string read(const std::string &name) {
    std::ostringstream text;
    text << std::ifstream(files.path(name)).rdbuf();
    return text.str();
  }

  test::Files files, weights;
  std::string usual = "small.plan --weights w.safetensors ";
};

// covers: _check_flat_params_on_expected_device, Processes
TEST_F(FsdpRun, BadUsage) {
  EXPECT_EQ(rejection(""), "error: plan is required\n");
  EXPECT_EQ(
      rejection("small.plan"),
      "error: expected --weights FILE, or --init to make parameters without "
      "a file; found neither\n");
  for (const char *rest : {"", " --weights w.safetensors", " --fast"})
    EXPECT_EQ(rejection(FSDP_FIXTURES "/gpt2.pt2" + std::string(rest)),
              "error: " FSDP_FIXTURES "/gpt2.pt2: expected a plan, found an "
              "archive; plan it first: fsdp-plan " FSDP_FIXTURES "/gpt2.pt2 "
              "--ranks N -o step.plan\n");
  EXPECT_EQ(rejection(usual),
            "error: expected --data to train on or --reference "
            "to compare with, found neither\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors"),
            "error: expected --steps N, how many steps to train on "
            "d.safetensors; found none\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 0"),
            "error: --steps: expected at least 1, found 0\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --fast"),
            "error: The following argument was not expected: --fast\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --chaos 0"),
            "error: --chaos: expected a seed of at least 1, found 0\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --reference r.safetensors"),
            "error: --data excludes --reference\n");
  EXPECT_EQ(rejection(usual + "--reference r.safetensors --lr 1"),
            "error: --lr requires --data\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --ranks 0"),
            "error: --ranks: expected at least 1, found 0\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --ranks 3"),
            "error: small.plan: expected a plan for 3 ranks, found one for "
            "2\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --ranks "
                              "100000000000"),
            "error: small.plan: expected a plan for 100000000000 ranks, found "
            "one for 2\n");
  EXPECT_THAT(rejection(usual + "--data d.safetensors --steps 1 --ranks "
                                "99999999999999999999"),
              HasSubstr("ranks, found one for 2"));
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --timeout 0"),
            "error: --timeout: expected from 0.001 to 1e9 seconds, found "
            "0.000000\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --program long"),
            "error: small.plan: expected a program long, found step\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --eval-every 2"),
            "error: --eval-every requires --eval-data\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --eval-data "
                              "d.safetensors"),
            "error: --eval-data requires --eval-every\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --eval-data "
                              "d.safetensors --eval-every 1"),
            "error: small.plan: expected a program eval, found step\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --lr nan"),
            "error: expected a learning rate of at least 0, found nan\n");
  EXPECT_EQ(rejection(usual + "--reference r.safetensors --tolerance inf"),
            "error: --tolerance: expected a finite number of at least 0, found "
            "inf\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --device cuda"),
            "error: small.plan: expected a plan for cuda, found one for cpu\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --backend gloo"),
            "error: --backend: gloo not in {local,mpi,nccl}\n");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --token-bits 8"),
            "error: --token-bits: 8 not in {16,32}\n");
}

TEST_F(FsdpRun, TrustsOperatorsByName) {
  TestPlan plan = test::makeSmallPlan(2);
  constexpr int32_t y = 6; // x w + b
  plan.on(planfile::Stream::Compute, planfile::Role::Forward)
      .launch("aten::renorm_(Tensor(a!) self, Scalar p, int dim, Scalar "
              "maxnorm) -> Tensor(a!)",
              {y, plan.integer(2), plan.integer(0), plan.integer(1)});
  writePlan(plan);
  std::string command = usual + "--data d.safetensors --steps 1";
  EXPECT_THAT(rejection(command), HasSubstr("--trust aten::renorm_"));
  EXPECT_EQ(run(command + " --trust aten::renorm_").code, 0);
}

// The mean over all batches of the file, now and then; the training does not
// notice.
// covers: _post_forward
TEST_F(FsdpRun, Evaluates) {
  TestPlan plan = test::makeSmallPlan(2);
  test::addEvaluation(plan);
  writePlan(plan);
  test::Files evaluation;
  std::vector<float> values;
  for (int i = 0; i != 32; ++i)
    values.push_back(static_cast<float>(i / 8));
  evaluation.add("in_0", {4, 2, 4}, values);
  writeFile(evaluation, "e.safetensors");
  std::string training = usual + "--data d.safetensors --steps 4 --json";
  std::string evaluate = " --eval-data e.safetensors --eval-every ";
  // lr = 0: x w + b is 8 (4 * 0.5 * x + 1) for each batch of x = 0, 1, 2, 3.
  Result still = run(training + " --lr 0" + evaluate + "3");
  EXPECT_EQ(still.code, 0) << still.err;
  EXPECT_THAT(still.out, HasSubstr("\n{\"step\": 3, \"eval_loss\": 32}\n"));
  EXPECT_EQ(still.out.find("eval_loss"), still.out.rfind("eval_loss"));

  auto withoutTimes = [](const Result &result) {
    EXPECT_EQ(result.code, 0) << result.err;
    std::string text = std::regex_replace(
        result.out, std::regex("\"([a-z_]*seconds|[a-z]+_bytes)\": [-0-9.]+"),
        "");
    return std::regex_replace(text, std::regex("[^\n]*eval_loss[^\n]*\n"), "");
  };
  EXPECT_EQ(withoutTimes(run(training + evaluate + "1")),
            withoutTimes(run(training)));
  Result text = run(usual + "--data d.safetensors --steps 4" + evaluate + "2");
  EXPECT_THAT(text.out, HasSubstr("step 4/4  eval loss "));

  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --eval-data "
                              "d.safetensors --eval-every 1"),
            "error: d.safetensors: expected a multiple of 2 batches, one for "
            "each rank, found 3\n");
  Result other = run(usual + "--data d.safetensors --steps 1 --program eval");
  EXPECT_EQ(other.code, 0) << other.err;
}

TEST_F(FsdpRun, BadInput) {
  EXPECT_EQ(rejection("no.plan --weights w.safetensors --data d.safetensors "
                      "--steps 1"),
            "error: no.plan: cannot open: No such file or directory\n");
  files.writeBytes("bad.plan", "what is this, if not a plan?");
  EXPECT_EQ(rejection("bad.plan --weights w.safetensors --data d.safetensors "
                      "--steps 1"),
            "error: bad.plan: expected a plan file, found other content\n");
  weights.remove("b");
  writeFile(weights, "w.safetensors");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1"),
            "error: w.safetensors: expected a value for each of 2 parameters "
            "and buffers, found none for 1: b\n");
  weights.add("b", {4}, std::vector<float>(4, 1));
  weights.add("tied.w", {4, 4}, std::vector<float>(16, 2));
  writeFile(weights, "w.safetensors");
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1"),
            "error: w.safetensors: expected w and tied.w, which are one "
            "parameter, to be equal, found different values\n");
}

TEST_F(FsdpRun, PlanWithoutLoss) {
  TestPlan plan = test::makeSmallPlan(2);
  for (TestPlan::Buffer &buffer : plan.buffers)
    if (buffer.role == planfile::BufferRole::Loss)
      buffer.role = planfile::BufferRole::Transient;
  writePlan(plan);
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1"),
            "error: small.plan: expected a loss in program step, found none\n");
}

TEST_F(FsdpRun, MoreThanAMachineHolds) {
  files.add("in_0", {2, 4}, std::vector<float>(8, 1));
  files.add("loss", {}, std::vector<float>{24});
  writeFile(files, "r.safetensors");
  TestPlan plan = test::makeSmallPlan(100'000);
  writePlan(plan);
  EXPECT_EQ(rejection(usual + "--reference r.safetensors"),
            "error: expected at most 1024 ranks in one process, found a plan "
            "for 100000\n");
  plan = test::makeSmallPlan(1000);
  plan.deviceBytes = uint64_t{1} << 40;
  writePlan(plan);
  EXPECT_THAT(rejection(usual + "--reference r.safetensors"),
              MatchesRegex("error: expected a plan that fits into the .* "
                           "[KMGT]iB that are free here, found one that needs "
                           "1.00 TiB for each of 1000 ranks\n"));
}

TEST_F(FsdpRun, UnknownOperator) {
  TestPlan plan = test::makeSmallPlan(2);
  plan.on(planfile::Stream::Compute, planfile::Role::Forward)
      .launch("my::op(Tensor self) -> ()", {6});
  writePlan(plan);
  EXPECT_THAT(rejection(usual + "--data d.safetensors --steps 1"),
              HasSubstr("my::op"));
}

// covers: Test
TEST_F(FsdpRun, Trains) {
  Result result = run(usual + "--data d.safetensors --steps 20 --lr 0.1");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  // 16 x 0.5 x 2 + 4 x 1 x 2; each step takes 0.1 of what 40 sums hold.
  EXPECT_THAT(result.out, HasSubstr("step 1/20  loss 24\n"));
  EXPECT_THAT(result.out, HasSubstr("step 2/20  loss 19.9"));
  EXPECT_THAT(result.out, HasSubstr("; loss 24 to -"));
  EXPECT_THAT(result.out, HasSubstr("time of rank 0: forward "));
  EXPECT_THAT(result.out, Not(HasSubstr("memory of")));
}

TEST_F(FsdpRun, SaysMoreWithVerbose) {
  EXPECT_THAT(run(usual + "--data d.safetensors --steps 1 --verbose").out,
              HasSubstr("memory of a rank: 768 B planned, of it 256 B kept "
                        "from step to step"));
}

TEST_F(FsdpRun, PrintsTheStepsThatAreAskedFor) {
  Result result = run(usual + "--data d.safetensors --steps 8 --log-every 3");
  EXPECT_THAT(result.out,
              MatchesRegex("step 1/8[^\n]*\nstep 3/8[^\n]*\nstep 6/8[^\n]*"
                           "\nstep 8/8[^\n]*\n8 steps in[^\n]*\n[^\n]*"
                           "\nexposed communication [^\n]* ms a step\n"));
  EXPECT_EQ(rejection(usual + "--data d.safetensors --steps 1 --log-every 0"),
            "error: --log-every: expected at least 1, found 0\n");
}

TEST_F(FsdpRun, HelpHasGroupsThatFitIntoTheTerminal) {
  std::istringstream lines(run("--help").out);
  std::string groups;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    if (line.ends_with(":") && line[0] != ' ')
      groups += line;
  }
  EXPECT_EQ(groups, "Positionals:Common:Training:Data:Checkpoints:Results:"
                    "Watching:Expert:");
}

TEST_F(FsdpRun, TrainsWithObjects) {
  Result result = run(usual + "--data d.safetensors --steps 5 --json");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  std::string line;
  int step = 0;
  while (step != 5 && std::getline(lines, line)) {
    std::regex object(
        R"(\{"step": )" + std::to_string(++step) +
        R"(, "loss": [-0-9.e]+, "lr": 0.001, "seconds": [0-9.]+, )"
        R"("collective_seconds": [0-9.]+, "exposed_seconds": [0-9.]+, )"
        R"("peak_bytes": [0-9]+\})");
    EXPECT_TRUE(std::regex_match(line, object)) << line;
  }
  EXPECT_EQ(step, 5);
  std::getline(lines, line);
  std::regex whole(R"(\{"summary": \{"steps": 5, "seconds": [0-9.]+, )"
                   R"("exposed_seconds": [0-9.]+, )"
                   R"("parameters": "[0-9a-f]{16}", )"
                   R"("resident_bytes": -?[0-9]+, "planned_bytes": [0-9]+, )"
                   R"("scratch_bytes": 0, "heap_bytes": -?[0-9]+, )"
                   R"("file_bytes": -?[0-9]+, "highest_byte": [0-9]+, )"
                   R"("load_seconds": 0.0+, "save_seconds": 0.0+\}\})");
  EXPECT_TRUE(std::regex_match(line, whole)) << line;
  EXPECT_FALSE(std::getline(lines, line));
}

// Another model's reference has other names, many of them: three are enough.
TEST_F(FsdpRun, ComparesWithAnotherModel) {
  files.add("in_0", {2, 4}, std::vector<float>(8, 1));
  files.add("loss", {}, std::vector<float>{24});
  for (int i = 0; i != 9; ++i)
    files.add("grad.c" + std::to_string(i), {1}, std::vector<float>{1});
  writeFile(files, "r.safetensors");
  Result result = run(usual + "--reference r.safetensors");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "error: r.safetensors: expected all that the plan has, found "
            "nothing for grad.w, grad.b\n"
            "error: r.safetensors: expected only what the plan has, found "
            "grad.c0, grad.c1, grad.c2 and 6 more\n");
}

TEST_F(FsdpRun, ComparesWithAReference) {
  files.add("in_0", {2, 4}, std::vector<float>(8, 1));
  files.add("loss", {}, std::vector<float>{24});
  files.add("grad.w", {4, 4}, std::vector<float>(16, 2));
  files.add("grad.b", {4}, std::vector<float>(4, 2));
  writeFile(files, "r.safetensors");
  Result right = run(usual + "--reference r.safetensors --ranks 2");
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_EQ(right.err, "");
  EXPECT_THAT(right.out, MatchesRegex("compared 3 tensors, worst .*: off by 0 "
                                      "where .* is allowed\n"));

  files.add("grad.b", {4}, std::vector<float>(4, 3));
  writeFile(files, "r.safetensors");
  Result wrong = run(usual + "--reference r.safetensors --json");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.out,
            "{\"compared\": 3, \"worst\": \"grad.b\", \"difference\": 1, "
            "\"allowed\": 3.01e-05, \"passed\": false, \"differences\": "
            "{\"loss\": 0, \"grad.w\": 0, \"grad.b\": 1}}\n");
  EXPECT_EQ(wrong.err,
            "error: r.safetensors: grad.b: expected values within 3.01e-05 of "
            "the reference, whose largest is 3, found one off by 1\n");
  EXPECT_EQ(run(usual + "--reference r.safetensors --tolerance 0.5").code, 0);
}

TEST_F(FsdpRun, OutputsThatAreInputsOrTheSame) {
  std::string train = usual + "--data d.safetensors --steps 1 ";
  std::string before = read("w.safetensors");
  EXPECT_EQ(rejection(train + "--trace ./w.safetensors"),
            "error: ./w.safetensors: expected a file of its own for --trace, "
            "found that of --weights\n");
  EXPECT_EQ(rejection(train + "--profile small.plan"),
            "error: small.plan: expected a file of its own for --profile, "
            "found that of the plan\n");
  EXPECT_EQ(rejection(train + "--trace t --profile t"),
            "error: t: expected a file of its own for --profile, found that of "
            "--trace\n");
  EXPECT_EQ(rejection(train + "--trace no/t"),
            "error: no/t: cannot create the file: No such file or directory\n");
  EXPECT_EQ(read("w.safetensors"), before);
}

// The training is not in vain, and the other file is written.
TEST_F(FsdpRun, ATraceThatIsLost) {
  Result result = run(usual + "--data d.safetensors --steps 1 "
                              "--trace /dev/full --profile p.json");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.out, HasSubstr("step 1/1"));
  EXPECT_EQ(result.err, "error: /dev/full: cannot write the file: No space "
                        "left on device\n");
  EXPECT_THAT(read("p.json"), HasSubstr("\"ops\""));
}

TEST_F(FsdpRun, OutputThatIsLost) {
  for (const char *json : {"", "--json "}) {
    std::string train = usual + "--data d.safetensors --steps 2 " + json;
    Result full = run(train + " 2>err2.txt >/dev/full;"
                              " code=$?; cp err2.txt err.txt; exit $code");
    EXPECT_EQ(full.code, 3) << json;
    EXPECT_EQ(read("err2.txt"), "error: standard output: cannot write: No "
                                "space left on device\n");
    Result closed = run(train + "2>err2.txt >&-; exit $?");
    EXPECT_EQ(closed.code, 3) << json;
    EXPECT_THAT(read("err2.txt"), HasSubstr("standard output: cannot write"));
  }
  // A pipe that nobody reads from any more.
  run("--help | true; mkfifo pipe; (" FSDP_RUN " " + usual +
      "--data d.safetensors --steps 200000 --json >pipe 2>err2.txt; "
      "echo $? >code) & head -1 <pipe; wait");
  EXPECT_EQ(read("code"), "3\n");
  EXPECT_EQ(read("err2.txt"),
            "error: standard output: cannot write: Broken pipe\n");
}

TEST_F(FsdpRun, ALossThatIsNotFinite) {
  for (const char *json : {"", " --json"}) {
    Result result =
        run(usual + "--data d.safetensors --steps 9 --lr 1e38" + json);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err,
                MatchesRegex("error: step [2-8]: expected a loss that is "
                             "finite, found -?(inf|nan); training has "
                             "stopped\n"));
  }
}

TEST_F(FsdpRun, NamesCannotSteerTheTerminal) {
  EXPECT_EQ(rejection("$'\\x1b[2J\\xff' --weights w.safetensors --data "
                      "d.safetensors --steps 1"),
            "error: \\x1b[2J\\xff: cannot open: No such file or directory\n");
}

TEST_F(FsdpRun, SpecialFilesAsInputs) {
  std::string rest = " --data d.safetensors --steps 1";
  run("--help >/dev/null; mkfifo pipe; mkdir folder; :>empty");
  EXPECT_EQ(rejection("pipe --weights w.safetensors" + rest),
            "error: pipe: expected a regular file, found a pipe\n");
  EXPECT_EQ(rejection("small.plan --weights pipe" + rest),
            "error: pipe: expected a regular file, found a pipe\n");
  EXPECT_EQ(rejection("small.plan --weights folder" + rest),
            "error: folder: expected model.safetensors or "
            "model.safetensors.index.json, or the files of a checkpoint in the "
            "folder, found none\n");
  EXPECT_EQ(rejection("small.plan --weights empty" + rest),
            "error: empty: expected at least one byte, found an empty file\n");
  EXPECT_EQ(rejection(usual + "--data pipe --steps 1"),
            "error: pipe: expected a regular file, found a pipe\n");
}

} // namespace
