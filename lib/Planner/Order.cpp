//===- Order.cpp - The computations of a program, in order ----------------===//
//
// One walk along the computations finds slots and uses, in numbers of
// computations; then those with nothing between them become stretches, and all
// places are counted in these.
//
//===----------------------------------------------------------------------===//

#include "Order.h"

#include <algorithm>
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
  auto place = uint32_t(order.ops.size());
  order.ops.push_back(index);
  memory.push_back({std::max<int64_t>(op.change, 0), op.transient,
                    std::max<int64_t>(-op.change, 0)});
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
  isClosed = false;
  addSlot(order, 0);
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    placeOf[i] = uint32_t(order.ops.size());
    if (isThere(i, order))
      emit(i, order);
  }
}

void OrderMaker::addLives(const Order &order) {
  for (const Life &life : program.lives) {
    if (!isThere(life.begin, order))
      continue;
    uint32_t end = placeOf[life.end];
    for (const Life::Read &read : life.reads)
      if (read.isWith(order.recompute[read.module]))
        end = std::max(end, placeOf[read.op]);
    memory[placeOf[life.begin]].takes += life.bytes;
    memory[end].frees += life.bytes;
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
    addDurations(order, times[scenario].ops, order.durations[scenario]);
}

void OrderMaker::addDurations(const Order &order,
                              const std::vector<int64_t> &ofOps,
                              std::vector<int64_t> &durations) {
  durations.clear();
  for (size_t place = 0; place != order.stretches.size(); ++place) {
    int64_t sum = 0;
    for (uint32_t i = order.getBegin(place); i != order.getBegin(place + 1);
         ++i)
      sum += ofOps[order.ops[i]];
    durations.push_back(sum);
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
