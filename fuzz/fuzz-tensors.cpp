//===- fuzz-tensors.cpp - Files of tensors through the runtime ------------===//
//
// A safetensors file, an archive or tokens: as the weights of a plan, as its
// data and as a reference, which run steps.
//
//===----------------------------------------------------------------------===//

#include "ArchiveMutator.h"
#include "InputFile.h"
#include "Target.h"
#include "TextMutator.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"
#include "fsdp/Runtime/Data/Reference.h"

#include <memory>

using namespace fsdp;
using namespace fsdp::fuzz;

namespace {

/// A plan of this build, loaded; once more if a step failed.
struct Trainer {
  explicit Trainer(const std::string &path)
      : plan(open(path)), ranks(planfile::getRankCount(plan.plan())) {}

  static planfile::PlanFile open(const std::string &path) {
    auto plan = planfile::PlanFile::open(path);
    if (!plan)
      report(plan.error().message.c_str());
    return std::move(*plan);
  }

  /// What is rejected says why, as an `Error`.
  template <typename Function> void attempt(Function &&function) {
    try {
      if (!session)
        session = std::make_unique<Session>(plan.plan(), ranks);
      function();
    } catch (const Error &error) {
      if (error.kind() == Failure::RankFailed)
        session.reset();
    }
  }

  void tryAll(const std::string &path, bool isTokens) {
    attempt([&] {
      Weights weights = Weights::open(path);
      weights.load(weights.match(plan), *session);
    });
    attempt([&] { train(Data::open(path, plan)); });
    if (isTokens)
      attempt([&] { train(Data::open(path, plan, {.tokenBits = 32})); });
    attempt([&] {
      Reference reference = Reference::open(path, plan);
      constexpr size_t mostSteps = 3;
      if (reference.trainingSteps() <= mostSteps)
        static_cast<void>(reference.run(*session, 1e-3).summary());
    });
  }

  /// The first batches, and the last ones.
  void train(Data data) {
    for (uint64_t position : {uint64_t{0}, data.batches() - 1, ~uint64_t{0}}) {
      data.seek(position);
      data.next(1);
      for (unsigned i = 0; i != session->inputCount(); ++i)
        session->setInput(0, i, data.input(0, i));
    }
    session->run();
  }

  planfile::PlanFile plan;
  unsigned ranks;
  std::unique_ptr<Session> session;
};

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const InputFile safetensors("in.safetensors"), tokens("in.tokens"),
      numpy("in.npy");
  static Trainer trainers[] = {Trainer(FSDP_FUZZ_PLANS "/buffers.plan"),
                               Trainer(FSDP_FUZZ_PLANS "/tokens.plan")};
  safetensors.write(data, size);
  tokens.write(data, size);
  numpy.write(data, size);
  for (Trainer &trainer : trainers) {
    trainer.tryAll(safetensors.path(), false);
    trainer.tryAll(tokens.path(), true);
    trainer.tryAll(numpy.path(), false);
  }
  return 0;
}

/// The header by its structure, or a few bytes anywhere.
static std::string mutateSafetensors(const std::string &file, Random &random,
                                     size_t maxSize) {
  constexpr size_t lengthSize = 8;
  uint64_t length = 0;
  if (file.size() >= lengthSize)
    std::memcpy(&length, file.data(), lengthSize);
  if (file.size() < lengthSize || length > file.size() - lengthSize ||
      random.once(8))
    return mutateBytes(file, maxSize);
  std::string header = file.substr(lengthSize, length);
  std::string rest = file.substr(lengthSize + length);
  if (random.once(8))
    rest = mutateBytes(rest, maxSize - lengthSize - length);
  else
    header = mutateText(std::move(header), random,
                        maxSize - lengthSize - rest.size());
  length = header.size();
  std::string result(reinterpret_cast<const char *>(&length), lengthSize);
  return result + header + rest;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maxSize,
                               unsigned seed) {
  Random random(seed);
  std::string file(reinterpret_cast<const char *>(data), size);
  bool isArchive = file.compare(0, 4, "PK\3\4") == 0;
  return putInput(data, maxSize,
                  isArchive ? mutateArchive(file, random, maxSize)
                            : mutateSafetensors(file, random, maxSize));
}
