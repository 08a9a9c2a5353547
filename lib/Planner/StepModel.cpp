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
  void checkUnit(const Unit &unit);
  void checkOps(const Program &program, const std::string &where);
  void checkGroups(const Program &program, const std::string &where);
};
} // namespace

void Checker::checkUnit(const Unit &unit) {
  std::string where = "unit '" + unit.name + "'";
  if (unit.module != nobody && unit.module >= model.modules.size())
    fail(where + ": expected a module below " +
         std::to_string(model.modules.size()) + ", found " +
         std::to_string(unit.module));
  for (int64_t size : {unit.gatheredBytes, unit.sentBytes, unit.gradientBytes,
                       unit.reducedBytes})
    addBytes(size, where);
  for (const CollectiveCost &cost :
       {unit.gather, unit.reduction, unit.allReduce})
    for (int64_t part : {cost.latency, cost.transfer}) {
      if (part < 0)
        fail(where + ": expected no negative cost, found " +
             std::to_string(part) + " ps");
      addTime(part / 1000, where);
    }
}

void Checker::checkOps(const Program &program, const std::string &where) {
  bool isBackward = false;
  std::vector<uint8_t> isUpdated(model.units.size(), false);
  for (size_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    std::string at = where + ": computation " + std::to_string(i);
    addTime(op.duration, at);
    addBytes(op.change < 0 ? -op.change : op.change, at);
    addBytes(op.transient, at);
    for (uint32_t unit : {op.weights, op.gradient, op.update})
      if (unit != nobody && unit >= model.units.size())
        return fail(at + ": expected a unit below " +
                    std::to_string(model.units.size()) + ", found " +
                    std::to_string(unit));
    isBackward |= op.phase == Phase::Backward;
    if (isBackward && op.phase == Phase::Forward)
      fail(at + ": expected the whole forward before the backward");
    if (op.gradient != nobody && isUpdated[op.gradient])
      fail(at + ": expected the gradient of a unit before its update");
    if (op.update != nobody)
      isUpdated[op.update] = true;
  }
}

void Checker::checkGroups(const Program &program, const std::string &where) {
  uint32_t backward = 0;
  std::vector<uint8_t> isTaken(program.ops.size(), false);
  std::vector<uint8_t> isKnown(model.modules.size(), false);
  for (const RecomputeGroup &group : program.groups) {
    if (group.module >= model.modules.size() ||
        std::exchange(isKnown[group.module], true))
      return fail(where + ": expected each module once, found number " +
                  std::to_string(group.module));
    std::string at = where + ": module '" + model.modules[group.module] + "'";
    addBytes(group.keptBytes, at);
    if (group.forwardBegin >= group.forwardEnd ||
        group.forwardEnd > group.backwardBegin ||
        group.backwardBegin >= group.backwardEnd ||
        group.backwardEnd > program.ops.size() ||
        group.backwardBegin < backward)
      return fail(at + ": expected a forward and then a backward, by the "
                       "begin of the backward");
    backward = group.backwardEnd;
    for (uint32_t op = group.forwardBegin; op != group.forwardEnd; ++op)
      if (std::exchange(isTaken[op], true) ||
          program.ops[op].phase != Phase::Forward)
        return fail(at +
                    ": expected computations of the forward of one module");
    uint32_t next = group.forwardBegin;
    for (uint32_t op : group.replayed) {
      if (op < next || op >= group.forwardEnd)
        return fail(at +
                    ": expected to replay computations of its forward, "
                    "found number " +
                    std::to_string(op));
      addTime(program.ops[op].duration, at);
      next = op + 1;
    }
    for (uint32_t op = group.forwardBegin; op != group.forwardEnd; ++op)
      if (program.ops[op].change > 0 &&
          !std::binary_search(group.replayed.begin(), group.replayed.end(), op))
        return fail(at +
                    ": expected to replay all that leaves memory for the "
                    "backward, found not to replay number " +
                    std::to_string(op));
  }
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
  for (const Unit &unit : model.units)
    checker.checkUnit(unit);
  int64_t unitTime = checker.time;
  for (const Program &program : model.programs) {
    std::string where = "program '" + program.name + "'";
    checker.time = unitTime; // each program by itself
    if (program.count < 1 || program.count > mostCount)
      checker.fail(where + ": expected a count from 1 to " +
                   std::to_string(mostCount) + ", found " +
                   std::to_string(program.count));
    if (program.ops.size() >= nobody / 2)
      checker.fail(where + ": expected fewer computations");
    if (checker.error.empty())
      checker.checkOps(program, where);
    if (checker.error.empty())
      checker.checkGroups(program, where);
  }
  return checker.error;
}

Decisions fsdp::planner::makeDecisions(const StepModel &model) {
  ProgramDecisions none = {std::vector<UnitDecision>(model.units.size()),
                           std::vector<uint8_t>(model.modules.size(), false)};
  return {std::vector<ProgramDecisions>(model.programs.size(), none),
          std::vector<uint8_t>(model.units.size(), false)};
}
