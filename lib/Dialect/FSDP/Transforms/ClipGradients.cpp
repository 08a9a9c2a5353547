//===- ClipGradients.cpp - Clip the norm of all gradients -----------------===//
//
// Measures of all units, reduced over the axes along which they are sharded.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/MapVector.h"

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
    MLIRContext *context = &getContext();
    DenseMap<Attribute, Value> gradients; // by unit
    for (UpdateOpInterface update : updates) {
      if (update.scalesGradient())
        return update->emitError("expected an update of a gradient that "
                                 "nothing scales, found one");
      gradients[update.getUnitAttr()] = update.getGradient();
    }
    OpBuilder builder(updates.front());
    auto sumType = RankedTensorType::get({}, builder.getF64Type());
    auto getLoc = [&](const Twine &name) {
      return NameLoc::get(builder.getStringAttr(name), program.getLoc());
    };
    // One measure for all units that are sharded over the same axes; along the
    // others, all ranks have the same gradients.
    llvm::MapVector<Attribute, Value> measures; // by axes
    MeshOp mesh;
    int64_t numElements = 0;
    for (auto unit : getOperation().getOps<UnitOp>()) {
      Value gradient = gradients.lookup(FlatSymbolRefAttr::get(unit));
      if (!gradient)
        continue;
      mesh = SymbolTable::lookupNearestSymbolFrom<MeshOp>(unit,
                                                          unit.getMeshAttr());
      // Shards of one parameter would be clipped by different norms.
      if (mesh.getGroupSize(unit.getShardAxes()) *
              mesh.getGroupSize(unit.getReplicateAxes()) !=
          mesh.getNumRanks())
        return program.emitError("clip-grad-norm: expected gradients that are "
                                 "means over all ranks, found those of unit '")
               << unit.getSymName()
               << "', which are each rank's own; ignore nothing that trains, "
                  "or "
                  "clip nothing";
      SmallVector<Attribute> axes;
      for (auto axis : unit.getShardAxes().getAsRange<StringAttr>())
        if (mesh.getAxisSize(axis) != 1)
          axes.push_back(axis);
      LayoutAttr layout = unit.getLayout();
      SmallVector<int64_t> intervals =
          getIntervals(layout, [](ParameterAttr parameter) {
            return !parameter.getFrozen();
          });
      for (ParameterAttr parameter : layout.getParameters())
        numElements += parameter.getFrozen() ? 0 : parameter.getNumel();
      Value &measure = measures[builder.getArrayAttr(axes)];
      measure = MeasureOp::create(builder, getLoc(unit.getSymName() + ".norm"),
                                  sumType, clipGradNorm.kind, unit.getSymName(),
                                  intervals, gradient, measure);
    }
    int64_t numReductions = 0;
    SmallVector<Value> reduced;
    for (auto [key, measure] : measures) {
      auto axes = cast<ArrayAttr>(key);
      if (!axes.empty()) {
        ++numReductions;
        measure = AllReduceOp::create(
            builder, getLoc("norm"), measure.getType(), /*unit=*/nullptr,
            FlatSymbolRefAttr::get(mesh),
            ReductionRoleAttr::get(context, ReductionRole::Norm), axes,
            DivideAttr::get(context, 1.0, 1.0),
            TypeAttr::get(builder.getF64Type()), measure,
            clipGradNorm.kind == MeasureKind::AbsMax ? builder.getUnitAttr()
                                                     : UnitAttr(),
            /*first=*/UnitAttr());
      }
      reduced.push_back(measure);
    }
    Value factor = ClipFactorOp::create(
        builder, getLoc("clip_factor"),
        RankedTensorType::get({}, builder.getF32Type()), clipGradNorm.kind,
        APFloat(clipGradNorm.maxNorm), reduced, /*loss_scale=*/Value());
    for (UpdateOpInterface update : updates)
      update.setClipFactor(factor);
    program->setAttr(FSDPDialect::getClipGradNormAttrName(),
                     getAttribute(clipGradNorm, context));
    remark::passed(program.getLoc(), getRemark(getArgument(), "clip", program))
        << remark::metric("Units", int64_t(gradients.size()))
        << remark::metric("Elements", numElements)
        << remark::metric("Reductions", numReductions);
    return success();
  }
};
} // namespace

} // namespace fsdp
