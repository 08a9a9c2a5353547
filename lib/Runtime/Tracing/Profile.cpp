//===- Profile.cpp - Measured times for the compiler ----------------------===//

#include "../Support/Text.h"
#include "Describe.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Tracing/Trace.h"

#include <algorithm>
#include <map>
#include <set>

using namespace fsdp;

static double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

static std::string spellSignature(const planfile::PlanFile &plan,
                                  const CommandFacts &facts) {
  std::string text;
  for (std::uint32_t index : facts.buffers) {
    const planfile::Buffer &buffer = *plan->buffers()->Get(index);
    text += (text.empty() ? "" : ", ") +
            spellTensor(plan.shape(buffer.sizes()),
                        static_cast<archive::DType>(buffer.dtype()));
  }
  return facts.name + "(" + text + ")";
}

namespace {

/// What commands of one kind have in common.
struct Group {
  std::vector<double> seconds;
  std::set<std::uint32_t> commands;
};

class ProfileWriter {
public:
  ProfileWriter(const planfile::PlanFile &plan, const std::vector<Span> &spans,
                std::string_view program)
      : plan(plan), program(program) {
    std::uint64_t first = ~std::uint64_t{0}, last = 0;
    for (const Span &span : spans)
      if (isStep(span)) {
        first = std::min(first, span.update);
        last = std::max(last, span.update);
      }
    if (first < last)
      ++first;
    steps = first <= last ? last - first + 1 : 0;
    for (const Span &span : spans)
      if (isStep(span) && span.update >= first && !span.isDrain)
        add(span);
  }

  std::string run() {
    for (const auto &[key, seconds] : instances)
      collectives[key.second].seconds.push_back(seconds);
    auto add = [&](const char *name, const auto &all, auto addEntry) {
      auto addAll = [&] {
        for (const auto &entry : all)
          json.object([&] { addEntry(entry.first, entry.second); });
      };
      json.attributeArray(name, addAll, archive::JSONWriter::Layout::Lines);
    };
    json.object([&] {
      json.attribute("device", plan->device()->string_view());
      json.attribute("ranks", planfile::getRankCount(plan.plan()));
      json.attribute("steps", steps);
      add("ops", ops, [&](const auto &key, const Group &group) {
        json.attribute("op", key.first);
        json.attribute("signature", key.second);
        addTimes(group);
      });
      add("nodes", nodes, [&](const auto &key, const auto &phases) {
        double seconds = 0;
        for (const auto &[role, commands] : phases)
          for (const auto &[command, measured] : commands)
            seconds += median(measured);
        json.attribute("node", key.first);
        json.attribute("stream", key.second);
        // What the backward computes again counts as another time.
        json.attribute("seconds", seconds / double(phases.size()));
      });
      add("collectives", collectives, [&](const Kind &key, const Group &group) {
        auto [kind, bytes, members] = key;
        json.attribute("kind", kind);
        json.attribute("bytes", bytes);
        json.attribute("ranks", members);
        addTimes(group);
      });
    });
    return json.take() + '\n';
  }

private:
  bool isStep(const Span &span) const {
    return plan.string(plan->programs()->Get(span.program)->name()) == program;
  }
  void addTimes(const Group &group) {
    json.attribute("seconds", median(group.seconds));
    json.attribute("count", group.commands.size());
  }

  void add(const Span &span) {
    const planfile::Command &command =
        *plan->programs()->Get(span.program)->commands()->Get(span.command);
    if (command.step_type() == planfile::Step::Record ||
        command.step_type() == planfile::Step::Wait)
      return;
    CommandFacts facts = getFacts(plan, command);
    double seconds = span.end - span.begin;
    if (facts.communicator != planfile::none) {
      Kind kind{facts.name, getBytes(plan, facts.buffers.front()),
                planfile::getGroupSize(plan.plan(), facts.communicator)};
      collectives[kind].commands.insert(span.command);
      auto [shortest, isNew] =
          instances.try_emplace({{span.update, span.command}, kind}, seconds);
      shortest->second = std::min(shortest->second, seconds);
      return;
    }
    Group &op = ops[{facts.name.substr(0, facts.name.find('.')),
                     spellSignature(plan, facts)}];
    op.seconds.push_back(seconds);
    op.commands.insert(span.command);
    if (std::string node(plan.string(command.node())); !node.empty())
      nodes[{node, getName(command.stream())}][command.role()][span.command]
          .push_back(seconds);
  }

  using Kind = std::tuple<std::string, std::uint64_t, unsigned>;
  archive::JSONWriter json;
  const planfile::PlanFile &plan;
  std::string_view program;
  std::uint64_t steps = 0;
  std::map<std::pair<std::string, std::string>, Group> ops;
  /// By name and stream, role, and command.
  std::map<
      std::pair<std::string, std::string>,
      std::map<planfile::Role, std::map<std::uint32_t, std::vector<double>>>>
      nodes;
  std::map<Kind, Group> collectives;
  /// The shortest of all ranks, by step and command.
  std::map<std::pair<std::pair<std::uint64_t, std::uint32_t>, Kind>, double>
      instances;
};

} // namespace

void fsdp::writeProfile(const std::string &path, const planfile::PlanFile &plan,
                        const std::vector<Span> &spans,
                        std::string_view program) {
  auto written =
      archive::writeFile(path, {ProfileWriter(plan, spans, program).run()});
  if (!written)
    throw Error(written.error().message, Failure::RankFailed);
}
