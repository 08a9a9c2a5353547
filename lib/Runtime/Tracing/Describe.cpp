//===- Describe.cpp - The commands of a plan in words ---------------------===//

#include "Describe.h"

#include "fsdp/PlanFile/Steps.h"

using namespace fsdp;

static std::string spellName(const planfile::PlanFile &plan,
                             const planfile::Command &command) {
  if (const auto *launch = command.step_as_Launch())
    return std::string(
        plan.string(plan->operators()->Get(launch->op())->name()));
  if (const auto *update = command.step_as_Update())
    return std::string(planfile::getFacts(update->rule()).name);
  if (const auto *measure = command.step_as_Measure())
    return planfile::toSnakeCase(EnumNameMeasureKind(measure->kind()));
  return planfile::toSnakeCase(EnumNameStep(command.step_type()));
}

CommandFacts fsdp::getFacts(const planfile::PlanFile &plan,
                            const planfile::Command &command) {
  CommandFacts facts{
      spellName(plan, command), getUnit(command), getCommunicator(command), {}};
  forEachBuffer(plan.plan(), command, [&](std::uint32_t buffer, bool) {
    facts.buffers.push_back(buffer);
  });
  return facts;
}

const char *fsdp::getName(planfile::Stream stream) {
  static const char *const names[] = {"compute", "gather", "reduce",
                                      "all_reduce", "copy"};
  return names[static_cast<unsigned>(stream)];
}

std::uint64_t fsdp::getBytes(const planfile::PlanFile &plan,
                             std::uint32_t buffer) {
  const planfile::Buffer &b = *plan->buffers()->Get(buffer);
  std::uint64_t bytes = planfile::getItemSize(b.dtype());
  for (std::int64_t size : plan.shape(b.sizes()))
    bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}
