//===- fsdp-bits.cpp - What plans leave behind, bit for bit ---------------===//
//
// Trains a few steps with each of many plans of one model and prints a hash of
// all that is there then: losses, gradients, parameters, states, buffers,
// states of generators. With a seed, in chaos, with the second thread of each
// rank, and with the update in a run of its own. A plan that fails has a
// sentence instead of a hash; one that is rejected before its first step says
// so.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Runtime/Checkpoints/Weights.h"
#include "fsdp/Runtime/Data/Reference.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <xxhash.h>

using namespace fsdp;

namespace {

constexpr int numSteps = 3;

std::uint64_t hashTensor(std::uint64_t seed, const HostTensor &tensor) {
  return XXH3_64bits_withSeed(tensor.bytes.data(), tensor.bytes.size(), seed);
}

/// The name of a step that trains, whatever it is: of its program, or of none
/// if it has several.
std::string getStep(const planfile::PlanFile &plan) {
  for (const planfile::Program *program : *plan->programs())
    if (!program->is_init())
      return std::string(program->part() == planfile::Part::Whole
                             ? plan.string(program->name())
                             : planfile::defaultProgram);
  throw Error("rejected: expected a program to train with, found none");
}

std::uint64_t hashRun(const char *path, const Weights &weights,
                      const char *inputs, std::uint64_t seed) {
  auto plan = planfile::PlanFile::open(path);
  if (!plan)
    throw Error(plan.error().message);
  unsigned ranks = planfile::getRankCount(plan->plan());
  std::string step = getStep(*plan);
  std::vector<std::string> programs = getStepPrograms(*plan, step);
  Reference reference = Reference::open(inputs, *plan, step);
  SessionOptions options;
  options.chaosSeed = seed;
  options.overlap = seed != 0;
  std::optional<Session> loaded;
  try {
    loaded.emplace(plan->plan(), ranks, std::move(options));
    weights.load(weights.match(*plan), *loaded);
  } catch (const Error &error) {
    throw Error(std::string("rejected: ") + error.what());
  }
  Session &session = *loaded;
  session.setHyperParameters({});
  std::uint64_t hash = 0;
  auto runProgram = [&](const std::string &program, std::size_t batch,
                        const Roles &roles) {
    // A plan may use the memory of inputs that it has read.
    for (unsigned rank = 0; rank != ranks; ++rank)
      for (unsigned index = 0; index != session.inputCount(program); ++index)
        session.setInput(rank, index, reference.input(batch, rank, index),
                         program);
    session.run(program, roles);
    double loss = session.loss(program);
    hash = XXH3_64bits_withSeed(&loss, sizeof loss, hash);
  };
  auto run = [&](const Roles &roles) {
    for (std::size_t k = 0; k != programs.size(); ++k)
      runProgram(programs[k], k, roles);
  };
  using Kind = TensorName::Kind;
  auto addTensors = [&](Kind kind) {
    for (const TensorName &tensor : session.tensors(kind))
      hash = hashTensor(hash, session.read(tensor));
  };
  auto addGradients = [&] {
    addTensors(Kind::Gradient);
    for (const std::string &sentence : session.findDirtyPadding(true))
      throw Error(sentence);
  };
  run({.update = false});
  addGradients();
  for (int i = 0; i != numSteps; ++i) {
    run({.update = seed == 0});
    if (seed != 0)
      session.run(programs.back(), {.forward = false, .backward = false});
  }
  // Other programs of the plan take the same inputs.
  for (const planfile::Program *program : *(*plan)->programs())
    if (std::string name(plan->string(program->name()));
        !program->is_init() && !std::ranges::count(programs, name))
      runProgram(name, 0, {});
  for (Kind kind : {Kind::Parameter, Kind::OptimizerState, Kind::Buffer})
    addTensors(kind);
  // A forward alone has its loss; what it does to buffers may be done later.
  run({.backward = false, .update = false});
  for (unsigned rank = 0; rank != ranks; ++rank) {
    std::vector<std::byte> state = session.generatorState(rank);
    hash = XXH3_64bits_withSeed(state.data(), state.size(), hash);
  }
  return hash;
}

} // namespace

int main(int argc, char **argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: fsdp-bits WEIGHTS INPUTS SEED PLAN...\n");
    return 1;
  }
  Weights weights = Weights::open(argv[1]);
  for (int i = 4; i != argc; ++i) {
    std::printf("%s\t", argv[i]);
    std::fflush(stdout);
    try {
      std::printf("%016llx\n", static_cast<unsigned long long>(hashRun(
                                   argv[i], weights, argv[2],
                                   std::strtoull(argv[3], nullptr, 10))));
    } catch (const std::exception &error) {
      std::printf("%s\n", error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}
