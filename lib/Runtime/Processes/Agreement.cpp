//===- Agreement.cpp - Ranks that run the same collectives ----------------===//

#include "fsdp/Runtime/Processes/Agreement.h"

#include <algorithm>

using namespace fsdp;
using planfile::PlanFile;

[[noreturn]] static void disagree(const std::string &who,
                                  const std::string &expected,
                                  const std::string &found) {
  throw Error(who + ": expected " + expected + " as on rank 0, found " + found,
              Failure::CheckFailed);
}

/// A line for each collective, after one that names its communicator.
static constexpr std::string_view heading = "communicator ";

std::string fsdp::describeCollectives(const planfile::Plan &plan) {
  std::string text;
  std::uint32_t communicator = 0;
  for (const auto &sequence : planfile::getCollectives(plan)) {
    std::uint32_t name = plan.communicators()->Get(communicator++)->name();
    text.append(heading);
    if (name != planfile::none)
      text += plan.strings()->Get(name)->string_view();
    text += '\n';
    for (const std::string &collective : sequence)
      text += collective + '\n';
  }
  return text;
}

void fsdp::checkCollectives(const std::string &who, const planfile::Plan &plan,
                            const std::string &expected) {
  std::string found = describeCollectives(plan);
  if (found == expected)
    return;
  // What is the same in both ends with a whole line.
  std::size_t begin = 0, place = 0;
  std::string communicator;
  auto lineOf = [&](const std::string &text) {
    std::size_t start = std::min(begin, text.size());
    return text.substr(start, text.find('\n', start) - start);
  };
  auto isCollective = [](const std::string &line) {
    return !line.empty() && !line.starts_with(heading);
  };
  for (std::string line = lineOf(expected);
       line == lineOf(found) && begin < std::max(expected.size(), found.size());
       line = lineOf(expected)) {
    begin += line.size() + 1;
    place = isCollective(line) ? place + 1 : 0;
    if (!isCollective(line))
      communicator = line;
  }
  auto spell = [&](const std::string &text) {
    std::string line = lineOf(text);
    return isCollective(line) ? line : "the end";
  };
  if (spell(expected) == spell(found))
    disagree(who, "other communicators", "these");
  disagree(who,
           "collective " + std::to_string(place) + " of " + communicator +
               " to be " + spell(expected),
           spell(found));
}

void fsdp::checkAgreement(std::span<const PlanFile> plans) {
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    const PlanFile &first = plans[0], &plan = plans[rank];
    std::string who = plan.name() + ", rank " + std::to_string(rank);
    std::uint32_t count = first->digest()->size();
    if (plan->digest()->size() != count)
      disagree(who, std::to_string(count) + " communicators",
               std::to_string(plan->digest()->size()));
    checkCollectives(who, plan.plan(), describeCollectives(first.plan()));
    if (first.bytes() != plan.bytes())
      disagree(who, "the same plan", "another one with the same collectives");
  }
}

std::string fsdp::encodeFailure(const Error &error) {
  return std::to_string(error.exitCode()) + error.what();
}

Error fsdp::decodeFailure(const std::string &text) {
  for (Failure kind :
       {Failure::Rejected, Failure::CheckFailed, Failure::RankFailed})
    if (text.starts_with(std::to_string(static_cast<int>(kind))))
      return Error(text.substr(1), kind);
  return Error("expected why another process has failed, found '" +
                   text.substr(0, 40) + "'",
               Failure::RankFailed);
}

static const char *const failureKey = "failure";

Error fsdp::tellFailure(Store &store, const Error &error) {
  return decodeFailure(store.setFirst(failureKey, encodeFailure(error)));
}

std::optional<Error> fsdp::findFailure(Store &store,
                                       std::chrono::milliseconds timeout) {
  if (auto text = store.get(failureKey, timeout))
    return decodeFailure(*text);
  return std::nullopt;
}
