//===- InsertSync.cpp - Order across streams ------------------------------===//
//
// Events for every dependence between streams, by vector clocks: what a stream
// has waited for, and what that had waited for, need not be waited for again.
// So waits of the schedule that follow from others go, too. Collectives over
// different axes that share ranks depend on each other as well: one rank might
// start with the one, another rank with the other. Those over the same axes on
// two streams are kept apart by the backend (Comm.h).
//
// The forward also runs alone, to evaluate, and forward and backward without
// the update. They get their events first, as if there were nothing else: a
// gather for the backward that is launched among the commands of the forward is
// then no way to learn what is done.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/TypeSwitch.h"

#include <array>
#include <map>

namespace fsdp::plan {
#define GEN_PASS_DEF_INSERTSYNC
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {
namespace {

constexpr unsigned numStreams = getMaxEnumValForStream() + 1;

/// For each stream, the latest command that is known to be done; -1 if none.
struct Clock : std::array<int32_t, numStreams> {
  Clock() { fill(-1); }
  void join(const Clock &other) {
    for (unsigned i = 0; i != numStreams; ++i)
      (*this)[i] = std::max((*this)[i], other[i]);
  }
};

/// Who has touched a buffer so far.
struct History {
  Clock reads;
  Clock writes;
};

/// The axes of more than one rank of each communicator, as bits.
using Axes = llvm::StringMap<uint64_t>;

class EventAssigner {
public:
  /// Takes the commands of all roles up to the `last` one.
  EventAssigner(ProgramOp program, Role last, const Axes &axes);
  /// False if the last role has no commands: what those before it need is
  /// there.
  bool isNeeded();
  void run();

private:
  void addDependences(Operation *op, Clock &needed);
  uint64_t getAxes(Operation *op);
  void waitFor(CommandOpInterface command, Clock needed);
  Value getEvent(uint32_t position);
  /// True if a wait of the last role follows from what its stream has waited
  /// for.
  bool isImplied(WaitOp wait) const;

  Role last;
  SmallVector<CommandOpInterface> commands;
  SmallVector<Clock> clocks; // of the command's stream, after the command
  SmallVector<Value> events; // that are recorded after the command
  std::array<Clock, numStreams> streams;
  DenseMap<Value, Clock> recorded; // by events that were there before
  DenseMap<Operation *, History> histories;
  const Axes &axes;
  std::map<uint64_t, Clock> collectives; // by axes, the latest
};

} // namespace

static Axes findAxes(ModuleOp plan) {
  Axes axes;
  for (auto communicator : plan.getBody().front().getOps<CommunicatorOp>())
    for (int64_t axis : communicator.getAxes())
      if (cast<AxisAttr>(plan.getMesh()[axis]).getSize() != 1)
        axes[communicator.getSymName()] |= uint64_t(1)
                                           << std::min<int64_t>(axis, 63);
  return axes;
}

EventAssigner::EventAssigner(ProgramOp program, Role last, const Axes &axes)
    : last(last), axes(axes) {
  for (auto command : program.getBody().front().getOps<CommandOpInterface>())
    if (command.getRole() <= last)
      commands.push_back(command);
  clocks.resize(commands.size());
  events.resize(commands.size());
}

bool EventAssigner::isNeeded() {
  return llvm::any_of(commands, [&](CommandOpInterface command) {
    return command.getRole() == last;
  });
}

/// The axes of more than one rank that a collective is over; 0 if it is none.
uint64_t EventAssigner::getAxes(Operation *op) {
  return llvm::TypeSwitch<Operation *, uint64_t>(op)
      .Case<AllGatherOp, ReduceScatterOp, AllReduceOp>(
          [&](auto op) { return axes.lookup(op.getCommunicator()); })
      .Default([](Operation *) { return 0; });
}

/// What has to be done before the command may run.
void EventAssigner::addDependences(Operation *op, Clock &needed) {
  auto command = cast<CommandOpInterface>(op);
  uint64_t own = getAxes(op);
  for (const auto &[other, latest] : collectives)
    if (other != own && (other & own))
      needed.join(latest);
  for (Value buffer : command.getReads())
    needed.join(histories[getRoot(buffer)].writes);
  for (Value buffer : command.getWrites()) {
    BufferOp root = getRoot(buffer);
    auto [found, isFirst] = histories.try_emplace(root);
    needed.join(found->second.reads);
    needed.join(found->second.writes);
    if (!isFirst)
      continue;
    for (Value before : root.getAfter())
      if (auto old = histories.find(getRoot(before)); old != histories.end()) {
        needed.join(old->second.reads);
        needed.join(old->second.writes);
      }
  }
}

/// The event after a command, recorded at its first use, or by the schedule.
Value EventAssigner::getEvent(uint32_t position) {
  Value &event = events[position];
  CommandOpInterface command = commands[position];
  if (!event)
    if (auto record = dyn_cast_or_null<RecordOp>(command->getNextNode()))
      if (record.getStream() == command.getStream())
        event = record.getEvent();
  if (!event) {
    OpBuilder builder(command.getContext());
    builder.setInsertionPointAfter(command);
    event = RecordOp::create(builder, command.getLoc(),
                             EventType::get(command.getContext()),
                             command.getRole(), command.getStream());
  }
  return event;
}

void EventAssigner::waitFor(CommandOpInterface command, Clock needed) {
  unsigned self = static_cast<unsigned>(command.getStream());
  Clock &clock = streams[self];
  for (unsigned stream = 0; stream != numStreams; ++stream) {
    if (stream == self || needed[stream] <= clock[stream])
      continue;
    // What another stream that we wait for has waited for comes with it.
    bool isImplied = false;
    for (unsigned other = 0; other != numStreams; ++other)
      isImplied |= other != stream && other != self &&
                   needed[other] > clock[other] &&
                   clocks[needed[other]][stream] >= needed[stream];
    if (isImplied)
      continue;
    OpBuilder builder(command);
    WaitOp::create(builder, command.getLoc(), getEvent(needed[stream]),
                   command.getRole(), command.getStream());
  }
  for (unsigned stream = 0; stream != numStreams; ++stream)
    if (stream != self && needed[stream] > clock[stream])
      clock.join(clocks[needed[stream]]);
}

bool EventAssigner::isImplied(WaitOp wait) const {
  auto found = recorded.find(wait.getEvent());
  if (wait.getRole() != last || found == recorded.end())
    return false;
  const Clock &known = streams[static_cast<unsigned>(wait.getStream())];
  return llvm::all_of(llvm::seq(numStreams), [&](unsigned stream) {
    return found->second[stream] <= known[stream];
  });
}

void EventAssigner::run() {
  for (unsigned first = 0, end; first != commands.size(); first = end) {
    // Collectives of a group wait together, and are done together.
    end = first + 1;
    if (std::optional<uint64_t> group = commands[first].getGroup())
      while (end != commands.size() && commands[end].getGroup() == group)
        ++end;
    MutableArrayRef<CommandOpInterface> together =
        MutableArrayRef(commands).slice(first, end - first);
    unsigned self = static_cast<unsigned>(together.front().getStream());
    int32_t latest = end - 1;
    Clock needed;
    for (CommandOpInterface command : together)
      addDependences(command, needed);
    waitFor(together.front(), needed);
    // The schedule waits of its own accord.
    if (auto wait = dyn_cast<WaitOp>(*together.front())) {
      if (isImplied(wait)) {
        wait.erase();
        commands[first] = {};
        clocks[latest] = streams[self];
        continue;
      }
      streams[self].join(recorded.lookup(wait.getEvent()));
    }
    if (!isa<RecordOp, WaitOp>(*together.front())) // no work
      streams[self][self] = latest;
    clocks[latest] = streams[self];
    if (auto record = dyn_cast<RecordOp>(*together.front()))
      recorded[record.getEvent()] = streams[self];
    for (CommandOpInterface command : together) {
      if (uint64_t own = getAxes(command))
        collectives[own][self] = latest;
      for (Value buffer : command.getReads())
        histories[getRoot(buffer)].reads[self] = latest;
      for (Value buffer : command.getWrites())
        histories[getRoot(buffer)].writes[self] = latest;
    }
  }
}

namespace {
struct InsertSync : impl::InsertSyncBase<InsertSync> {
  void runOnOperation() override {
    Axes axes = findAxes(getOperation());
    auto programs =
        llvm::to_vector(getOperation().getBody().front().getOps<ProgramOp>());
    for (ProgramOp program : programs)
      for (Role last : {Role::Forward, Role::Backward, Role::Update})
        if (EventAssigner assigner(program, last, axes); assigner.isNeeded())
          assigner.run();
    // Events that nothing waits for.
    for (ProgramOp program : programs)
      for (auto record : llvm::make_early_inc_range(
               program.getBody().front().getOps<RecordOp>()))
        if (record.getEvent().use_empty())
          record.erase();
  }
};
} // namespace
} // namespace fsdp::plan
