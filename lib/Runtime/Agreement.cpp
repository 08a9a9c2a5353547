//===- Agreement.cpp - Ranks that run the same collectives ----------------===//

#include "fsdp/Runtime/Agreement.h"

#include "fsdp/Runtime/Error.h"

using namespace fsdp;
using planfile::PlanFile;

[[noreturn]] static void disagree(const PlanFile &plan, std::size_t rank,
                                  const std::string &expected,
                                  const std::string &found) {
  throw Error(plan.name() + ", rank " + std::to_string(rank) + ": expected " +
                  expected + " as on rank 0, found " + found,
              Failure::CheckFailed);
}

static void compareSequences(const PlanFile &first, const PlanFile &plan,
                             std::size_t rank, std::uint32_t communicator) {
  std::vector<std::string> expected =
      planfile::getCollectives(first.plan())[communicator];
  std::vector<std::string> found =
      planfile::getCollectives(plan.plan())[communicator];
  std::size_t at = 0;
  while (at < expected.size() && at < found.size() && expected[at] == found[at])
    ++at;
  auto spell = [&](const std::vector<std::string> &sequence) {
    return at < sequence.size() ? sequence[at] : std::string("the end");
  };
  std::string name(
      plan.string(plan->communicators()->Get(communicator)->name()));
  disagree(plan, rank,
           "collective " + std::to_string(at) + " of communicator " + name +
               " to be " + spell(expected),
           spell(found));
}

void fsdp::checkAgreement(std::span<const PlanFile> plans) {
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    const PlanFile &first = plans[0], &plan = plans[rank];
    std::uint32_t count = first->digest()->size();
    if (plan->digest()->size() != count)
      disagree(plan, rank, std::to_string(count) + " communicators",
               std::to_string(plan->digest()->size()));
    for (std::uint32_t i = 0; i != count; ++i)
      if (first->digest()->Get(i)->string_view() !=
          plan->digest()->Get(i)->string_view())
        compareSequences(first, plan, rank, i);
    if (first.bytes() != plan.bytes())
      disagree(plan, rank, "the same plan",
               "another one with the same collectives");
  }
}
