//===- ClipGradients.cpp - Clip the norm of all gradients -----------------===//
//
// Measures of all units, reduced over the axes along which they are sharded.
//
//===----------------------------------------------------------------------===//

#include "Measures.h"

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_CLIPGRADIENTSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class ClipGradientsPass
    : public ProgramPass<impl::ClipGradientsPassBase<ClipGradientsPass>,
                         Level::Logical> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    auto updates =
        llvm::to_vector(program.getBody().front().getOps<UpdateOpInterface>());
    return !clipGradNorm || updates.empty() ? success()
                                            : clip(program, updates);
  }

  LogicalResult clip(func::FuncOp program,
                     MutableArrayRef<UpdateOpInterface> updates) {
    OpBuilder builder(updates.front());
    Value scale = updates.front().getScalar(UpdateScalar::LossScale);
    for (UpdateOpInterface update : updates)
      if (update.getScalar(UpdateScalar::ClipFactor) ||
          update.getScalar(UpdateScalar::LossScale) != scale)
        return update->emitError("expected an update of a gradient that is not "
                                 "clipped, and scaled as all others, found "
                                 "another");
    auto measures = measureGradients(builder, program, clipGradNorm.kind);
    if (failed(measures))
      return failure();
    auto name =
        NameLoc::get(builder.getStringAttr("clip_factor"), program.getLoc());
    Value factor = ClipFactorOp::create(
        builder, name, RankedTensorType::get({}, builder.getF32Type()),
        clipGradNorm.kind, APFloat(clipGradNorm.maxNorm), measures->values,
        scale);
    for (UpdateOpInterface update : updates)
      update.setScalar(UpdateScalar::ClipFactor, factor);
    program->setAttr(FSDPDialect::getClipGradNormAttrName(),
                     getAttribute(clipGradNorm, &getContext()));
    remark::passed(program.getLoc(), getRemark(getArgument(), "clip", program))
        << remark::metric("Units", measures->numUnits)
        << remark::metric("Elements", measures->numElements)
        << remark::metric("Reductions", measures->numReductions);
    return success();
  }
};
} // namespace

} // namespace fsdp
