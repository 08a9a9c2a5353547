//===- Trace.cpp - A run as rows of slices --------------------------------===//

#include "fsdp/Runtime/Tracing/Trace.h"

#include "../Comm/Mesh.h"
#include "../Support/Text.h"
#include "Describe.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Archive/WriteFile.h"

#include <algorithm>
#include <map>
#include <set>

using namespace fsdp;
using planfile::Step;
using planfile::Stream;

namespace {

/// Writes the events of one trace. Times are in microseconds from its start.
class TraceWriter {
public:
  TraceWriter(const planfile::PlanFile &plan, const std::vector<Span> &spans)
      : plan(plan), spans(spans) {
    for (const Span &span : spans)
      start = std::min(start, span.begin);
  }

  std::string run() {
    auto writeEvents = [&] {
      writeRows();
      for (const Span &span : spans)
        writeSlice(span);
      writeArrows();
      writeMemory();
    };
    json.object([&] {
      json.attributeArray("traceEvents", writeEvents,
                          archive::JSONWriter::Layout::Lines);
    });
    return json.take() + '\n';
  }

private:
  /// A run of one program on one rank.
  using Run = std::tuple<unsigned, unsigned, std::uint64_t>;
  static Run runOf(const Span &span) {
    return {span.rank, span.program, span.run};
  }
  const planfile::Command &commandOf(const Span &span) const {
    return *plan->programs()->Get(span.program)->commands()->Get(span.command);
  }
  static bool isEvent(Step step) {
    return step == Step::Record || step == Step::Wait;
  }
  /// Microseconds, without the digits that are noise.
  static archive::JSONWriter::Rounded microseconds(double seconds) {
    return {1e6 * seconds, 12};
  }

  /// An event: what all have, and what `addRest` adds.
  template <typename Rest>
  void add(const char *phase, unsigned rank, unsigned row, double seconds,
           std::string_view name, const Rest &addRest) {
    json.object([&] {
      json.attribute("ph", phase);
      json.attribute("pid", rank);
      json.attribute("tid", row);
      json.attribute("ts", microseconds(seconds - start));
      json.attribute("name", name);
      addRest();
    });
  }

  void writeRows() {
    std::set<std::pair<unsigned, unsigned>> rows;
    for (const Span &span : spans)
      rows.emplace(span.rank, static_cast<unsigned>(span.stream));
    auto addName = [&](unsigned rank, unsigned row, const char *what,
                       const std::string &name) {
      add("M", rank, row, start, what, [&] {
        json.attributeObject("args", [&] { json.attribute("name", name); });
      });
    };
    for (auto [rank, row] : rows) {
      addName(rank, row, "process_name", "rank " + std::to_string(rank));
      addName(rank, row, "thread_name", getName(static_cast<Stream>(row)));
    }
  }

  void writeSlice(const Span &span) {
    const planfile::Command &command = commandOf(span);
    bool waits = span.isDrain || command.step_type() == Step::Wait;
    // What was not waited for is not worth a slice.
    if (command.step_type() == Step::Record ||
        (waits && span.end - span.begin < 1e-6))
      return;
    CommandFacts facts = getFacts(plan, command);
    std::string name = span.isDrain ? "drain " + facts.name : facts.name;
    if (facts.unit != planfile::none) {
      std::string_view unit =
          plan.string(plan->units()->Get(facts.unit)->name());
      name.append(" ").append(unit);
    }
    auto describe = [&](const char *key, std::string_view value) {
      if (!value.empty())
        json.attribute(key, value);
    };
    auto addArguments = [&] {
      json.attribute("step", span.update + 1);
      if (facts.communicator != planfile::none)
        json.attribute("bytes", getBytes(plan, facts.buffers.front()));
      describe("node", plan.string(command.node()));
      describe("scope", plan.string(command.scope()));
    };
    std::string role = EnumNameRole(command.role());
    role[0] = static_cast<char>(std::tolower(role[0]));
    add("X", span.rank, static_cast<unsigned>(span.stream), span.begin, name,
        [&] {
          json.attribute("dur", microseconds(span.end - span.begin));
          json.attribute("cat", role);
          json.attributeObject("args", addArguments);
        });
  }

  /// From the collective before a record to what follows the wait.
  void writeArrows() {
    std::map<std::pair<Run, std::uint32_t>, const Span *> recorded;
    std::map<std::pair<Run, Stream>, const Span *> latest;
    for (const Span &span : spans) {
      const planfile::Command &command = commandOf(span);
      if (const auto *record = command.step_as_Record())
        recorded[{runOf(span), record->event()}] =
            latest[{runOf(span), span.stream}];
      else if (command.step_type() != Step::Wait && !span.isDrain)
        latest[{runOf(span), span.stream}] = &span;
    }
    std::map<std::pair<Run, Stream>, std::vector<const Span *>> waiting;
    std::size_t arrows = 0;
    for (const Span &span : spans) {
      std::vector<const Span *> &sources = waiting[{runOf(span), span.stream}];
      const planfile::Command &command = commandOf(span);
      if (const auto *wait = command.step_as_Wait()) {
        const Span *source = recorded[{runOf(span), wait->event()}];
        if (source &&
            getFacts(plan, commandOf(*source)).communicator != planfile::none)
          sources.push_back(source);
      } else if (!isEvent(command.step_type()) && !span.isDrain) {
        for (const Span *source : sources) {
          auto addEnd = [&](const char *phase, const Span &at, bool isTarget) {
            add(phase, at.rank, static_cast<unsigned>(at.stream), at.begin,
                "wait", [&] {
                  json.attribute("cat", "wait");
                  json.attribute("id", arrows);
                  if (isTarget)
                    json.attribute("bp", "e");
                });
          };
          addEnd("s", *source, false);
          addEnd("f", span, true);
          ++arrows;
        }
        sources.clear();
      }
    }
  }

  /// Bytes of the arena by what they are for: the names are those of
  /// `fsdp-plan --trace`.
  using Kinds = std::map<std::string, std::int64_t>;

  /// What outlives a program, which is alive all the time.
  Kinds getPersistent() const {
    Kinds kinds;
    std::int64_t rest = static_cast<std::int64_t>(plan->persistent_bytes());
    for (std::uint32_t i = 0; i != plan->buffers()->size(); ++i) {
      const planfile::Buffer &buffer = *plan->buffers()->Get(i);
      bool isShard = buffer.role() == planfile::BufferRole::Shard;
      if (buffer.root() != i ||
          (!isShard && buffer.role() != planfile::BufferRole::OptimizerState))
        continue;
      auto bytes = static_cast<std::int64_t>(getBytes(plan, i));
      kinds[isShard ? "shards" : "optimizer"] += bytes;
      rest -= bytes;
    }
    kinds["other"] = rest;
    return kinds;
  }

  std::uint32_t getRoot(std::uint32_t buffer) const {
    return plan->buffers()->Get(buffer)->root();
  }

  /// The buffers that hold gathered units: targets of all-gathers, and what is
  /// copied out of one that several units share.
  std::set<std::uint32_t> findGathered() const {
    std::set<std::uint32_t> gathered;
    for (const planfile::Program *program : *plan->programs())
      for (const planfile::Command *command : *program->commands()) {
        CommandFacts facts = getFacts(plan, *command);
        auto isGathered = [&](std::uint32_t buffer) {
          return gathered.count(getRoot(buffer)) != 0;
        };
        if (const auto *gather = command->step_as_AllGather())
          gathered.insert(getRoot(gather->target()));
        else if (facts.name == "aten::split_with_sizes_copy.out" &&
                 std::any_of(facts.buffers.begin(), facts.buffers.end(),
                             isGathered))
          for (std::uint32_t buffer : facts.buffers)
            gathered.insert(getRoot(buffer));
      }
    return gathered;
  }

  /// A run of a program's use of a buffer that owns bytes.
  struct Life {
    double begin, end;
    planfile::Role first, last;
  };

  /// A buffer is alive from its first command to its last.
  void writeMemory() {
    std::map<std::pair<Run, std::uint32_t>, Life> lives;
    for (const Span &span : spans) {
      if (span.isDrain)
        continue;
      const planfile::Command &command = commandOf(span);
      for (std::uint32_t buffer : getFacts(plan, command).buffers) {
        std::uint32_t root = getRoot(buffer);
        const planfile::Buffer &owner = *plan->buffers()->Get(root);
        if (owner.space() != planfile::Space::Device ||
            owner.offset() < plan->persistent_bytes())
          continue;
        auto [entry, isNew] = lives.try_emplace(
            {runOf(span), root},
            Life{span.begin, span.end, command.role(), command.role()});
        Life &life = entry->second;
        life.begin = std::min(life.begin, span.begin);
        life.first = std::min(life.first, command.role());
        life.end = std::max(life.end, span.end);
        life.last = std::max(life.last, command.role());
      }
    }
    std::set<std::uint32_t> gathered = findGathered();
    std::map<std::pair<unsigned, double>, Kinds> changes;
    for (const auto &[key, life] : lives) {
      auto bytes = static_cast<std::int64_t>(getBytes(plan, key.second));
      bool isKept = life.first == planfile::Role::Forward &&
                    life.last != planfile::Role::Forward;
      const char *kind = gathered.count(key.second) ? "gathered"
                         : isKept                   ? "activations"
                                                    : "temporaries";
      unsigned rank = std::get<0>(key.first);
      changes[{rank, life.begin}][kind] += bytes;
      changes[{rank, life.end}][kind] -= bytes;
    }
    std::map<unsigned, Kinds> alive;
    for (const auto &[key, change] : changes) {
      Kinds &kinds =
          alive.try_emplace(key.first, getPersistent()).first->second;
      for (const auto &[kind, bytes] : change)
        kinds[kind] += bytes;
      std::int64_t total = 0;
      for (const auto &[kind, bytes] : kinds)
        total += bytes;
      auto addBytes = [&] {
        json.attribute("bytes alive", total);
        for (const auto &[kind, bytes] : kinds)
          json.attribute(kind, bytes);
      };
      add("C", key.first, 0, key.second, "arena",
          [&] { json.attributeObject("args", addBytes); });
    }
  }

  const planfile::PlanFile &plan;
  const std::vector<Span> &spans;
  double start = 1e300;
  archive::JSONWriter json;
};

} // namespace

void fsdp::writeTrace(const std::string &path, const planfile::PlanFile &plan,
                      const std::vector<Span> &spans) {
  auto written = archive::writeFile(path, {TraceWriter(plan, spans).run()});
  if (!written)
    throw Error(written.error().message, Failure::RankFailed);
}

static const planfile::Command &commandOf(const planfile::PlanFile &plan,
                                          const Span &span) {
  return *plan->programs()->Get(span.program)->commands()->Get(span.command);
}

std::string fsdp::describe(const planfile::PlanFile &plan, const Span &span) {
  CommandFacts facts = getFacts(plan, commandOf(plan, span));
  std::string text =
      "step " + std::to_string(span.update + 1) + ", program " +
      std::string(plan.string(plan->programs()->Get(span.program)->name())) +
      ", command " + std::to_string(span.command) + ", " + facts.name;
  if (facts.unit != planfile::none)
    text += " of unit " +
            std::string(plan.string(plan->units()->Get(facts.unit)->name()));
  return text;
}

std::vector<unsigned> fsdp::membersOf(const planfile::PlanFile &plan,
                                      const Span &collective) {
  return groupOf(plan.plan(),
                 getFacts(plan, commandOf(plan, collective)).communicator,
                 collective.rank)
      .members;
}
