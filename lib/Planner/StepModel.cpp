//===- StepModel.cpp - What is wrong with a model -------------------------===//

#include "fsdp/Planner/StepModel.h"

#include "fsdp/Planner/Decisions.h"

#include <algorithm>
#include <utility>

using namespace fsdp::planner;

/// Nothing takes longer than a week, and nothing is larger than an exabyte; the
/// sums of both stay far from overflow.
static constexpr int64_t mostNanoseconds = 7ll * 24 * 3600 * 1000000000;
static constexpr int64_t mostBytes = int64_t(1) << 60;
static constexpr int64_t mostContention = 8 * 1024;
static constexpr int64_t mostCount = 1 << 20;

namespace {
/// The sums that must not overflow, and the first sentence.
struct Checker {
  const StepModel &model;
  int64_t time = 0, bytes = 0;
  std::string error = {};

  void fail(const std::string &what) {
    if (error.empty())
      error = what;
  }
  void addTime(int64_t duration, const std::string &of) {
    if (duration < 0 || duration > mostNanoseconds - time)
      return fail(of + ": expected times of a week in sum, found " +
                  std::to_string(duration) + " ns");
    time += duration;
  }
  void addBytes(int64_t size, const std::string &of) {
    if (size < 0 || size > mostBytes - bytes)
      return fail(of + ": expected an exabyte in sum, found " +
                  std::to_string(size) + " bytes");
    bytes += size;
  }
  /// True if a number is one of `count`, or `nobody`.
  void checkNumber(uint32_t number, size_t count, const char *what,
                   const std::string &of) {
    if (number != nobody && number >= count)
      fail(of + ": expected a " + what + " below " + std::to_string(count) +
           ", found " + std::to_string(number));
  }
  void checkGroup(uint32_t group, const std::string &of) {
    for (size_t groups : {model.overlaps.size(), model.links.size()})
      if (groups && group >= groups)
        fail(of + ": expected a group below " + std::to_string(groups) +
             ", found " + std::to_string(group));
  }
  void checkTraffic(const Traffic &traffic, const std::string &where);
  void checkCalls(const Program &program, const std::string &where);
  void checkOps(const Program &program, const std::string &where);
  void checkLives(const Program &program, const std::string &where);
};
} // namespace

void Checker::checkTraffic(const Traffic &traffic, const std::string &where) {
  for (int64_t size :
       {traffic.gatheredBytes, traffic.sentBytes, traffic.gradientBytes,
        traffic.reducedBytes, traffic.resultBytes, traffic.piece.bytes})
    addBytes(size, where);
  for (int64_t size : traffic.heldBytes)
    addBytes(size, where);
  for (const CollectiveCost &cost : {traffic.gather, traffic.reduction,
                                     traffic.allReduce, traffic.piece.gather})
    for (int64_t part : {cost.latency, cost.transfer}) {
      if (part < 0)
        fail(where + ": expected no negative cost, found " +
             std::to_string(part) + " ps");
      addTime(part / 1000, where);
    }
  for (std::optional<int64_t> copy : {traffic.copyIn, traffic.copyOut})
    addTime(copy.value_or(0), where);
  addTime(traffic.piece.copy, where);
  for (uint32_t group : {traffic.gatherGroup, traffic.reduceGroup,
                         traffic.allReduceGroup, traffic.piece.group})
    checkGroup(group, where);
}

/// Each is launched once, and then waited for.
void Checker::checkCalls(const Program &program, const std::string &where) {
  size_t launched = 0;
  for (const ComputeOp &op : program.ops) {
    if (op.launches != nobody && op.launches != launched++)
      fail(where + ": expected fixed calls in the order of their launches");
    if (op.awaits != nobody && op.awaits >= launched)
      fail(where + ": expected a fixed call to be launched before its wait");
  }
  if (launched != program.calls.size())
    fail(where + ": expected each fixed call to be launched once");
  for (const FixedCall &call : program.calls) {
    addTime(call.duration, where + ": fixed call");
    checkGroup(call.group, where + ": fixed call");
  }
}

void Checker::checkOps(const Program &program, const std::string &where) {
  bool isBackward = false;
  std::vector<uint8_t> isUpdated(model.units.size(), false);
  std::vector<uint8_t> mayRecompute(model.modules.size(), false);
  auto allow = [&](uint32_t module, Recompute recompute) {
    uint8_t bit = getBit(recompute);
    if (module >= model.modules.size() || mayRecompute[module] & bit)
      fail(where + ": expected each module once, found number " +
           std::to_string(module));
    else
      mayRecompute[module] |= bit;
  };
  for (uint32_t module : program.recomputable)
    allow(module, Recompute::All);
  for (uint32_t module : program.cheap) {
    allow(module, Recompute::Cheap);
    if (error.empty() && mayRecompute[module] == getBit(Recompute::Cheap))
      fail(where +
           ": expected all of a module to be recomputable if what is "
           "cheap is, found number " +
           std::to_string(module));
  }
  if (!error.empty())
    return;
  for (size_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    std::string at = where + ": computation " + std::to_string(i);
    addTime(op.duration, at);
    addBytes(op.change < 0 ? -op.change : op.change, at);
    addBytes(op.transient, at);
    checkNumber(op.onlyIf, model.modules.size(), "module", at);
    for (uint32_t unit : {op.weights, op.gradient, op.update})
      checkNumber(unit, model.units.size(), "unit", at);
    if (!error.empty())
      return;
    if (op.onlyIf != nobody &&
        (!(mayRecompute[op.onlyIf] & getBit(op.recompute)) ||
         op.phase == Phase::Forward || op.gradient != nobody ||
         op.update != nobody || op.change || op.launches != nobody ||
         op.awaits != nobody))
      fail(at + ": expected what is recomputed to be of the backward, and to "
                "make no gradient");
    isBackward |= op.phase == Phase::Backward;
    if (isBackward && op.phase == Phase::Forward)
      fail(at + ": expected the whole forward before the backward");
    if (op.gradient != nobody && isUpdated[op.gradient])
      fail(at + ": expected the gradient of a unit before its update");
    if (op.update != nobody)
      isUpdated[op.update] = true;
  }
}

void Checker::checkLives(const Program &program, const std::string &where) {
  size_t count = program.ops.size();
  for (const Life &life : program.lives) {
    addBytes(life.bytes, where);
    auto reads = [&](uint32_t op) {
      if (op < life.begin || op >= count)
        fail(where + ": expected memory to be read after it is made, found " +
             std::to_string(op) + " after " + std::to_string(life.begin));
    };
    reads(life.begin);
    reads(life.end);
    if (!error.empty())
      return;
    // What is read is there whenever the memory is.
    auto isThere = [&](uint32_t op) {
      const ComputeOp &own = program.ops[op], &maker = program.ops[life.begin];
      return own.onlyIf == nobody ||
             (own.onlyIf == maker.onlyIf && own.recompute == maker.recompute);
    };
    if (!isThere(life.end))
      fail(where + ": expected memory to end with a computation that is there");
    for (const Life::Read &read : life.reads) {
      checkNumber(read.module, model.modules.size(), "module", where);
      reads(read.op);
      if (error.empty() && !isThere(read.op) &&
          !(program.ops[read.op].onlyIf == read.module &&
            read.ifs == getBit(program.ops[read.op].recompute)))
        fail(where + ": expected memory to be read by a computation that is "
                     "there");
    }
  }
}

bool fsdp::planner::mayKeepPieces(const StepModel &model) {
  for (const Program &program : model.programs)
    for (const Traffic &own : program.traffic)
      if (own.piece.bytes)
        return true;
  return false;
}

std::string fsdp::planner::check(const StepModel &model) {
  Checker checker{model};
  checker.addBytes(model.persistentBytes, "what is persistent");
  if (model.budget < 0)
    checker.fail("expected a budget of 0 bytes or more, found " +
                 std::to_string(model.budget));
  if (model.contention < 0 || model.contention > mostContention)
    checker.fail("expected a contention from 0 to " +
                 std::to_string(mostContention) + ", found " +
                 std::to_string(model.contention));
  if (model.units.size() >= nobody || model.modules.size() >= nobody)
    checker.fail("expected fewer units and modules");
  for (const Unit &unit : model.units) {
    checker.checkNumber(unit.module, model.modules.size(), "module",
                        "unit '" + unit.name + "'");
    checker.addBytes(unit.residentBytes, "unit '" + unit.name + "'");
  }
  for (const std::vector<uint8_t> &row : model.overlaps)
    if (row.size() != model.overlaps.size())
      checker.fail("expected a row of groups for each group");
  for (const auto &ofGroup : model.links)
    for (const LinkUse &links : ofGroup)
      for (uint16_t part : links)
        if (part > wholeLink)
          checker.fail("expected at most " + std::to_string(wholeLink) +
                       " parts of a link, found " + std::to_string(part));
  for (const Program &program : model.programs) {
    std::string where = "program '" + program.name + "'";
    checker.time = 0; // each program by itself
    if (program.count < 1 || program.count > mostCount)
      checker.fail(where + ": expected a count from 1 to " +
                   std::to_string(mostCount) + ", found " +
                   std::to_string(program.count));
    if (program.ops.size() >= nobody / 2)
      checker.fail(where + ": expected fewer computations");
    if (program.traffic.size() != model.units.size())
      checker.fail(where + ": expected the traffic of " +
                   std::to_string(model.units.size()) +
                   " units, found that of " +
                   std::to_string(program.traffic.size()));
    for (size_t unit = 0; checker.error.empty() && unit != model.units.size();
         ++unit)
      checker.checkTraffic(program.traffic[unit],
                           where + ": unit '" + model.units[unit].name + "'");
    if (checker.error.empty())
      checker.checkOps(program, where);
    if (checker.error.empty())
      checker.checkCalls(program, where);
    if (checker.error.empty())
      checker.checkLives(program, where);
  }
  return checker.error;
}

Decisions fsdp::planner::makeDecisions(const StepModel &model) {
  ProgramDecisions none = {std::vector<UnitDecision>(model.units.size()),
                           std::vector<Recompute>(model.modules.size())};
  return {std::vector<ProgramDecisions>(model.programs.size(), none),
          std::vector<uint8_t>(model.units.size(), false)};
}
