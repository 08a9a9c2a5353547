//===- Machine.cpp - The time of a layout ---------------------------------===//
//
// Queues what a layout launches, and drives its computations: see Streams.h.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include <algorithm>
#include <numeric>

using namespace fsdp::planner;

uint32_t Machine::issue(Stream stream, int64_t duration, uint64_t place,
                        uint32_t group, Counts needs) {
  for (size_t other = 0; other != latest.size(); ++other)
    for (size_t i = 0; model->overlaps[group][other] && i != numStreams; ++i)
      needs[i] = std::max(needs[i], latest[other][i]);
  LinkUse links = model->getLinks(stream, group);
  uint32_t number =
      streams.issue(size_t(stream), {duration, place, needs, links});
  if (!latest.empty())
    latest[group][size_t(stream)] = number;
  return number;
}

int64_t Machine::getDuration(const Layout::Call &call,
                             const std::vector<uint32_t> &units,
                             CollectiveCost Times::Costs::*cost) const {
  CollectiveCost sum;
  for (uint32_t i = call.begin; i != call.end; ++i)
    sum.add(times->units[units[i]].*cost);
  return sum.getDuration();
}

int64_t Machine::getGatherDuration(const Layout &layout,
                                   const Layout::Call &call) const {
  return getDuration(call, layout.gatherUnits,
                     call.isOfPieces ? &Times::Costs::pieceGather
                                     : &Times::Costs::gather);
}

/// Copies of the units of a call, one after the other; returns how many the
/// stream has then, or 0.
uint32_t Machine::issueCopies(const Layout::Call &call,
                              const std::vector<uint32_t> &units,
                              const std::vector<Traffic> &traffic,
                              std::optional<int64_t> Traffic::*copy,
                              const Counts &needs) {
  uint32_t number = 0;
  for (uint32_t i = call.begin; i != call.end; ++i)
    if (auto duration = traffic[units[i]].*copy)
      number = streams.issue(size_t(Stream::Copy),
                             {*duration, uint64_t(call.launch) * 2, needs});
  return number;
}

void Machine::issueGather(const Layout &layout, const Layout::Call &call) {
  const Traffic &own = layout.program.traffic[layout.gatherUnits[call.begin]];
  Counts needs = {};
  if (!call.isOfPieces)
    needs[size_t(Stream::Copy)] = issueCopies(
        call, layout.gatherUnits, layout.program.traffic, &Traffic::copyIn, {});
  uint32_t number =
      issue(Stream::Gather, getGatherDuration(layout, call),
            uint64_t(call.launch) * 2,
            call.isOfPieces ? own.piece.group : own.gatherGroup, needs);
  for (uint32_t i = call.begin; i != call.end; ++i) {
    const Order::Use &own = layout.getOrder().uses[layout.gatherUnits[i]];
    uint32_t use = own.first[size_t(call.phase)];
    waits[use].late[size_t(Stream::Gather)] = number;
  }
}

void Machine::issueReduction(const Layout &layout, const Layout::Call &call) {
  const Traffic &own =
      layout.program.traffic[layout.reductionUnits[call.begin]];
  uint64_t place = uint64_t(call.launch) * 2;
  Waits &wait = waits[call.wait];
  Counts &counts = call.wait > call.launch ? wait.early : wait.late;
  Counts needs = {};
  if (own.isReduced) {
    uint32_t number = issue(
        Stream::Reduce,
        getDuration(call, layout.reductionUnits, &Times::Costs::reduction),
        place, own.reduceGroup, {});
    needs[size_t(Stream::Reduce)] = number;
    counts[size_t(Stream::Reduce)] = number;
  }
  if (own.isAllReduced) {
    uint32_t number = issue(
        Stream::AllReduce,
        getDuration(call, layout.reductionUnits, &Times::Costs::allReduce),
        place, own.allReduceGroup, needs);
    needs[size_t(Stream::AllReduce)] = number;
    counts[size_t(Stream::AllReduce)] = number;
  }
  uint32_t &copies = counts[size_t(Stream::Copy)];
  copies = std::max(copies, issueCopies(call, layout.reductionUnits,
                                        layout.program.traffic,
                                        &Traffic::copyOut, needs));
}

/// Queues all calls in the order of issue and notes who waits for them.
void Machine::start(const Layout &layout) {
  streams.reset(times->contention.value_or(model->contention));
  latest.assign(model->overlaps.size(), {});
  waits.assign(layout.getOrder().stretches.size() + 1, {});

  Layout::Issued issued;
  auto issueUpTo = [&](uint32_t place) {
    Layout::issueUpTo(
        layout, place, issued,
        [&](const Layout::Call &call) { issueReduction(layout, call); },
        [&](const Layout::Call &call) { issueGather(layout, call); });
  };
  fixed.resize(layout.program.calls.size());
  for (uint32_t place : layout.getOrder().fixedPlaces) {
    issueUpTo(place);
    const Order::Stretch &stretch = layout.getOrder().stretches[place];
    if (stretch.launches != nobody) {
      const FixedCall &call = layout.program.calls[stretch.launches];
      int64_t duration = times->calls[stretch.launches];
      uint64_t own = uint64_t(place) * 2 + 1;
      fixed[stretch.launches] =
          call.stream == Stream::Copy
              ? streams.issue(size_t(Stream::Copy), {duration, own, {}})
              : issue(call.stream, duration, own, call.group, {});
    }
    if (stretch.awaits != nobody) {
      auto stream = size_t(layout.program.calls[stretch.awaits].stream);
      uint32_t &count = waits[place].late[stream];
      count = std::max(count, fixed[stretch.awaits]);
    }
  }
  issueUpTo(nobody - 1);
}

/// On one core nothing runs beside anything.
int64_t Machine::sum(const Layout &layout,
                     const std::vector<int64_t> &durations) const {
  int64_t time = std::accumulate(durations.begin(), durations.end(), int64_t());
  for (int64_t duration : times->calls)
    time += duration;
  for (const Layout::Call &call : layout.gathers) {
    time += getGatherDuration(layout, call);
    for (uint32_t i = call.begin; i != call.end && !call.isOfPieces; ++i)
      time += layout.program.traffic[layout.gatherUnits[i]].copyIn.value_or(0);
  }
  for (const Layout::Kept &piece : layout.getPieces())
    time += times->units[piece.unit].pieceCopy;
  for (uint32_t unit : layout.reductionUnits)
    time += layout.program.traffic[unit].copyOut.value_or(0);
  for (const Layout::Call &call : layout.reductions)
    time += getDuration(call, layout.reductionUnits, &Times::Costs::reduction) +
            getDuration(call, layout.reductionUnits, &Times::Costs::allReduce);
  return time;
}

int64_t Machine::run(const Layout &layout, size_t scenario) {
  model = &layout.model;
  times = &layout.getTimes()[scenario];
  const std::vector<int64_t> &durations = layout.getOrder().durations[scenario];
  if (model->sharesCore)
    return sum(layout, durations);
  start(layout);
  auto piece = layout.getPieces().begin();
  for (uint32_t place = 0; place <= durations.size(); ++place) {
    streams.waitFor(waits[place].early);
    streams.release(uint64_t(place) * 2);
    streams.waitFor(waits[place].late);
    streams.release(uint64_t(place) * 2 + 1);
    if (place != durations.size())
      streams.compute(durations[place]);
    for (; piece != layout.getPieces().end() && piece->stretch == place;
         ++piece)
      streams.compute(times->units[piece->unit].pieceCopy);
  }
  streams.waitForAll();
  return streams.getTime();
}
