//===- Schedule.cpp - Decide when collectives are issued ------------------===//
//
// Hands the step to the planner, checks what comes back, and says why each
// gather is where it is.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Memory.h"
#include "fsdp/Analysis/StepProblem.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;
namespace scheduling = fsdp::planner::scheduling;

namespace fsdp {
#define GEN_PASS_DEF_SCHEDULEPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// Says of each gather how far ahead it is launched, what that hides, and what
/// the next unit ahead would cost.
class GatherRemarks {
public:
  GatherRemarks(const StepProblem &step, const scheduling::Answer &answer)
      : step(step), schedule(answer.schedule), order(schedule.order),
        line(measure(step.problem, answer.schedule)) {}

  void emit();

private:
  std::string explain(uint32_t gather, size_t place, size_t firstWait);

  const StepProblem &step;
  const scheduling::Schedule &schedule;
  const std::vector<uint32_t> &order;
  scheduling::Timeline line;
  std::vector<int64_t> memory; // at each place of the order
  std::vector<size_t> waits;   // places at which a gather is waited for
  int64_t busyUntil = -1;      // the end of the gather before
};

} // namespace

void GatherRemarks::emit() {
  const scheduling::Problem &problem = step.problem;
  std::vector<int64_t> change(order.size() + 1);
  std::vector<size_t> place(order.size());
  for (auto [i, op] : llvm::enumerate(order))
    place[op] = i;
  for (const scheduling::Buffer &buffer : problem.buffers) {
    change[place[buffer.from]] += buffer.bytes;
    change[place[buffer.until] + 1] -= buffer.bytes;
  }
  int64_t alive = 0;
  for (size_t i = 0; i != order.size(); ++i)
    memory.push_back(alive += change[i]);
  for (auto [i, op] : llvm::enumerate(order))
    if (auto wait = dyn_cast<AsyncWaitOp>(step.operations[op].front()))
      if (LaunchOpInterface launch = wait.getLaunch();
          launch && launch.isGather())
        waits.push_back(i);

  for (auto [i, op] : llvm::enumerate(order)) {
    auto gather = dyn_cast<LaunchOpInterface>(step.operations[op].front());
    if (!gather || !gather.isGather() || gather.getFuture().use_empty())
      continue; // not a gather that verifiers let pass
    size_t first = llvm::lower_bound(waits, i) - waits.begin();
    Operation *user = *gather.getFuture().getUsers().begin();
    size_t ahead = 0;
    while (first + ahead < waits.size() &&
           step.operations[order[waits[first + ahead]]].front() != user)
      ++ahead;
    int64_t took = schedule.end[op] - schedule.start[op];
    int64_t hidden = std::max<int64_t>(0, took - line.exposed[op]);
    remark::analysis(gather.getLoc(),
                     getRemark("fsdp-schedule", "gather", gather))
        << remark::metric("Unit", gather.getUnitAttr().getValue())
        << remark::metric(
               "Phase", aten::stringifyPhase(gather.getPhaseAttr().getValue()))
        << remark::metric("UnitsAhead", int64_t(ahead))
        << remark::metric("Hidden", spellTime(hidden))
        << remark::metric("Of", spellTime(took))
        << remark::reason("{0}", explain(op, i, first));
    busyUntil = schedule.end[op];
  }
  Operation *begin = step.operations.front().front();
  remark::analysis(begin->getLoc(),
                   getRemark("fsdp-schedule", "timeline", begin))
      << remark::metric("Step", spellTime(line.makespan))
      << remark::metric("Exposed", spellTime(line.exposedTotal))
      << remark::metric("Peak",
                        spellBytes(line.peakBytes + step.persistentBytes));
}

/// Why the gather at `place` is not launched one unit earlier, in front of the
/// wait before `firstWait`.
std::string GatherRemarks::explain(uint32_t gather, size_t place,
                                   size_t firstWait) {
  if (line.exposed[gather] == 0)
    return "all of it is hidden";
  if (step.problem.sharesCore)
    return "all streams share a core";
  if (firstWait == 0)
    return "nothing comes before it";
  int64_t bytes = 0;
  for (Operation *launch : step.operations[gather]) {
    if (!cast<LaunchOpInterface>(launch).getAfter().empty())
      return "it waits for a reshard";
    bytes += getMemoryBytes(launch->getResult(0).getType());
  }
  int64_t most = *std::max_element(memory.begin() + waits[firstWait - 1],
                                   memory.begin() + place);
  if (most > step.problem.memoryLimit - bytes)
    return "one unit more would exceed the limit by " +
           spellBytes(most - (step.problem.memoryLimit - bytes));
  if (schedule.start[gather] == busyUntil)
    return "the gather before it ends as it starts";
  return "one unit more would hold " +
         spellBytes(most + bytes + step.persistentBytes) + " there";
}

namespace {
class SchedulePass : public ProgramPass<impl::SchedulePassBase<SchedulePass>,
                                        Level::Scheduled> {
  using ProgramPass::ProgramPass;

  /// Kinds of values that are worth a line.
  static constexpr unsigned mostKinds = 8;

  LogicalResult runOnProgram(func::FuncOp func) final {
    auto order = IssueOrder::read(func.getBody().front());
    if (failed(order))
      return failure();
    if (algorithm == scheduling::Algorithm::List)
      holdLaunches(func);
    StepProblem step = buildStepProblem(func, *order);
    if (budget)
      step.problem.memoryLimit =
          std::max<int64_t>(0, budget - step.persistentBytes);
    if (std::string error = check(step.problem); !error.empty())
      return func.emitError("cannot be scheduled: ") << error;

    scheduling::Answer answer = solve(step.problem, algorithm);
    if (!answer.isFeasible || (budget && budget < step.persistentBytes))
      return reject(func, step, answer.peak);
    if (std::string error = verify(step.problem, answer.schedule);
        !error.empty())
      return func.emitError("the schedule is wrong: ") << error;

    // All but the launches is in the order that it had.
    Operation *place = func.getBody().front().getTerminator();
    for (uint32_t number : llvm::reverse(answer.schedule.order))
      for (Operation *op : llvm::reverse(step.operations[number])) {
        if (isa<LaunchOpInterface>(op))
          order->moveBefore(op, place);
        place = op;
      }
    order->write();
    if (getContext().getRemarkEngine() && !step.operations.empty())
      GatherRemarks(step, answer).emit();
    return success();
  }

  /// What is scheduled starts where it is issued.
  static void holdLaunches(func::FuncOp func) {
    for (auto launch : func.getOps<LaunchOpInterface>())
      launch.setAhead(false);
  }

  LogicalResult reject(func::FuncOp func, const StepProblem &step,
                       const scheduling::Peak &peak) {
    bool isProgram = algorithm == scheduling::Algorithm::Program;
    InFlightDiagnostic diag =
        func.emitError("memory peaks at ")
        << spellBytes(step.persistentBytes + peak.bytes)
        << (isProgram ? " in program order, " : " in the leanest order, ")
        << spellBytes(step.persistentBytes)
        << " of it persistent, and the limit is " << spellBytes(budget)
        << ": the smallest that can be met is "
        << step.persistentBytes + peak.bytes << " bytes";
    SmallVector<MemoryLife> lives;
    for (uint32_t buffer : peak.buffers)
      lives.push_back(step.buffers[buffer]);
    SmallVector<MemoryPeak::Alive> kinds = summarizeMemory(lives);
    for (const MemoryPeak::Alive &alive : ArrayRef(kinds).take_front(mostKinds))
      diag.attachNote(alive.loc)
          << alive.what << ": " << spellBytes(alive.bytes) << " in "
          << alive.values << (alive.values == 1 ? " value" : " values");
    return diag;
  }
};
} // namespace

} // namespace fsdp
