//===- VerifyMemory.cpp - Check a step against a budget of memory ---------===//
//
// Finds the peak, says what is alive there, and rejects what does not fit.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYMEMORYPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class VerifyMemoryPass
    : public ProgramPass<impl::VerifyMemoryPassBase<VerifyMemoryPass>,
                         Level::Scheduled> {
  using ProgramPass::ProgramPass;

  /// Kinds of values that are worth a line.
  static constexpr unsigned mostKinds = 8;

  LogicalResult runOnProgram(func::FuncOp step) final {
    markAllAnalysesPreserved();
    Block &block = step.getBody().front();
    if (failed(checkStraightLine(block)) || failed(checkApplied(block)))
      return failure();
    MemoryPeak peak = findMemoryPeak(step);
    if (peak.at && step.getContext()->getRemarkEngine())
      emitRemarks(peak, findMemoryPeak(step, MemorySpace::Host).getTotal());
    if (budget == 0 || peak.getTotal() <= budget)
      return success();

    InFlightDiagnostic diag =
        (peak.at ? peak.at : step.getOperation())->emitError("memory peaks at ")
        << spellBytes(peak.getTotal()) << ", " << spellBytes(peak.persistent)
        << " of it persistent, and the budget is " << spellBytes(budget)
        << ": this schedule fits into " << peak.getTotal()
        << " bytes, and not into less";
    for (const MemoryPeak::Alive &alive :
         ArrayRef(peak.alive).take_front(mostKinds))
      diag.attachNote(alive.loc)
          << alive.what << ": " << spellBytes(alive.bytes) << " in "
          << alive.values << (alive.values == 1 ? " value" : " values");
    return diag;
  }

  static void emitRemarks(const MemoryPeak &peak, int64_t host) {
    auto options = [&](StringRef name) {
      return getRemark("fsdp-verify-memory", name, peak.at);
    };
    remark::analysis(peak.at->getLoc(), options("peak"))
        << remark::metric("Bytes", peak.getTotal())
        << remark::metric("Persistent", peak.persistent);
    if (host)
      remark::analysis(peak.at->getLoc(), options("host"))
          << remark::metric("Bytes", host);
    for (const MemoryPeak::Alive &alive :
         ArrayRef(peak.alive).take_front(mostKinds))
      remark::analysis(alive.loc, options("alive"))
          << remark::metric("What", alive.what)
          << remark::metric("Bytes", alive.bytes)
          << remark::metric("Values", alive.values);
  }
};
} // namespace

} // namespace fsdp
