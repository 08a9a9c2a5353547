//===- Ends.cpp - From where on a launch is known to be done --------------===//
//
// Who waits for one has waited for what that waited for: those before it on its
// stream, copies that it takes, and those over other groups whose turn was
// before its own. So some have ended for the compute stream before its wait for
// them, and their memory ends there, too. Vector clocks, in one walk along the
// order of issue.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include <algorithm>

using namespace fsdp::planner;

namespace {
class Walk {
public:
  explicit Walk(Layout &layout)
      : layout(layout), latest(layout.model.overlaps.size()),
        fixed(layout.program.calls.size()) {}

  void run();

private:
  /// How many launches of each stream are done if something is.
  using Clock = std::array<uint32_t, numStreams>;
  using End = Layout::End;

  static void join(Clock &clock, const Clock &other) {
    for (size_t i = 0; i != numStreams; ++i)
      clock[i] = std::max(clock[i], other[i]);
  }
  Clock launch(Stream stream, Clock needs, End *end);
  Clock send(Stream stream, uint32_t group, Clock needs, End *end);
  Clock copy(const Layout::Call &call, const std::vector<uint32_t> &units,
             std::optional<int64_t> Traffic::*copy, Clock needs, End *end);
  void gather(Layout::Call &call);
  void reduce(Layout::Call &call);
  void waitFor(const Clock &clock, End here);
  void passFixed(uint32_t place);

  Layout &layout;
  std::array<Clock, numStreams> streams = {}; ///< After their launches.
  std::vector<Clock> latest;                  ///< By group.
  std::vector<Clock> fixed, gathers, reductions;
  Clock known = {}; ///< To the compute stream.
  /// Where launches end, by stream in their order; null if nobody asks.
  std::array<std::vector<End *>, numStreams> ends;
};
} // namespace

Walk::Clock Walk::launch(Stream stream, Clock needs, End *end) {
  Clock &own = streams[size_t(stream)];
  join(own, needs);
  ends[size_t(stream)].push_back(end);
  own[size_t(stream)] = uint32_t(ends[size_t(stream)].size());
  return own;
}

Walk::Clock Walk::send(Stream stream, uint32_t group, Clock needs, End *end) {
  for (size_t other = 0; other != latest.size(); ++other)
    if (layout.model.overlaps[group][other])
      join(needs, latest[other]);
  Clock clock = launch(stream, needs, end);
  if (!latest.empty())
    join(latest[group], clock);
  return clock;
}

Walk::Clock Walk::copy(const Layout::Call &call,
                       const std::vector<uint32_t> &units,
                       std::optional<int64_t> Traffic::*copy, Clock needs,
                       End *end) {
  Clock clock = needs;
  for (uint32_t i = call.begin; i != call.end; ++i)
    if (layout.program.traffic[units[i]].*copy)
      clock = launch(Stream::Copy, needs, end);
  return clock;
}

void Walk::gather(Layout::Call &call) {
  const Traffic &own = layout.program.traffic[layout.gatherUnits[call.begin]];
  Clock needs = {};
  if (!call.isOfPieces)
    needs = copy(call, layout.gatherUnits, &Traffic::copyIn, {}, nullptr);
  gathers.push_back(send(Stream::Gather,
                         call.isOfPieces ? own.piece.group : own.gatherGroup,
                         needs, &call.ends[size_t(Stream::Gather)]));
}

void Walk::reduce(Layout::Call &call) {
  const Traffic &own =
      layout.program.traffic[layout.reductionUnits[call.begin]];
  Clock clock = {};
  auto end = [&](Stream stream) { return &call.ends[size_t(stream)]; };
  if (own.isReduced)
    clock = send(Stream::Reduce, own.reduceGroup, {}, end(Stream::Reduce));
  if (own.isAllReduced)
    clock = send(Stream::AllReduce, own.allReduceGroup, clock,
                 end(Stream::AllReduce));
  reductions.push_back(copy(call, layout.reductionUnits, &Traffic::copyOut,
                            clock, end(Stream::Copy)));
}

void Walk::waitFor(const Clock &clock, End here) {
  for (size_t stream = 0; stream != numStreams; ++stream)
    for (; known[stream] < clock[stream]; ++known[stream])
      if (End *end = ends[stream][known[stream]]; end && here < *end)
        *end = here;
}

void Walk::passFixed(uint32_t place) {
  const Order::Stretch &stretch = layout.getOrder().stretches[place];
  if (stretch.awaits != nobody)
    waitFor(fixed[stretch.awaits], {place, true});
  if (stretch.launches == nobody)
    return;
  const FixedCall &call = layout.program.calls[stretch.launches];
  fixed[stretch.launches] = call.stream == Stream::Copy
                                ? launch(Stream::Copy, {}, nullptr)
                                : send(call.stream, call.group, {}, nullptr);
}

/// Waits come in the order of their places, each kind for itself.
void Walk::run() {
  const std::vector<uint32_t> &fixedPlaces = layout.getOrder().fixedPlaces;
  auto count = uint32_t(layout.getOrder().stretches.size());
  size_t nextFixed = 0, gatherWaits = 0, reductionWaits = 0;
  Layout::Issued issued;
  auto awaitReductions = [&](uint32_t place, bool isLate) {
    for (; reductionWaits != reductions.size(); ++reductionWaits) {
      const Layout::Call &call = layout.reductions[reductionWaits];
      if (call.wait != place)
        return;
      waitFor(reductions[reductionWaits], {place, isLate});
    }
  };
  for (uint32_t place = 0; place <= count; ++place) {
    awaitReductions(place, /*isLate=*/false);
    Layout::issueUpTo(
        layout, place, issued, [&](Layout::Call &call) { reduce(call); },
        [&](Layout::Call &call) { gather(call); });
    for (; gatherWaits != gathers.size() &&
           layout.gathers[gatherWaits].wait == place;
         ++gatherWaits)
      waitFor(gathers[gatherWaits], {place, true});
    awaitReductions(place, /*isLate=*/true);
    for (; nextFixed != fixedPlaces.size() && fixedPlaces[nextFixed] == place;
         ++nextFixed)
      passFixed(place);
  }
}

void Layout::findEnds() {
  for (Call &call : gathers)
    call.ends.fill({call.wait, true});
  for (Call &call : reductions)
    call.ends.fill({call.wait, call.wait == call.launch});
  if (mayEndEarly())
    Walk(*this).run();
}
