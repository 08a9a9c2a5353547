//===- Describe.cpp - The commands of a plan in words ---------------------===//

#include "Describe.h"

using namespace fsdp;
using planfile::Step;

static void addLaunch(CommandFacts &facts, const planfile::PlanFile &plan,
                      const planfile::Launch &launch) {
  facts.name = plan.string(plan->operators()->Get(launch.op())->name());
  for (std::int32_t arg : *launch.args()) {
    if (arg >= 0) {
      facts.buffers.push_back(static_cast<std::uint32_t>(arg));
      continue;
    }
    const auto *refs = plan->constants()
                           ->Get(static_cast<std::uint32_t>(~arg))
                           ->value_as_Refs();
    if (!refs)
      continue;
    for (std::int32_t ref : *refs->values())
      if (ref >= 0)
        facts.buffers.push_back(static_cast<std::uint32_t>(ref));
  }
  if (launch.results())
    for (std::uint32_t result : *launch.results())
      if (result != planfile::none)
        facts.buffers.push_back(result);
}

CommandFacts fsdp::getFacts(const planfile::PlanFile &plan,
                            const planfile::Command &command) {
  CommandFacts facts;
  auto collective = [&](const char *name, const auto &step) {
    facts = {
        name, step.unit(), step.communicator(), {step.source(), step.target()}};
  };
  switch (command.step_type()) {
  case Step::Launch:
    addLaunch(facts, plan, *command.step_as_Launch());
    break;
  case Step::AllGather:
    collective("all_gather", *command.step_as_AllGather());
    break;
  case Step::ReduceScatter:
    collective("reduce_scatter", *command.step_as_ReduceScatter());
    break;
  case Step::AllReduce:
    collective("all_reduce", *command.step_as_AllReduce());
    break;
  case Step::Update: {
    const auto &step = *command.step_as_Update();
    facts = {std::string(planfile::getFacts(step.rule()).name),
             step.unit(),
             planfile::none,
             {step.parameter(), step.gradient()}};
    facts.buffers.insert(facts.buffers.end(), step.states()->begin(),
                         step.states()->end());
    break;
  }
  case Step::Measure: {
    const auto &step = *command.step_as_Measure();
    static const char *const names[] = {"squared_norm", "found_inf", "abs_sum",
                                        "abs_max"};
    facts = {names[static_cast<unsigned>(step.kind())],
             step.unit(),
             planfile::none,
             {step.source(), step.target()}};
    if (step.initial() != planfile::none)
      facts.buffers.push_back(step.initial());
    break;
  }
  case Step::Accumulate: {
    const auto &add = *command.step_as_Accumulate();
    facts = {
        "accumulate", add.unit(), planfile::none, {add.source(), add.target()}};
    break;
  }
  case Step::Zero:
    facts.name = "zero";
    facts.buffers = {command.step_as_Zero()->target()};
    break;
  case Step::Copy:
    facts.name = "copy";
    facts.buffers = {command.step_as_Copy()->source(),
                     command.step_as_Copy()->target()};
    break;
  case Step::Piece: {
    const auto &piece = *command.step_as_Piece();
    facts = {"piece",
             piece.unit(),
             planfile::none,
             {piece.source(), piece.target()}};
    break;
  }
  case Step::Record:
    facts.name = "record";
    break;
  default:
    facts.name = "wait";
    break;
  }
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
