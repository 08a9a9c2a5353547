//===- Report.cpp - One page about a plan ---------------------------------===//

#include "Report.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Planner/MemoryAssignment.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

using namespace fsdp;
namespace pf = fsdp::planfile;

namespace {

using pf::none;

llvm::StringRef roleName(pf::BufferRole role) {
  switch (role) {
  case pf::BufferRole::Transient:
    return "activations and temporaries";
  case pf::BufferRole::Shard:
    return "parameter shards";
  case pf::BufferRole::OptimizerState:
    return "optimizer state";
  case pf::BufferRole::Gradient:
    return "reduced gradients";
  case pf::BufferRole::ModelBuffer:
    return "model buffers";
  case pf::BufferRole::Constant:
    return "constants";
  case pf::BufferRole::Result:
    return "results of init";
  case pf::BufferRole::Input:
    return "inputs";
  case pf::BufferRole::Loss:
    return "loss";
  case pf::BufferRole::Output:
    return "outputs";
  case pf::BufferRole::Hyper:
    return "hyper-parameters";
  case pf::BufferRole::Accumulator:
    return "accumulated gradients";
  case pf::BufferRole::Unsharded:
    return "gathered parameters of a whole step";
  }
  return "";
}

/// Reads one plan; every accessor takes indices that the checks have proved.
class Summarizer {
public:
  explicit Summarizer(const pf::Plan &plan) : plan(plan) {}

  PlanSummary run() {
    summary.device = plan.device()->str();
    summary.strategy = plan.strategy() ? plan.strategy()->str() : "";
    for (const pf::MeshAxis *axis : *plan.mesh())
      summary.mesh.emplace_back(text(axis->name()), axis->size());
    summary.ranks = pf::getRankCount(plan);
    summary.persistentBytes = plan.persistent_bytes();
    summary.arenaBytes = plan.device_bytes();
    summary.pinnedBytes = plan.pinned_bytes();
    summary.hostBytes = plan.host_bytes() + plan.pinned_bytes();
    addUnits();
    addPersistent();
    for (const pf::Program *program : *plan.programs()) {
      if (program->is_init())
        summary.initLaunches += countLaunches(*program);
      else
        addProgram(*program);
    }
    addCalls();
    if (plan.unproved())
      summary.unproved = plan.unproved()->str();
    if (plan.notes())
      for (const flatbuffers::String *note : *plan.notes())
        summary.notes.push_back(note->str());
    return std::move(summary);
  }

private:
  std::string text(uint32_t index) const {
    return index == none ? "" : plan.strings()->Get(index)->str();
  }
  const pf::Buffer &buffer(uint32_t index) const {
    return *plan.buffers()->Get(index);
  }
  uint32_t rootOf(uint32_t index) const {
    uint32_t root = buffer(index).root();
    return root == none ? index : root;
  }
  uint64_t bytesOf(uint32_t index) const {
    const pf::Buffer &b = buffer(index);
    auto *sizes = plan.shapes()->Get(b.sizes())->values();
    auto *strides = plan.shapes()->Get(b.strides())->values();
    uint64_t last = 0;
    for (unsigned d = 0; d != sizes->size(); ++d) {
      if (sizes->Get(d) == 0)
        return 0;
      last += uint64_t(sizes->Get(d) - 1) * strides->Get(d);
    }
    return (last + 1) * pf::getItemSize(b.dtype());
  }

  void addUnits() {
    for (const pf::Unit *unit : *plan.units()) {
      PlanSummary::Unit row;
      row.name = text(unit->name());
      row.elements = unit->numel();
      row.shardBytes =
          unit->numel() / unit->shards() * pf::getItemSize(unit->storage());
      for (const pf::Parameter *parameter : *unit->parameters()) {
        ++row.parameters;
        row.frozen += !parameter->trainable();
      }
      summary.units.push_back(row);
    }
  }

  void addPersistent() {
    // What is offloaded, and all else that persists.
    std::map<std::pair<bool, pf::BufferRole>, PlanSummary::Alive> byRole;
    for (uint32_t i = 0, e = plan.buffers()->size(); i != e; ++i) {
      pf::BufferRole role = buffer(i).role();
      if (rootOf(i) != i || isTransient(i))
        continue;
      bool isOffloaded = buffer(i).space() != pf::Space::Device &&
                         role != pf::BufferRole::Hyper;
      PlanSummary::Alive &row = byRole[{isOffloaded, role}];
      row.what = roleName(role).str();
      row.bytes += bytesOf(i);
      ++row.buffers;
    }
    for (auto &[key, row] : byRole)
      (key.first ? summary.offloaded : summary.persistent).push_back(row);
  }

  bool isTransient(uint32_t root) const {
    return buffer(root).space() == pf::Space::Device &&
           buffer(root).offset() >= plan.persistent_bytes();
  }

  template <typename Callback>
  void forEachBuffer(const pf::Command &command, Callback &&visit) const {
    switch (command.step_type()) {
    case pf::Step::Launch: {
      const pf::Launch *launch = command.step_as_Launch();
      for (int32_t argument : *launch->args()) {
        if (argument >= 0) {
          visit(uint32_t(argument));
          continue;
        }
        const pf::Constant *constant = plan.constants()->Get(~argument);
        if (const pf::Refs *refs = constant->value_as_Refs())
          for (int32_t ref : *refs->values())
            if (ref >= 0)
              visit(uint32_t(ref));
      }
      if (launch->results())
        for (uint32_t result : *launch->results())
          if (result != none)
            visit(result);
      break;
    }
    case pf::Step::AllGather:
      visit(command.step_as_AllGather()->source());
      visit(command.step_as_AllGather()->target());
      break;
    case pf::Step::ReduceScatter:
      visit(command.step_as_ReduceScatter()->source());
      visit(command.step_as_ReduceScatter()->target());
      break;
    case pf::Step::AllReduce:
      visit(command.step_as_AllReduce()->source());
      visit(command.step_as_AllReduce()->target());
      break;
    case pf::Step::Update: {
      const pf::Update &update = *command.step_as_Update();
      visit(update.parameter());
      visit(update.gradient());
      for (uint32_t scalar : {update.clip_factor(), update.loss_scale(),
                              update.found_inf(), update.skipped()})
        if (scalar != none)
          visit(scalar);
      break;
    }
    case pf::Step::Measure:
      visit(command.step_as_Measure()->source());
      visit(command.step_as_Measure()->target());
      break;
    case pf::Step::Zero:
      visit(command.step_as_Zero()->target());
      break;
    case pf::Step::Copy:
      visit(command.step_as_Copy()->source());
      visit(command.step_as_Copy()->target());
      break;
    case pf::Step::Piece:
      visit(command.step_as_Piece()->source());
      visit(command.step_as_Piece()->target());
      break;
    default:
      break;
    }
  }

  void addTraffic(llvm::StringRef kind, unsigned communicator, uint64_t bytes,
                  PlanSummary::Work &work) const {
    std::string name; // of the axes
    for (uint32_t axis : *plan.communicators()->Get(communicator)->axes())
      if (const pf::MeshAxis &own = *plan.mesh()->Get(axis); own.size() != 1)
        name += (name.empty() ? "" : "_") + text(own.name());
    work.add({{{kind.str(), name, 1, bytes}}}, 1);
  }

  void addHostCopy(const pf::Copy &copy, PlanSummary::Work &work) const {
    bool isOnHost = buffer(copy.source()).space() != pf::Space::Device;
    bool goesToHost = buffer(copy.target()).space() != pf::Space::Device;
    if (isOnHost == goesToHost)
      return;
    PlanSummary::Traffic &row = work.hostCopies[goesToHost];
    ++row.calls;
    row.bytes += bytesOf(copy.source());
  }

  void addCollective(const pf::Command &command,
                     PlanSummary::Program &program) {
    if (const auto *gather = command.step_as_AllGather()) {
      uint64_t group = pf::getGroupSize(plan, gather->communicator());
      addTraffic("all_gather", gather->communicator(),
                 bytesOf(gather->source()) * (group - 1), program.work);
      if (gather->unit() != none)
        summary.units[gather->unit()].gathers += program.runs;
    } else if (const auto *reduce = command.step_as_ReduceScatter()) {
      uint64_t group = pf::getGroupSize(plan, reduce->communicator());
      addTraffic("reduce_scatter", reduce->communicator(),
                 bytesOf(reduce->source()) * (group - 1) / group, program.work);
      if (reduce->unit() != none)
        summary.units[reduce->unit()].reductions += program.runs;
    } else if (const auto *all = command.step_as_AllReduce()) {
      uint64_t group = pf::getGroupSize(plan, all->communicator());
      addTraffic("all_reduce", all->communicator(),
                 2 * bytesOf(all->source()) * (group - 1) / group,
                 program.work);
      if (all->unit() != none)
        summary.units[all->unit()].reductions += program.runs;
    }
  }

  /// Copies into or out of one buffer: a collective of each unit.
  void addCopied(const pf::Command &copies, unsigned runs) {
    if (copies.stream() == pf::Stream::Compute)
      return;
    std::set<uint32_t> gathered, reduced;
    forEachBuffer(copies, [&](uint32_t index) {
      const pf::Buffer &root = buffer(rootOf(index));
      if (root.role() == pf::BufferRole::Shard)
        gathered.insert(root.owner());
      else if (root.role() == pf::BufferRole::Gradient)
        reduced.insert(root.owner());
    });
    // That of a single unit says whose it is.
    if (gathered.size() > 1)
      for (uint32_t unit : gathered)
        summary.units[unit].gathers += runs;
    if (reduced.size() > 1)
      for (uint32_t unit : reduced)
        summary.units[unit].reductions += runs;
  }

  static unsigned countLaunches(const pf::Program &program) {
    return llvm::count_if(*program.commands(), [](const pf::Command *command) {
      return command->step_type() == pf::Step::Launch;
    });
  }

  /// When a transient buffer lives, and the command that touches it first.
  struct Life {
    planner::Lifetime time;
    uint32_t first;
  };
  using Lives = std::map<uint32_t, Life>; // by the buffer

  Lives findLives(const pf::Program &program) const {
    std::vector<planner::Command> commands;
    Lives lives;
    for (const pf::Command *command : *program.commands()) {
      planner::Command own;
      own.stream = static_cast<uint32_t>(command->stream());
      own.role = static_cast<uint32_t>(command->role());
      own.group = command->group() == none ? 0 : command->group() + uint64_t(1);
      if (const pf::Record *record = command->step_as_Record()) {
        own.kind = planner::CommandKind::Record;
        own.event = record->event();
      } else if (const pf::Wait *wait = command->step_as_Wait()) {
        own.kind = planner::CommandKind::Wait;
        own.event = wait->event();
      }
      forEachBuffer(*command, [&](uint32_t index) {
        uint32_t root = rootOf(index);
        if (!isTransient(root))
          return;
        own.buffers.push_back(root);
        lives.try_emplace(root, Life{{}, uint32_t(commands.size())});
      });
      commands.push_back(std::move(own));
    }
    std::vector<planner::Lifetime> times = planner::findLives(
        commands, plan.buffers()->size(), uint32_t(pf::Stream::MAX) + 1);
    for (auto &[root, life] : lives) {
      life.time = times[root];
      life.time.bytes = int64_t(bytesOf(root));
      if (buffer(root).role() != pf::BufferRole::Transient) // is read by others
        life.time.end = int64_t(commands.size());
    }
    return lives;
  }

  struct Peak {
    uint64_t bound;  ///< With what lies between buffers for their alignment.
    uint64_t values; ///< Without.
    int64_t time;    ///< Of the bound; -1: nothing is alive.
  };

  /// The persistent region and the most bytes that are alive at once.
  Peak findPeak(const Lives &lives) const {
    std::vector<planner::Lifetime> lifetimes;
    for (auto &[root, life] : lives)
      if (life.time.bytes)
        lifetimes.push_back(life.time);
    int64_t alignment = summary.device == "cuda" ? 512 : 64;
    auto [bound, time] = planner::mostBytesAlive(lifetimes, alignment);
    uint64_t values = planner::mostBytesAlive(lifetimes, 1).first;
    for (const PlanSummary::Alive &row : summary.persistent)
      if (row.what != roleName(pf::BufferRole::Hyper)) // which is on the host
        values += row.bytes;
    return {plan.persistent_bytes() + bound, values,
            lifetimes.empty() ? -1 : time};
  }

  /// How often a step runs it: a step of micro-batches is the first part, the
  /// middle one for all between, and the last; any other step is the first
  /// program.
  unsigned countRuns(const pf::Program &program) const {
    switch (program.part()) {
    case pf::Part::First:
    case pf::Part::Last:
      return 1;
    case pf::Part::Middle:
      return plan.micro_batches() - 2;
    case pf::Part::Whole:
      break;
    }
    return summary.programs.empty();
  }

  void addProgram(const pf::Program &program) {
    PlanSummary::Program row;
    row.name = text(program.name());
    row.runs = countRuns(program);
    for (const pf::Command *command : *program.commands()) {
      if (command->step_type() == pf::Step::Launch) {
        ++row.work.launches;
        addCopied(*command, row.runs);
      } else if (command->step_type() == pf::Step::Copy) {
        ++row.work.copies;
        addHostCopy(*command->step_as_Copy(), row.work);
      }
      addCollective(*command, row);
    }
    if (row.runs)
      summary.step.add(row.work, row.runs);
    // Programs share the bytes that none of them keeps.
    Lives lives = findLives(program);
    Peak peak = findPeak(lives);
    row.lowerBound = peak.bound;
    summary.valueBytes = std::max(summary.valueBytes, peak.values);
    if (peak.bound > summary.lowerBound) {
      summary.lowerBound = peak.bound;
      if (peak.time >= 0)
        setPeak(program, lives, peak.time);
    }
    summary.programs.push_back(std::move(row));
  }

  /// Which operators all programs call, and how often that stands there.
  void addCalls() {
    std::map<std::string, unsigned> hooked, foreign, untrusted;
    for (const pf::Program *program : *plan.programs())
      for (const pf::Command *command : *program->commands()) {
        const pf::Launch *launch = command->step_as_Launch();
        if (!launch || program->is_init())
          continue;
        std::string name = text(plan.operators()->Get(launch->op())->name());
        if (launch->results() && launch->results()->size())
          ++hooked[name];
        llvm::StringRef base = name;
        if (!base.consume_front("aten::"))
          ++foreign[name];
        else if (const auto *facts = fsdp::operators::lookupOpFacts(
                     std::string_view(base.data(), base.size()));
                 facts && !facts->isSafeInPlan())
          ++untrusted[name];
      }
    summary.hooked.assign(hooked.begin(), hooked.end());
    summary.foreign.assign(foreign.begin(), foreign.end());
    summary.untrusted.assign(untrusted.begin(), untrusted.end());
  }

  void setPeak(const pf::Program &program, const Lives &lives,
               int64_t peakTime) {
    const pf::Command *peak = program.commands()->Get(unsigned(peakTime));
    summary.peakAt = text(peak->node()) + ", " +
                     llvm::StringRef(pf::EnumNameRole(peak->role())).lower();

    std::map<std::string, PlanSummary::Alive> rows;
    for (auto &[root, life] : lives) {
      if (life.time.begin > peakTime || life.time.end < peakTime)
        continue;
      std::string what = describe(root, *program.commands()->Get(life.first));
      PlanSummary::Alive &row = rows[what];
      row.what = what;
      row.bytes += bytesOf(root);
      ++row.buffers;
    }
    summary.alive.clear();
    for (auto &[what, row] : rows)
      summary.alive.push_back(row);
    llvm::sort(summary.alive, [](const auto &a, const auto &b) {
      return std::tie(b.bytes, a.what) < std::tie(a.bytes, b.what);
    });
  }

  /// What a transient buffer is for, by the command that first touches it.
  std::string describe(uint32_t root, const pf::Command &first) const {
    uint32_t owner = buffer(root).owner();
    bool isOfUnit = owner != none && !pf::isOfProgram(buffer(root).role());
    std::string unit = isOfUnit ? text(plan.units()->Get(owner)->name()) : "";
    if (const auto *gather = first.step_as_AllGather())
      return gather->unit() == none
                 ? "gathered parameters of several units"
                 : "gathered parameters of " +
                       text(plan.units()->Get(gather->unit())->name());
    if (const auto *piece = first.step_as_Piece();
        piece && piece->unit() != none)
      return "piece of the parameters of " +
             text(plan.units()->Get(piece->unit())->name());
    if (buffer(root).role() == pf::BufferRole::Gradient)
      return "reduced gradients";
    if (!unit.empty())
      return "flat gradient of " + unit;
    std::string scope = text(first.scope()), node = text(first.node());
    if (llvm::any_of(summary.units,
                     [&](const auto &unit) { return unit.name == node; }))
      return "copies of a bucket with " + node;
    return scope.empty() ? node : "made in " + scope;
  }

  const pf::Plan &plan;
  PlanSummary summary;
};

void printCalls(llvm::StringRef title,
                const std::vector<std::pair<std::string, unsigned>> &calls,
                llvm::raw_ostream &os) {
  if (calls.empty())
    return;
  os << title;
  llvm::interleaveComma(calls, os, [&](const auto &call) {
    os << archive::escape(call.first) << " x" << call.second;
  });
  os << "\n";
}

} // namespace

void PlanSummary::Work::add(const Work &other, unsigned times) {
  for (const Traffic &row : other.traffic) {
    auto own = llvm::find_if(traffic, [&](const Traffic &known) {
      return known.kind == row.kind && known.communicator == row.communicator;
    });
    if (own == traffic.end())
      own = traffic.insert(own, {row.kind, row.communicator, 0, 0});
    own->calls += times * row.calls;
    own->bytes += times * row.bytes;
  }
  for (auto [own, row] : llvm::zip_equal(hostCopies, other.hostCopies)) {
    own.calls += times * row.calls;
    own.bytes += times * row.bytes;
  }
  launches += times * other.launches;
  copies += times * other.copies;
}

PlanSummary fsdp::summarize(const pf::Plan &plan) {
  return Summarizer(plan).run();
}

static std::pair<unsigned, uint64_t>
countTraffic(const PlanSummary::Work &work) {
  std::pair<unsigned, uint64_t> sum;
  for (const PlanSummary::Traffic &row : work.traffic) {
    sum.first += row.calls;
    sum.second += row.bytes;
  }
  return sum;
}

static std::string spellTime(int64_t nanoseconds) {
  return nanoseconds ? llvm::formatv("{0:f2} ms", double(nanoseconds) / 1e6)
                     : std::string();
}

/// A row for each, if there are several or times, and one for the step.
static void printPrograms(const PlanSummary &summary, llvm::raw_ostream &os) {
  bool isTimed = llvm::any_of(summary.programs, [](const auto &program) {
    return program.nanoseconds != 0;
  });
  if (summary.programs.size() < 2 && !isTimed)
    return;
  os << "\nprogram           runs/step  launches  collectives    received  "
        "least memory"
     << (isTimed ? "   predicted\n" : "\n");
  auto print = [&](llvm::StringRef name, llvm::StringRef runs,
                   const PlanSummary::Work &work, uint64_t lowerBound,
                   int64_t nanoseconds) {
    auto [calls, bytes] = countTraffic(work);
    os << llvm::formatv("{0,-17} {1,9} {2,9} {3,12} {4,11} {5,13}", name, runs,
                        work.launches, calls, spellBytes(bytes),
                        spellBytes(lowerBound));
    if (isTimed)
      os << llvm::formatv(" {0,11}", spellTime(nanoseconds));
    os << "\n";
  };
  int64_t nanoseconds = 0;
  uint64_t lowerBound = 0;
  for (const PlanSummary::Program &program : summary.programs) {
    print(archive::escape(program.name),
          program.runs ? std::to_string(program.runs) : "-", program.work,
          program.lowerBound, program.nanoseconds);
    nanoseconds += program.runs * program.nanoseconds;
    if (program.runs)
      lowerBound = std::max(lowerBound, program.lowerBound);
  }
  if (llvm::count_if(summary.programs,
                     [](const auto &program) { return program.runs != 0; }) > 1)
    print("a step", "", summary.step, lowerBound, nanoseconds);
}

void fsdp::printReport(const PlanSummary &summary, llvm::raw_ostream &os) {
  os << llvm::formatv("plan for {0} rank{1} (", summary.ranks,
                      summary.ranks == 1 ? "" : "s");
  llvm::interleaveComma(summary.mesh, os, [&](const auto &axis) {
    os << archive::escape(axis.first) << " " << axis.second;
  });
  os << "), " << summary.strategy << ", " << summary.device << "\n\n";

  os << "unit                              parameters      elements   "
        "shard/rank  gathers  reductions\n";
  constexpr size_t mostUnits = 12;
  for (const auto &[i, unit] : llvm::enumerate(summary.units)) {
    if (i == mostUnits) {
      os << llvm::formatv("... and {0} more units\n",
                          summary.units.size() - mostUnits);
      break;
    }
    std::string parameters = std::to_string(unit.parameters);
    if (unit.frozen)
      parameters += " (" + std::to_string(unit.frozen) + " frozen)";
    os << llvm::formatv("{0,-32} {1,11} {2,13} {3,12} {4,8} {5,11}\n",
                        archive::escape(unit.name), parameters, unit.elements,
                        spellBytes(unit.shardBytes), unit.gathers,
                        unit.reductions);
  }

  os << "\nper step and rank\n";
  const PlanSummary::Work &step = summary.step;
  for (const PlanSummary::Traffic &row : step.traffic)
    os << llvm::formatv("  {0,-15} over {1,-11} {2,4} calls {3,12}\n", row.kind,
                        row.communicator, row.calls, spellBytes(row.bytes));
  if (step.traffic.empty())
    os << "  no communication\n";
  for (const PlanSummary::Traffic &row : step.hostCopies)
    if (row.calls)
      os << llvm::formatv("  {0,-15} {1,-16} {2,4} calls {3,12}\n", row.kind,
                          row.communicator, row.calls, spellBytes(row.bytes));
  os << llvm::formatv("  {0} launches, {1} copies", step.launches, step.copies);
  if (summary.recomputed)
    os << llvm::formatv("; {0} operators computed again in the backward",
                        summary.recomputed);
  if (summary.initLaunches)
    os << llvm::formatv("; {0} launches once, at load", summary.initLaunches);
  os << "\n";
  printPrograms(summary, os);

  os << "\nmemory per rank\n";
  for (const PlanSummary::Alive &row : summary.persistent)
    os << llvm::formatv("  {0,-40} {1,12}\n", row.what, spellBytes(row.bytes));
  uint64_t transient = summary.arenaBytes - summary.persistentBytes;
  uint64_t bound = summary.lowerBound - summary.persistentBytes;
  os << llvm::formatv("  {0,-40} {1,12}   lower bound {2} (+{3:f2} %)\n",
                      "activations, gathers and temporaries",
                      spellBytes(transient), spellBytes(bound),
                      bound ? 100.0 * (double(transient) / double(bound) - 1)
                            : 0.0);
  os << llvm::formatv("  {0,-40} {1,12}\n", "arena",
                      spellBytes(summary.arenaBytes));
  if (summary.scheduledBytes) {
    auto change = [](uint64_t from, uint64_t to) {
      return (to < from ? "-" : "+") +
             spellBytes(to < from ? from - to : to - from);
    };
    os << llvm::formatv("  {0,-40} {1,12}   {2} alignment, {3} gaps",
                        "of which values of the schedule",
                        spellBytes(summary.scheduledBytes),
                        change(summary.valueBytes, summary.lowerBound),
                        change(summary.lowerBound, summary.arenaBytes));
    // See "A budget is checked twice" in docs/Rationale.md.
    if (summary.valueBytes != summary.scheduledBytes)
      os << ", " << change(summary.scheduledBytes, summary.valueBytes)
         << " that the schedule does not count";
    os << "\n";
  }
  if (!summary.alive.empty()) {
    os << "  alive at the peak (" << archive::escape(summary.peakAt) << "):\n";
    for (const PlanSummary::Alive &row :
         llvm::ArrayRef(summary.alive).take_front(8))
      os << llvm::formatv("    {0,-46} {1,3} buffer{2} {3,11}\n",
                          archive::escape(row.what), row.buffers,
                          row.buffers == 1 ? " " : "s", spellBytes(row.bytes));
    if (summary.alive.size() > 8) {
      uint64_t rest = 0;
      for (const PlanSummary::Alive &row :
           llvm::ArrayRef(summary.alive).drop_front(8))
        rest += row.bytes;
      os << llvm::formatv("    and {0} others {1}\n", summary.alive.size() - 8,
                          spellBytes(rest));
    }
  }
  if (!summary.offloaded.empty()) {
    os << "\nhost memory per rank\n";
    for (const PlanSummary::Alive &row : summary.offloaded)
      os << llvm::formatv("  {0,-40} {1,12}\n", row.what,
                          spellBytes(row.bytes));
    os << llvm::formatv("  {0,-40} {1,12}   {2} of it pinned\n", "host arena",
                        spellBytes(summary.hostBytes),
                        spellBytes(summary.pinnedBytes));
  }
  os << "\n";
  printCalls("through the allocator hook: ", summary.hooked, os);
  printCalls("custom operators (fsdp-run needs --load): ", summary.foreign, os);
  printCalls("operators not known to be safe (fsdp-run needs --trust): ",
             summary.untrusted, os);
  for (const std::string &note : summary.notes)
    os << "note: " << archive::escape(note) << "\n";
  if (!summary.unproved.empty())
    os << "not proved: " << archive::escape(summary.unproved) << "\n";
}

llvm::json::Value fsdp::toJSON(const PlanSummary &summary) {
  using llvm::json::Array;
  using llvm::json::Object;
  Object mesh, hooked, foreign, untrusted;
  for (const auto &[name, size] : summary.mesh)
    mesh[name] = int64_t(size);
  for (const auto &[name, calls] : summary.hooked)
    hooked[name] = calls;
  for (const auto &[name, calls] : summary.foreign)
    foreign[name] = calls;
  for (const auto &[name, calls] : summary.untrusted)
    untrusted[name] = calls;
  Array units, traffic, hostCopies, persistent, offloaded, alive, notes,
      programs;
  for (const PlanSummary::Unit &unit : summary.units)
    units.push_back(Object{{"name", unit.name},
                           {"parameters", int64_t(unit.parameters)},
                           {"frozen", int64_t(unit.frozen)},
                           {"elements", int64_t(unit.elements)},
                           {"shard_bytes", int64_t(unit.shardBytes)},
                           {"gathers", unit.gathers},
                           {"reductions", unit.reductions}});
  for (const PlanSummary::Traffic &row : summary.step.traffic)
    traffic.push_back(Object{{"kind", row.kind},
                             {"communicator", row.communicator},
                             {"calls", row.calls},
                             {"bytes", int64_t(row.bytes)}});
  for (const PlanSummary::Traffic &row : summary.step.hostCopies)
    if (row.calls)
      hostCopies.push_back(Object{{"copied", row.communicator},
                                  {"calls", row.calls},
                                  {"bytes", int64_t(row.bytes)}});
  auto aliveRow = [](const PlanSummary::Alive &row) {
    return Object{{"what", row.what},
                  {"bytes", int64_t(row.bytes)},
                  {"buffers", row.buffers}};
  };
  for (const PlanSummary::Alive &row : summary.persistent)
    persistent.push_back(aliveRow(row));
  for (const PlanSummary::Alive &row : summary.offloaded)
    offloaded.push_back(aliveRow(row));
  for (const PlanSummary::Alive &row : summary.alive)
    alive.push_back(aliveRow(row));
  for (const std::string &note : summary.notes)
    notes.push_back(note);
  for (const PlanSummary::Program &program : summary.programs) {
    auto [calls, bytes] = countTraffic(program.work);
    programs.push_back(
        Object{{"name", program.name},
               {"runs", program.runs},
               {"launches", program.work.launches},
               {"copies", program.work.copies},
               {"collectives", calls},
               {"bytes", int64_t(bytes)},
               {"predicted_ns", program.nanoseconds},
               {"lower_bound_bytes", int64_t(program.lowerBound)}});
  }
  return Object{
      {"ranks", int64_t(summary.ranks)},
      {"mesh", std::move(mesh)},
      {"strategy", summary.strategy},
      {"device", summary.device},
      {"units", std::move(units)},
      {"collectives", std::move(traffic)},
      {"host_copies", std::move(hostCopies)},
      {"launches", summary.step.launches},
      {"copies", summary.step.copies},
      {"init_launches", summary.initLaunches},
      {"recomputed", summary.recomputed},
      {"programs", std::move(programs)},
      {"memory", Object{{"arena_bytes", int64_t(summary.arenaBytes)},
                        {"persistent_bytes", int64_t(summary.persistentBytes)},
                        {"host_bytes", int64_t(summary.hostBytes)},
                        {"pinned_bytes", int64_t(summary.pinnedBytes)},
                        {"lower_bound_bytes", int64_t(summary.lowerBound)},
                        {"value_bytes", int64_t(summary.valueBytes)},
                        {"scheduled_bytes", int64_t(summary.scheduledBytes)},
                        {"persistent", std::move(persistent)},
                        {"offloaded", std::move(offloaded)},
                        {"peak_at", summary.peakAt},
                        {"alive_at_peak", std::move(alive)}}},
      {"hooked", std::move(hooked)},
      {"custom_operators", std::move(foreign)},
      {"untrusted_operators", std::move(untrusted)},
      {"notes", std::move(notes)},
      {"unproved", summary.unproved}};
}
