//===- Order.cpp - The computations of a program, in order ----------------===//
//
// One walk along the computations finds slots and uses, in numbers of
// computations; then those with nothing between them become stretches, and all
// places are counted in these.
//
//===----------------------------------------------------------------------===//

#include "Order.h"

#include <algorithm>
#include <numeric>
#include <utility>

using namespace fsdp::planner;

OrderMaker::OrderMaker(const StepModel &model, const Program &program,
                       const std::vector<Scenario> &scenarios)
    : model(model), program(program), completes(program.ops.size(), false),
      begins(program.ops.size() + 1), stretchOf(program.ops.size() + 1),
      placeOf(program.ops.size()) {
  memory.reserve(program.ops.size());
  for (const Scenario &scenario : scenarios)
    times.emplace_back(program, scenario);
  std::vector<uint8_t> isComplete(model.units.size(), false);
  for (size_t op = program.ops.size(); op-- != 0;)
    if (uint32_t unit = program.ops[op].gradient; unit != nobody)
      completes[op] = !std::exchange(isComplete[unit], true);
  findRuns();
  findSpans();
}

void OrderMaker::findRuns() {
  isMet.resize(1 + model.modules.size() * numRecomputes);
  isMet.front() = true;
  own.reserve(program.ops.size());
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    own.push_back({std::max<int64_t>(op.change, 0), op.transient,
                   std::max<int64_t>(-op.change, 0)});
    auto condition = uint32_t(getCondition(op));
    if (runs.empty() || runs.back().condition != condition)
      runs.push_back({i, i, condition, 0});
    for (uint32_t unit :
         {op.weights, op.gradient, op.update, op.launches, op.awaits})
      if (unit != nobody && (roles.empty() || roles.back() != i))
        roles.push_back(i);
    runs.back().end = i + 1;
    runs.back().endRole = uint32_t(roles.size());
  }
  pieces.reserve(runs.size());
}

void OrderMaker::make(const std::vector<Recompute> &recompute, Order &order) {
  order.recompute = recompute;
  reserve(order);
  walk(order);
  addLives(order);
  findBegins(order);
  fold(order);
  renumber(order);
}

void OrderMaker::findSpans() {
  spans.reserve(program.lives.size());
  for (const Life &life : program.lives) {
    reads.insert(reads.end(), life.reads.begin(), life.reads.end());
    spans.push_back({life.bytes,
                     uint32_t(getCondition(program.ops[life.begin])),
                     life.begin, life.end, uint32_t(reads.size())});
  }
}

/// For any order of the program: once warm, none allocates.
void OrderMaker::reserve(Order &order) const {
  size_t ops = program.ops.size(), units = model.units.size();
  order.ops.reserve(ops);
  order.stretches.reserve(ops);
  order.slots.reserve((numPhases + 2) * units + 1);
  order.fixedPlaces.reserve(ops);
  order.firstUses.reserve(numPhases * units);
  order.completions.reserve(units);
  order.durations.resize(times.size());
  for (std::vector<int64_t> &own : order.durations)
    own.reserve(ops);
}

//===----------------------------------------------------------------------===//
// The walk
//===----------------------------------------------------------------------===//

static void addSlot(Order &order, uint32_t place) {
  if (order.slots.empty() || order.slots.back() != place)
    order.slots.push_back(place);
}

void OrderMaker::emit(uint32_t index, Order &order) {
  const ComputeOp &op = program.ops[index];
  uint32_t place = placeOf[index];
  if (op.weights != nobody) {
    Order::Use &use = order.uses[op.weights];
    use.last[size_t(op.phase)] = place;
    if (use.first[size_t(op.phase)] == nobody) {
      addSlot(order, place);
      bool isAgain = op.phase == Phase::Backward && use.first[0] != nobody;
      order.firstUses.push_back(
          {op.weights, op.phase, isAgain, uint32_t(order.slots.size()) - 1});
      use.first[size_t(op.phase)] = place;
    }
  }
  if (op.launches != nobody || op.awaits != nobody)
    order.fixedPlaces.push_back(place);
  if (op.update != nobody) {
    isClosed = true;
    Order::Use &use = order.uses[op.update];
    use.lastUpdate = place;
    use.update = std::min(use.update, place);
  }
  if (op.gradient == nobody)
    return;
  Order::Use &use = order.uses[op.gradient];
  if (use.gradient == nobody) {
    addSlot(order, place);
    use.gradient = place;
  }
  if (completes[index]) {
    addSlot(order, place + 1);
    order.completions.push_back({op.gradient, std::exchange(isClosed, false),
                                 uint32_t(order.slots.size()) - 1});
  }
}

void OrderMaker::walk(Order &order) {
  order.ops.clear();
  order.slots.clear();
  order.fixedPlaces.clear();
  order.firstUses.clear();
  order.completions.clear();
  order.uses.assign(model.units.size(), {});
  memory.clear();
  pieces.clear();
  isClosed = false;
  addSlot(order, 0);
  for (size_t module = 0; module != order.recompute.size(); ++module)
    for (size_t state = 0; state != numRecomputes; ++state)
      isMet[1 + module * numRecomputes + state] =
          size_t(order.recompute[module]) == state;
  uint32_t role = 0;
  for (const Run &run : runs) {
    auto place = uint32_t(order.ops.size());
    auto places = placeOf.begin() + run.begin;
    auto placesEnd = placeOf.begin() + run.end;
    if (isMet[run.condition]) {
      std::iota(places, placesEnd, place);
      order.ops.resize(place + run.end - run.begin);
      std::iota(order.ops.begin() + place, order.ops.end(), run.begin);
      memory.insert(memory.end(), own.begin() + run.begin,
                    own.begin() + run.end);
      pieces.push_back({place, run.begin});
      for (; role != run.endRole; ++role)
        emit(roles[role], order);
    } else {
      std::fill(places, placesEnd, place);
      role = run.endRole;
    }
  }
}

void OrderMaker::addLives(const Order &order) {
  uint32_t read = 0;
  for (const Span &span : spans) {
    if (isMet[span.condition]) {
      uint32_t end = placeOf[span.end];
      for (; read != span.endRead; ++read)
        if (reads[read].isWith(order.recompute[reads[read].module]))
          end = std::max(end, placeOf[reads[read].op]);
      memory[placeOf[span.begin]].takes += span.bytes;
      memory[end].frees += span.bytes;
    }
    read = span.endRead;
  }
}

//===----------------------------------------------------------------------===//
// Stretches
//===----------------------------------------------------------------------===//

/// Marks where something may begin, or has ended.
void OrderMaker::findBegins(const Order &order) {
  begins.assign(order.ops.size() + 1, false);
  auto begin = [&](uint32_t place) {
    if (place != nobody)
      begins[place] = true;
  };
  auto end = [&](uint32_t place) {
    if (place != nobody)
      begins[place + 1] = true;
  };
  for (uint32_t place : order.slots)
    begin(place);
  for (uint32_t place : order.fixedPlaces) {
    begin(place);
    end(place);
  }
  for (const Order::Use &use : order.uses) {
    begin(use.gradient);
    begin(use.update);
    end(use.lastUpdate);
    for (uint32_t last : use.last)
      end(last);
  }
}

/// Memory inside is the most of all; what is left is the sum.
void OrderMaker::fold(Order &order) {
  order.stretches.clear();
  auto count = uint32_t(order.ops.size());
  for (uint32_t place = 0; place != count;) {
    const ComputeOp &op = program.ops[order.ops[place]];
    auto number = uint32_t(order.stretches.size());
    Order::Stretch stretch = {place, 0, 0, op.launches, op.awaits};
    do {
      const Memory &own = memory[place];
      stretch.change += own.takes;
      stretch.most = std::max(stretch.most, stretch.change + own.transient);
      stretch.change -= own.frees;
      stretchOf[place] = number;
    } while (!begins[++place] && place != count);
    order.stretches.push_back(stretch);
  }
  stretchOf[count] = uint32_t(order.stretches.size());
  for (size_t scenario = 0; scenario != times.size(); ++scenario)
    addDurations(order, times[scenario].before, order.durations[scenario]);
}

void OrderMaker::addDurations(const Order &order,
                              const std::vector<int64_t> &before,
                              std::vector<int64_t> &durations) const {
  durations.clear();
  size_t piece = 0;
  for (size_t place = 0; place != order.stretches.size(); ++place) {
    int64_t duration = 0;
    uint32_t begin = order.getBegin(place), end = order.getBegin(place + 1);
    while (begin != end) {
      uint32_t pieceEnd = piece + 1 != pieces.size()
                              ? pieces[piece + 1].place
                              : uint32_t(order.ops.size());
      uint32_t op = pieces[piece].op + begin - pieces[piece].place;
      uint32_t count = std::min(end, pieceEnd) - begin;
      duration += before[op + count] - before[op];
      begin += count;
      piece += begin == pieceEnd;
    }
    durations.push_back(duration);
  }
}

/// From numbers of computations to those of stretches.
void OrderMaker::renumber(Order &order) const {
  auto renumberOne = [&](uint32_t &place) {
    if (place != nobody)
      place = stretchOf[place];
  };
  for (std::vector<uint32_t> *places : {&order.slots, &order.fixedPlaces})
    std::for_each(places->begin(), places->end(), renumberOne);
  for (Order::Use &use : order.uses) {
    for (size_t phase = 0; phase != numPhases; ++phase) {
      renumberOne(use.first[phase]);
      renumberOne(use.last[phase]);
    }
    renumberOne(use.gradient);
    renumberOne(use.update);
    renumberOne(use.lastUpdate);
  }
}
