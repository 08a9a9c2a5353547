//===- VerifyLogical.cpp - The border between aten and logical level ------===//
//
// What must hold once the step is sharded.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYLOGICALPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

static LogicalResult verify(func::FuncOp step) {
  for (unsigned i = 0, e = step.getNumArguments(); i < e; ++i)
    if (auto name = step.getArgAttr(i, aten::ATenDialect::getParamAttrName()))
      return step.emitError("parameter ") << name << " is not sharded";
  for (unsigned i = 0, e = step.getNumResults(); i < e; ++i)
    if (auto name =
            step.getResultAttr(i, aten::ATenDialect::getGradOfAttrName()))
      return step.emitError("the gradient of ") << name << " is not reduced";
  for (Operation &op : step.getOps())
    if (op.hasTrait<ScheduledOp>())
      return op.emitError("is of the scheduled level");
  return verifyGathers(step);
}

namespace {
class VerifyLogicalPass
    : public ProgramPass<impl::VerifyLogicalPassBase<VerifyLogicalPass>,
                         Level::ATen, Level::Logical, Level::Scheduled> {
  LogicalResult runOnProgram(func::FuncOp program) final {
    markAllAnalysesPreserved();
    return verify(program);
  }
};
} // namespace

} // namespace fsdp
