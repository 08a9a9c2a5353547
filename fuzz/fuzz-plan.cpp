//===- fuzz-plan.cpp - Plans through check, proof and a step --------------===//
//
// What is accepted is loaded and runs one step, if it is small.
//
//===----------------------------------------------------------------------===//

#include "PlanMutator.h"
#include "Target.h"
#include "fsdp/Runtime/Data/Data.h"
#include "fsdp/Symbolic/VerifyPlan.h"

using namespace fsdp;
using namespace fsdp::fuzz;

/// What a step may take of this machine, where a kernel may have 64 times the
/// bytes of its tensors.
static bool isSmall(const planfile::Plan &plan, unsigned ranks) {
  constexpr uint64_t mostBytes = 4 << 20;
  return ranks <= 4 && plan.device()->string_view() == "cpu" &&
         plan.device_bytes() <= mostBytes && plan.host_bytes() <= mostBytes;
}

static void runStep(const planfile::Plan &plan, unsigned ranks) {
  Session session(plan, ranks);
  session.run();
  session.run("step", {.update = false});
  using Kind = TensorName::Kind;
  for (Kind kind :
       {Kind::Parameter, Kind::Gradient, Kind::OptimizerState, Kind::Buffer})
    for (const TensorName &tensor : session.tensors(kind))
      session.write(tensor, session.read(tensor));
  static_cast<void>(session.findDirtyPadding(true));
  session.loss();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  auto file = planfile::PlanFile::fromBytes("plan", {data, data + size});
  if (!file)
    return 0;
  static_cast<void>(symbolic::verifyPlan(file->plan()));
  unsigned ranks = planfile::getRankCount(file->plan());
  if (!isSmall(file->plan(), ranks))
    return 0;
  try {
    runStep(file->plan(), ranks);
  } catch (const Error &) {
    // Said in a sentence: all is well.
  }
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maxSize,
                               unsigned seed) {
  Random random(seed);
  std::vector<uint8_t> file = mutatePlan({data, data + size}, random, maxSize);
  return putInput(data, maxSize,
                  {reinterpret_cast<const char *>(file.data()), file.size()});
}
