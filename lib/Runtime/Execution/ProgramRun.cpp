//===- ProgramRun.cpp - Running a prepared program ------------------------===//
#include "../Comm/Mesh.h"
#include "../Device/RankScope.h"
#include "../Support/Caught.h"
#include "../Support/DTypes.h"
#include "../Support/Tsan.h"
#include "Program.h"

#include <bit>
#include <numeric>
#include <thread>

using namespace fsdp;
using planfile::Stream;

static double now() { return Device::hostTime(Device::hostMark()); }

void Program::run(RoleSet roles) {
  ++runs;
  if (rank.team)
    rank.team->run([&](unsigned lane) { work(lanes[lane], roles); });
  else
    work(lanes[0], roles);
  for (const Lane &lane : lanes) {
    if (lane.failure)
      throw *lane.failure;
    rank.statistics.forward += lane.statistics.forward;
    rank.statistics.backward += lane.statistics.backward;
    rank.statistics.update += lane.statistics.update;
    rank.statistics.collectives += lane.statistics.collectives;
    rank.statistics.hookMisses += lane.statistics.hookMisses;
    if (lane.statistics.exposed)
      rank.statistics.exposed =
          rank.statistics.exposed.value_or(0) + *lane.statistics.exposed;
  }
  if (!isChecked)
    rank.memory->checkUnchanged();
  isChecked = true;
}

void Program::work(Lane &lane, RoleSet roles) {
  lane.position = 0;
  lane.statistics = {};
  lane.phases.clear();
  lane.marked.clear();
  try {
    std::optional<RankScope> scope; // The first lane's thread is the rank's.
    if (&lane != &lanes[0])
      scope.emplace(rank.device.get());
    // One of the rank's threads is enough for its device; the CPU needs none.
    if (&lane == &lanes[0])
      rank.device->beginRun();
    loop(lane, roles);
    rank.device->endRun();
    takeTimes(lane);
  } catch (...) {
    std::size_t position = std::min(lane.position, lane.commands.size() - 1);
    lane.failure.emplace("rank " + std::to_string(rank.rank) + ", step " +
                             std::to_string(rank.updates + 1) + ", " +
                             (lane.commands.empty()
                                  ? ""
                                  : describe(lane.commands[position]) + ": ") +
                             describeCaught(),
                         Failure::RankFailed);
    // At once: the rank's other thread may wait for this one.
    rank.fail(*lane.failure);
  }
}

void Program::loop(Lane &lane, RoleSet roles) {
  lane.selected = Stream::Compute; // as whoever enters a device finds it
  rank.device->select(lane.selected);
  bool isCompute = &lane == &lanes[0];
  if (isCompute)
    lane.phases.push_back({0, mark(Stream::Compute)});
  for (; lane.position != lane.commands.size(); ++lane.position) {
    const Command &command = lane.commands[lane.position];
    if (!(command.roles & roles))
      continue;
    if (isCompute && command.roles != allRoles)
      enterPhase(lane, command.roles);
    rank.waits->check();
    // Chaos: a delay now and then.
    if (rank.chaosSeed && lane.chaos() % 4 == 0)
      std::this_thread::sleep_for(
          std::chrono::microseconds(lane.chaos() % 300));
    if (command.isOnHost)
      rank.device->synchronize();
    bool isMarked =
        isExposed(command) || (rank.timed && command.kind != Kind::Poison &&
                               command.kind != Kind::KeepNorm);
    if (isMarked)
      lane.marked.push_back({lane.position, mark(command.stream), 0});
#ifdef FSDP_TSAN
    // ATen is not instrumented: say what it touches.
    for (const Access &access : accesses[command.place]) {
      std::byte *base = rank.memory->arena(access.range.space);
      (access.isWrite ? __tsan_write_range : __tsan_read_range)(
          base + access.range.begin, access.range.end - access.range.begin);
    }
#endif
    execute(lane, command);
    if (rank.observer)
      showObserver(command);
    if (isMarked)
      lane.marked.back().end = mark(command.stream);
  }
  if (isCompute)
    lane.phases.push_back({0, mark(Stream::Compute)});
}

void Program::showObserver(const Command &command) const {
  std::uint32_t node = program.commands()->Get(command.source)->node();
  bool isLaunch =
      command.kind == Kind::Launch || command.kind == Kind::ScriptedLaunch;
  if (!isLaunch || node == none)
    return;
  rank.device->synchronize();
  rank.observer(rank.rank, stringOf(*rank.plan, node),
                launches[command.index].written());
}

/// The first phase begins with the run, whatever its role.
void Program::enterPhase(Lane &lane, RoleSet role) const {
  Phase &latest = lane.phases.back();
  if (latest.role == 0)
    latest.role = role;
  else if (latest.role != role)
    lane.phases.push_back({role, mark(Stream::Compute)});
}

inline void Program::execute(Lane &lane, const Command &command) {
  Device &device = *rank.device;
  if (command.stream != lane.selected) {
    lane.selected = command.stream;
    device.select(command.stream);
  }
  switch (command.kind) {
  case Kind::Launch:
    launches[command.index].call(lane.stack);
    break;
  case Kind::ScriptedLaunch:
    lane.statistics.hookMisses +=
        launches[command.index].callScripted(lane.stack, device);
    break;
  case Kind::Collective: {
    double begin = now();
    std::uint64_t flight =
        rank.flights.begin({rank.rank, number, command.source, false,
                            command.stream, runs, rank.updates, begin, 0});
    rank.comms[command.communicator]->run(command.index, command.count);
    double end = now();
    rank.flights.end(flight, end);
    lane.statistics.collectives += end - begin;
    break;
  }
  case Kind::Drain: {
    double begin = now();
    rank.comms[command.communicator]->drain(command.index, command.count);
    lane.statistics.collectives += now() - begin;
    break;
  }
  case Kind::Update:
    updates[command.index].run();
    break;
  case Kind::Measure:
    measures[command.index].run();
    break;
  case Kind::Accumulate:
    copies[command.index].first.add_(copies[command.index].second);
    break;
  case Kind::Zero:
  case Kind::Poison: {
    const Block &block = blocks[command.index];
    device.fill(command.stream, block.target,
                command.kind == Kind::Zero ? 0 : 0xff, block.bytes);
    break;
  }
  case Kind::KeepNorm:
  case Kind::CopyBytes: {
    const Block &block = blocks[command.index];
    device.copy(command.stream, block.target, block.source, block.bytes);
    break;
  }
  case Kind::Copy:
    copies[command.index].first.copy_(copies[command.index].second);
    break;
  case Kind::Record:
    if (rank.team)
      events[command.index].advance(runs);
    else
      device.record(command.stream, number, command.index);
    break;
  case Kind::Wait:
    if (!rank.team)
      device.wait(command.stream, number, command.index);
    else
      rank.waits->await(events[command.index], runs, rank.timeout, [&] {
        return "event " + std::to_string(command.index) + " to be recorded";
      });
    break;
  }
}

/// Of a run that is not timed, the device is not asked.
std::uint64_t Program::mark(Stream stream) const {
  return rank.timed ? rank.device->mark(stream) : Device::hostMark();
}

double Program::timeOf(std::uint64_t mark) const {
  return rank.timed ? rank.device->timeOf(mark) : Device::hostTime(mark);
}

/// Whether computations stand still meanwhile: for another stream, or for a
/// thread that is busy with it.
bool Program::isExposed(const Command &command) const {
  if (command.stream == Stream::Compute)
    return command.kind == Kind::Wait || command.isSent();
  return !rank.team && !rank.overlaps;
}

/// What was marked becomes spans and statistics.
void Program::takeTimes(Lane &lane) const {
  if (rank.timed)
    rank.device->synchronize();
  double seconds[8] = {};
  for (std::size_t i = 1; i < lane.phases.size(); ++i)
    seconds[std::countr_zero(lane.phases[i - 1].role) & 7] +=
        timeOf(lane.phases[i].begin) - timeOf(lane.phases[i - 1].begin);
  using planfile::Role;
  lane.statistics.forward = seconds[static_cast<unsigned>(Role::Forward)];
  lane.statistics.backward = seconds[static_cast<unsigned>(Role::Backward)];
  lane.statistics.update = seconds[static_cast<unsigned>(Role::Update)];
  if (rank.timed)
    lane.statistics.collectives = 0;
  double exposed = 0;
  for (const Marked &marked : lane.marked) {
    const Command &command = lane.commands[marked.position];
    double begin = timeOf(marked.begin), end = timeOf(marked.end);
    if (isExposed(command))
      exposed += end - begin;
    if (!rank.timed)
      continue;
    addSpans(lane, command, begin, end);
    if (command.isSent())
      lane.statistics.collectives += end - begin;
  }
  if (rank.timed || !rank.overlaps)
    lane.statistics.exposed = exposed;
}

/// Collectives in one call have parts of its time by their bytes.
void Program::addSpans(Lane &lane, const Command &command, double begin,
                       double end) const {
  std::vector<double> shares(command.count, 1);
  if (command.count > 1)
    for (std::uint32_t i = 0; i != command.count; ++i) {
      const Collective &collective =
          rank.collectives[command.communicator][command.index + i];
      shares[i] += static_cast<double>(collective.count *
                                       itemSize(collective.sourceType));
    }
  double seconds = end - begin;
  double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (std::uint32_t i = 0; i != command.count; ++i) {
    end = begin + seconds * (shares[i] / whole);
    lane.spans.push_back({rank.rank, number, command.source + i,
                          command.kind == Kind::Drain, command.stream, runs,
                          rank.updates, begin, end});
    begin = end;
  }
}

void Program::appendSpans(std::vector<Span> &spans) const {
  for (const Lane &lane : lanes)
    spans.insert(spans.end(), lane.spans.begin(), lane.spans.end());
}
