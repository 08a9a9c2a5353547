//===- BoundFacts.cpp - What bounds are computed from ---------------------===//

#include "BoundFacts.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

using namespace fsdp::planner;

BoundFacts::BoundFacts(const StepModel &model, const Program &program)
    : model(model), program(program),
      room(model.budget - model.persistentBytes),
      mayStartGathered((program.role == Program::Role::Middle ||
                        program.role == Program::Role::Last) &&
                       std::any_of(model.units.begin(), model.units.end(),
                                   [](const Unit &unit) {
                                     return unit.residentBytes != 0;
                                   })),
      compute(1, 0), uses(model.units.size()),
      isCheap(model.modules.size(), false) {
  for (uint32_t module : program.cheap)
    isCheap[module] = true;
  phi[0] = model.sharesCore ? 1 : model.contention;
  phi[1] = model.sharesCore ? 1 : 1024 + model.contention;
  isExact = true;
  for (const Traffic &traffic : program.traffic)
    for (const CollectiveCost &cost : {traffic.gather, traffic.piece.gather,
                                       traffic.reduction, traffic.allReduce})
      isExact &= cost.latency % 1000 == 0 && cost.transfer % 1000 == 0;
  for (const ComputeOp &op : program.ops)
    compute.push_back(compute.back() + (op.onlyIf == nobody ? op.duration : 0));
  findViews();
  findReplays();
  findNearest();
  findUses();
  findMemory();
  findChoices();
  findExposed();
}

/// Of the first so many, by number.
static std::vector<int64_t> sumUp(const std::vector<int64_t> &values) {
  std::vector<int64_t> sums = {0};
  for (int64_t value : values)
    sums.push_back(sums.back() + value);
  return sums;
}

void BoundFacts::findReplays() {
  std::vector<std::array<int64_t, numRecomputes>> byModule(
      model.modules.size(), std::array<int64_t, numRecomputes>{});
  replaysFrom.assign(program.ops.size() + 1, 0);
  for (size_t i = program.ops.size(); i-- != 0;) {
    const ComputeOp &op = program.ops[i];
    replaysFrom[i] = replaysFrom[i + 1];
    if (op.onlyIf == nobody)
      continue;
    auto &own = byModule[op.onlyIf];
    int64_t before = *std::max_element(own.begin(), own.end());
    own[size_t(op.recompute)] += op.duration;
    replaysFrom[i] += *std::max_element(own.begin(), own.end()) - before;
  }
  // By number, of the shortest.
  auto sum = [&](const std::vector<uint32_t> &modules, Recompute recompute) {
    std::vector<int64_t> times;
    for (uint32_t module : modules)
      times.push_back(byModule[module][size_t(recompute)]);
    std::sort(times.begin(), times.end());
    return sumUp(times);
  };
  std::vector<int64_t> all = sum(program.recomputable, Recompute::All),
                       cheap = sum(program.cheap, Recompute::Cheap);
  for (size_t a = 0; a != all.size(); ++a)
    for (size_t c = 0; c != cheap.size() && a + c != all.size(); ++c)
      allChoices.push_back({a, c, all[a] + cheap[c]});
  std::sort(allChoices.begin(), allChoices.end(),
            [](const Choice &a, const Choice &b) {
              return std::tie(a.replays, a.all) < std::tie(b.replays, b.all);
            });
}

void BoundFacts::findNearest() {
  for (const ComputeOp &op : program.ops)
    if (op.onlyIf != nobody && op.recompute == Recompute::All &&
        nearest.size() != mostNearest &&
        std::find(nearest.begin(), nearest.end(), op.onlyIf) == nearest.end())
      nearest.push_back(op.onlyIf);
}

void BoundFacts::findUses() {
  std::vector<uint32_t> completes(program.ops.size(), nobody);
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    if (op.onlyIf != nobody)
      continue;
    if (op.weights != nobody) {
      Use &use = uses[op.weights];
      auto phase = size_t(op.phase);
      if (use.first[phase] == nobody) {
        use.first[phase] = i;
        if (op.phase == Phase::Forward)
          gathered.push_back(op.weights);
      }
      use.last[phase] = i;
    }
    if (op.gradient != nobody) {
      Use &use = uses[op.gradient];
      if (use.gradient == nobody)
        use.gradient = i;
      use.complete = i;
    }
    if (op.update != nobody && uses[op.update].update == nobody)
      uses[op.update].update = i;
  }
  for (uint32_t unit = 0; unit != uses.size(); ++unit)
    if (uses[unit].complete != nobody)
      completes[uses[unit].complete] = unit;
  for (uint32_t unit : completes)
    if (unit != nobody)
      reduced.push_back(unit);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

uint32_t BoundFacts::getEnd(const Life &life) const {
  uint32_t end = life.end;
  for (const Life::Read &read : life.reads)
    if (read.isWith(Recompute::None))
      end = std::max(end, read.op);
  return end;
}

BoundFacts::Ends BoundFacts::getEnds(const Life &life, uint32_t module) const {
  Ends ends = {};
  for (const Life::Read &read : life.reads)
    for (size_t i = 0; i != numRecomputes; ++i)
      if (read.module == module && read.isWith(Recompute(i)))
        ends[i] = std::max(ends[i], read.op);
  return ends;
}

/// Every other module is recomputed as ends it first.
uint32_t BoundFacts::getLeastEnd(const Life &life, uint32_t module,
                                 Recompute recompute) const {
  uint32_t end = life.end;
  for (const Life::Read &read : life.reads) {
    Ends ends = getEnds(life, read.module);
    uint32_t own =
        std::min(ends[size_t(Recompute::None)], ends[size_t(Recompute::All)]);
    if (isCheap[read.module])
      own = std::min(own, ends[size_t(Recompute::Cheap)]);
    end = std::max(end, read.module == module ? ends[size_t(recompute)] : own);
  }
  return end;
}

/// A life that several modules can shorten is saved only if all of them are
/// recomputed: it counts for the one that reads it last. One that a module
/// makes longer counts where nothing but that module decides.
BoundFacts::Savings BoundFacts::findSavings() const {
  Savings savings;
  savings.fill(
      {model.modules.size(), std::vector<int64_t>(program.ops.size() + 1, 0)});
  auto add = [&](uint32_t module, Recompute recompute, uint32_t begin,
                 uint32_t end, int64_t bytes) {
    if (begin >= end)
      return;
    savings[size_t(recompute)][module][begin] += bytes;
    savings[size_t(recompute)][module][end] -= bytes;
  };
  for (const Life &life : program.lives) {
    const ComputeOp &maker = program.ops[life.begin];
    if (maker.onlyIf != nobody) {
      uint32_t least = getLeastEnd(life, maker.onlyIf, maker.recompute);
      add(maker.onlyIf, maker.recompute, life.begin, least + 1, -life.bytes);
      continue;
    }
    uint32_t module = nobody, last = 0;
    for (const Life::Read &read : life.reads)
      if (read.isWith(Recompute::None) && read.op >= last) {
        module = read.module;
        last = read.op;
      }
    bool isAlone = std::all_of(
        life.reads.begin(), life.reads.end(), [&](const Life::Read &read) {
          return read.module == life.reads.front().module;
        });
    uint32_t end = getEnd(life) + 1;
    for (Recompute recompute : {Recompute::All, Recompute::Cheap}) {
      if (module != nobody)
        add(module, recompute, getLeastEnd(life, module, recompute) + 1, end,
            life.bytes);
      if (isAlone && !life.reads.empty()) {
        uint32_t only = life.reads.front().module;
        add(only, recompute, end, getEnds(life, only)[size_t(recompute)] + 1,
            -life.bytes);
      }
    }
  }
  for (auto &ofAll : savings)
    for (std::vector<int64_t> &own : ofAll) {
      int64_t sum = 0;
      for (int64_t &bytes : own) {
        sum += bytes;
        bytes = std::max<int64_t>(sum, 0);
      }
    }
  return savings;
}

int64_t BoundFacts::getMost(const Savings &savings, uint32_t module,
                            size_t op) const {
  int64_t most = savings[size_t(Recompute::All)][module][op];
  if (isCheap[module])
    most = std::max(most, savings[size_t(Recompute::Cheap)][module][op]);
  return most;
}

/// Whether room is better spent on `a`.
bool BoundFacts::isWorthMore(uint32_t a, uint32_t b) const {
  const Traffic &left = program.traffic[a], &right = program.traffic[b];
  double leftWorth = double(left.gather.transfer) * double(right.gatheredBytes);
  double rightWorth =
      double(right.gather.transfer) * double(left.gatheredBytes);
  return leftWorth != rightWorth ? leftWorth > rightWorth : a < b;
}

/// Whether room is better spent on it; of parts as good, the smaller one.
static bool isDenser(const BoundFacts::Gathers::Part &a,
                     const BoundFacts::Gathers::Part &b) {
  double left = double(a.transfer) * double(b.bytes);
  double right = double(b.transfer) * double(a.bytes);
  return left != right ? left > right : a.bytes < b.bytes;
}

/// A piece is there from the end of the forward's use on. Where it saves more
/// for each byte than the whole does, it is a part of its own: of fractions of
/// parts, the best are then those on which room is best spent.
BoundFacts::Gathers BoundFacts::makeGathers(const std::vector<uint32_t> &units,
                                            size_t view,
                                            std::optional<size_t> cut) const {
  Gathers gathers;
  gathers.latency = std::numeric_limits<int64_t>::max();
  for (uint32_t unit : units) {
    const Traffic &own = program.traffic[unit];
    CollectiveCost all = getGather(own, view);
    Gathers::Part whole = {own.gatheredBytes, all.transfer};
    gathers.latency = std::min(gathers.latency, all.latency);
    uint32_t last = uses[unit].last[0];
    if (own.piece.bytes && cut && last != nobody && last <= *cut) {
      CollectiveCost rest = getPiece(own, view);
      gathers.latency = std::min(gathers.latency, rest.latency);
      Gathers::Part piece = {own.piece.bytes, whole.transfer - rest.transfer};
      if (piece.transfer > 0 && isDenser(piece, whole)) {
        gathers.parts.push_back(piece);
        whole.bytes -= piece.bytes;
        whole.transfer -= piece.transfer;
      }
    }
    gathers.parts.push_back(whole);
  }
  std::sort(gathers.parts.begin(), gathers.parts.end(), isDenser);
  std::vector<int64_t> bytes, transfers;
  for (const Gathers::Part &part : gathers.parts) {
    bytes.push_back(part.bytes);
    transfers.push_back(part.transfer);
  }
  std::sort(bytes.begin(), bytes.end());
  std::sort(transfers.begin(), transfers.end(), std::greater<int64_t>());
  gathers.bytes = sumUp(bytes);
  gathers.transfers = sumUp(transfers);
  return gathers;
}

BoundFacts::Saved BoundFacts::findSaved(size_t op,
                                        const Savings &savings) const {
  const auto &whole = savings[size_t(Recompute::All)],
             &cheap = savings[size_t(Recompute::Cheap)];
  auto isNear = [&](uint32_t module) {
    return std::find(nearest.begin(), nearest.end(), module) != nearest.end();
  };
  auto sum = [&](const std::vector<uint32_t> &modules, bool isAll, auto get) {
    std::vector<int64_t> own;
    for (uint32_t module : modules)
      if (isAll || !isNear(module))
        own.push_back(get(module));
    std::sort(own.begin(), own.end(), std::greater<int64_t>());
    return sumUp(own);
  };
  auto sumAll = [&](bool isAll) -> Sums {
    return {sum(program.recomputable, isAll,
                [&](uint32_t module) { return whole[module][op]; }),
            sum(program.cheap, isAll,
                [&](uint32_t module) { return cheap[module][op]; }),
            sum(program.recomputable, isAll,
                [&](uint32_t module) { return getMost(savings, module, op); })};
  };
  Saved saved = {sumAll(true), sumAll(false), {}, {}};
  for (uint32_t module : nearest) {
    saved.whole.push_back(whole[module][op]);
    saved.cheap.push_back(isCheap[module] ? cheap[module][op] : 0);
  }
  return saved;
}

BoundFacts::Cut BoundFacts::makeCut(size_t op) const {
  Cut cut;
  cut.op = op;
  cut.inUse = inUse[op];
  std::vector<uint32_t> before, after;
  auto isIn = [&](const Use &use, size_t phase) {
    return use.first[phase] != nobody && use.first[phase] <= op &&
           op <= use.last[phase];
  };
  auto isLater = [&](const Use &use, size_t phase) {
    return use.first[phase] != nobody && use.first[phase] > op;
  };
  for (uint32_t unit = 0; unit != uses.size(); ++unit) {
    const Use &use = uses[unit];
    bool isThere = isIn(use, 0) || isIn(use, 1);
    bool isAfter = isLater(use, 0) || isLater(use, 1);
    if (isAfter && !isThere)
      after.push_back(unit);
    // One that is in use may be there from the start.
    if (use.first[0] != nobody && use.first[0] <= op &&
        !(mayStartGathered && isThere))
      before.push_back(unit);
  }
  if (std::none_of(after.begin(), after.end(),
                   [&](uint32_t unit) { return isLater(uses[unit], 0); }))
    cut.byCalls = after;
  for (size_t view : views) {
    cut.before[view] = makeGathers(before, view);
    cut.after[view] = makeGathers(after, view, op);
    cut.reductions[view] = sumReductionsFrom(op, view);
  }
  cut.hasReductions = sumReductionsFrom(op, byStream).reductions != 0;
  auto getShare = [&](uint32_t unit) { // of a call, by byte
    return shares[unit] /
           double(std::max<int64_t>(program.traffic[unit].gatheredBytes, 1));
  };
  std::sort(cut.byCalls.begin(), cut.byCalls.end(),
            [&](uint32_t a, uint32_t b) {
              double left = getShare(a), right = getShare(b);
              return left != right ? left > right : isWorthMore(a, b);
            });
  return cut;
}

void BoundFacts::findMemory() {
  size_t count = program.ops.size();
  mandatory.assign(count + 1, 0);
  inUse.assign(count + 1, 0);
  for (uint32_t unit = 0; unit != uses.size(); ++unit) {
    const Use &use = uses[unit];
    if (use.gradient != nobody) {
      mandatory[use.gradient] += program.traffic[unit].gradientBytes;
      mandatory[use.complete + 1] -= program.traffic[unit].gradientBytes;
    }
    for (size_t phase = 0; phase != numPhases; ++phase)
      if (use.first[phase] != nobody) {
        inUse[use.first[phase]] += program.traffic[unit].gatheredBytes;
        inUse[use.last[phase] + 1] -= program.traffic[unit].gatheredBytes;
      }
  }
  for (const Life &life : program.lives)
    if (program.ops[life.begin].onlyIf == nobody) {
      mandatory[life.begin] += life.bytes;
      mandatory[getEnd(life) + 1] -= life.bytes;
    }
  for (size_t i = 1; i < count; ++i) {
    mandatory[i] += mandatory[i - 1];
    inUse[i] += inUse[i - 1];
  }
  int64_t alive = 0;
  for (size_t i = 0; i != count; ++i) {
    const ComputeOp &op = program.ops[i];
    // A replay, where it runs, leaves nothing.
    alive += std::max<int64_t>(op.change, 0);
    mandatory[i] += alive + op.transient;
    alive += std::min<int64_t>(op.change, 0);
  }
  Savings savings = findSavings();
  leastMandatory = mandatory;
  for (uint32_t module : program.recomputable)
    for (size_t i = 0; i != count; ++i)
      leastMandatory[i] -= getMost(savings, module, i);

  // Most computations end nothing that depends on what is recomputed.
  auto isSame = [&](size_t a, size_t b) {
    for (const auto &ofAll : savings)
      for (const std::vector<int64_t> &own : ofAll)
        if (own[a] != own[b])
          return false;
    return true;
  };
  savedAt.assign(count, 0);
  for (size_t i = 0, last = 0; i != count; ++i) {
    if (program.ops[i].onlyIf != nobody)
      continue;
    if (saved.empty() || !isSame(i, last))
      saved.push_back(findSaved(i, savings));
    savedAt[i] = uint32_t(saved.size() - 1);
    last = i;
  }
  findCalls();
  findCuts();
}

/// Where memory is largest, where the forward meets the backward, and thirds of
/// the forward.
void BoundFacts::findCuts() {
  size_t count = program.ops.size();
  auto findMost = [&](const std::vector<int64_t> &bytes) {
    size_t most = 0;
    for (size_t i = 0; i != count; ++i)
      if (program.ops[i].onlyIf == nobody &&
          bytes[i] + inUse[i] > bytes[most] + inUse[most])
        most = i;
    return most;
  };
  std::vector<size_t> ops;
  if (count)
    ops = {findMost(mandatory), findMost(leastMandatory)};
  for (size_t i = 0; i != count; ++i)
    if (program.ops[i].phase == Phase::Backward) {
      if (program.ops[i].onlyIf == nobody)
        ops.push_back(i);
      if (i)
        ops.push_back(i - 1);
      break;
    }
  size_t firstReplay = 0;
  while (firstReplay != count && program.ops[firstReplay].onlyIf == nobody)
    ++firstReplay;
  for (size_t part : {1, 2, 3})
    if (firstReplay && count)
      ops.push_back((firstReplay - 1) * part / 3);
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  for (size_t op : ops)
    cuts.push_back(makeCut(op));
  for (size_t view : views) {
    byWorth[view] = makeGathers(gathered, view);
    reductions[view] = sumReductionsFrom(0, view);
  }
}

int64_t BoundFacts::getMandatory(size_t op, const Choice &choice) const {
  return mandatory[op] - saved[savedAt[op]].all.get(choice.all, choice.cheap);
}

bool BoundFacts::isPossible(const Choice &choice, Set whole) const {
  size_t count = whole.count();
  return count <= choice.all &&
         choice.all - count <= program.recomputable.size() - nearest.size();
}

int64_t BoundFacts::getMandatory(size_t op, const Choice &choice,
                                 Set whole) const {
  const Saved &here = saved[savedAt[op]];
  size_t count = whole.count();
  int64_t most = here.others.get(choice.all - count, choice.cheap);
  for (size_t i = 0; i != nearest.size(); ++i)
    most += whole[i] ? here.whole[i] : here.cheap[i];
  return mandatory[op] - std::min(most, here.all.get(choice.all, choice.cheap));
}

int64_t BoundFacts::findLeastRoom(const Choice &choice) const {
  int64_t most = 0;
  for (const Cut &cut : cuts)
    most = std::max(most, getMandatory(cut.op, choice) + cut.inUse);
  return most;
}

void BoundFacts::findChoices() {
  for (const Choice &choice : allChoices)
    if (findLeastRoom(choice) <= room)
      choices.push_back(choice);
}
