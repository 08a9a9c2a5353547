//===- Summary.cpp - What there is to know about a plan -------------------===//

#include "Summary.h"

#include "fsdp/Operators/OpFacts.h"
#include "fsdp/PlanFile/Steps.h"
#include "fsdp/Planner/MemoryAssignment.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

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
    summary.hooked.assign(hooked.begin(), hooked.end());
    summary.foreign.assign(foreign.begin(), foreign.end());
    summary.untrusted.assign(untrusted.begin(), untrusted.end());
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
  std::string unitName(uint32_t index) const {
    return text(plan.units()->Get(index)->name());
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
    pf::forEachBuffer(plan, copies, [&](uint32_t index, bool) {
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

  void addCall(const pf::Launch &launch) {
    std::string name = text(plan.operators()->Get(launch.op())->name());
    if (launch.results() && launch.results()->size())
      ++hooked[name];
    llvm::StringRef base = name;
    if (!base.consume_front("aten::"))
      ++foreign[name];
    else if (const auto *facts = fsdp::operators::lookupOpFacts(
                 std::string_view(base.data(), base.size()));
             facts && !facts->isSafeInPlan())
      ++untrusted[name];
  }

  static unsigned countLaunches(const pf::Program &program) {
    return llvm::count_if(*program.commands(), [](const pf::Command *command) {
      return command->step_type() == pf::Step::Launch;
    });
  }

  /// When a transient buffer lives, and the commands that touch it first and
  /// last.
  struct Life {
    planner::Lifetime time;
    uint32_t first, last;
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
      pf::forEachBuffer(plan, *command, [&](uint32_t index, bool) {
        uint32_t root = rootOf(index);
        if (!isTransient(root))
          return;
        own.buffers.push_back(root);
        uint32_t place = commands.size();
        lives.try_emplace(root, Life{{}, place, place}).first->second.last =
            place;
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
      if (const pf::Launch *launch = command->step_as_Launch()) {
        ++row.work.launches;
        addCall(*launch);
        addCopied(*command, row.runs);
      } else if (command->step_type() == pf::Step::Copy) {
        ++row.work.copies;
        addHostCopy(*command->step_as_Copy(), row.work);
      }
      addCollective(*command, row);
    }
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

  void setPeak(const pf::Program &program, const Lives &lives,
               int64_t peakTime) {
    const pf::Command *peak = program.commands()->Get(unsigned(peakTime));
    summary.peakAt = text(peak->node()) + ", " +
                     llvm::StringRef(pf::EnumNameRole(peak->role())).lower();

    std::map<std::string, PlanSummary::Alive> rows;
    for (auto &[root, life] : lives) {
      if (life.time.begin > peakTime || life.time.end < peakTime)
        continue;
      PlanSummary::Alive what = describe(root, life, program);
      PlanSummary::Alive &row = rows.try_emplace(what.what, what).first->second;
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
  PlanSummary::Alive describe(uint32_t root, const Life &life,
                              const pf::Program &program) const {
    auto make = [](std::string kind, llvm::StringRef relation,
                   std::string place) {
      return PlanSummary::Alive{kind + relation.str() + place, 0, 0, kind,
                                place};
    };
    const pf::Command &first = *program.commands()->Get(life.first);
    uint32_t owner = buffer(root).owner();
    bool isOfUnit = owner != none && !pf::isOfProgram(buffer(root).role());
    std::string unit = isOfUnit ? unitName(owner) : "";
    if (const auto *gather = first.step_as_AllGather())
      return make("gathered parameters", " of ",
                  gather->unit() == none ? "several units"
                                         : unitName(gather->unit()));
    if (const auto *piece = first.step_as_Piece();
        piece && piece->unit() != none)
      return make("pieces of parameters", " of ", unitName(piece->unit()));
    if (buffer(root).role() == pf::BufferRole::Gradient)
      return make("reduced gradients", " of ", unit.empty() ? "a step" : unit);
    if (!unit.empty())
      return make("flat gradients", " of ", unit);
    std::string scope = text(first.scope()), node = text(first.node());
    if (llvm::any_of(summary.units,
                     [&](const auto &unit) { return unit.name == node; }))
      return make("buckets", " with ", node);
    bool isKept =
        first.role() == pf::Role::Forward &&
        program.commands()->Get(life.last)->role() != pf::Role::Forward;
    PlanSummary::Alive made = make(isKept ? "activations" : "temporaries",
                                   " of ", scope.empty() ? node : scope);
    if (scope.empty()) // mm_1, mm_2, ...
      made.place = llvm::StringRef(node).rtrim("0123456789").rtrim('_').str();
    return made;
  }

  const pf::Plan &plan;
  PlanSummary summary;
  /// Operators of all programs, and how often that stands there.
  std::map<std::string, unsigned> hooked, foreign, untrusted;
};

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

PlanSummary::Program PlanSummary::getStep() const {
  Program step;
  step.name = "a step";
  for (const Program &program : programs) {
    if (program.runs == 0)
      continue;
    ++step.runs;
    step.work.add(program.work, program.runs);
    step.lowerBound = std::max(step.lowerBound, program.lowerBound);
    step.predicted.nanoseconds += program.runs * program.predicted.nanoseconds;
    step.predicted.exposed += program.runs * program.predicted.exposed;
    step.predicted.slowed += program.runs * program.predicted.slowed;
    step.predicted.flops += program.runs * program.predicted.flops;
    step.predicted.atPeak += program.runs * program.predicted.atPeak;
  }
  return step;
}

PlanSummary fsdp::summarize(const pf::Plan &plan) {
  return Summarizer(plan).run();
}
