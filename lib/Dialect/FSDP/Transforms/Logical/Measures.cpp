//===- Measures.cpp - What all gradients of a step add up to --------------===//

#include "Measures.h"

#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace fsdp {

FailureOr<Measures> measureGradients(OpBuilder &builder, func::FuncOp program,
                                     MeasureKind kind) {
  MLIRContext *context = builder.getContext();
  DenseMap<Attribute, Value> gradients; // by unit
  for (auto update : program.getBody().front().getOps<UpdateOpInterface>())
    gradients[update.getUnitAttr()] = update.getGradient();
  auto type = RankedTensorType::get({}, builder.getF64Type());
  StringRef name = kind == MeasureKind::FoundInf ? "found_inf" : "norm";
  auto getLoc = [&](const Twine &text) {
    return NameLoc::get(builder.getStringAttr(text), program.getLoc());
  };

  Measures result;
  llvm::MapVector<Attribute, Value> measures; // by axes
  MeshOp mesh;
  for (auto unit : program->getParentOfType<ModuleOp>().getOps<UnitOp>()) {
    Value gradient = gradients.lookup(FlatSymbolRefAttr::get(unit));
    if (!gradient)
      continue;
    ++result.numUnits;
    mesh =
        SymbolTable::lookupNearestSymbolFrom<MeshOp>(unit, unit.getMeshAttr());
    // Shards of one parameter would be scaled by different numbers.
    if (mesh.getGroupSize(unit.getShardAxes()) *
            mesh.getGroupSize(unit.getReplicateAxes()) !=
        mesh.getNumRanks())
      return program.emitError(kind == MeasureKind::FoundInf ? "grad-scaler"
                                                             : "clip-grad-norm")
             << ": expected gradients that are means over all ranks, found "
                "those of unit '"
             << unit.getSymName()
             << "', which are each rank's own; ignore nothing that trains, or "
             << (kind == MeasureKind::FoundInf ? "scale" : "clip")
             << " nothing";
    SmallVector<Attribute> axes;
    for (auto axis : unit.getShardAxes().getAsRange<StringAttr>())
      if (mesh.getAxisSize(axis) != 1)
        axes.push_back(axis);
    LayoutAttr layout = unit.getLayout();
    SmallVector<int64_t> intervals = getIntervals(
        layout, [](ParameterAttr parameter) { return !parameter.getFrozen(); });
    for (ParameterAttr parameter : layout.getParameters())
      result.numElements += parameter.getFrozen() ? 0 : parameter.getNumel();
    Value &measure = measures[builder.getArrayAttr(axes)];
    measure = MeasureOp::create(builder, getLoc(unit.getSymName() + "." + name),
                                type, kind, unit.getSymName(), intervals,
                                gradient, measure);
  }
  for (auto [key, measure] : measures) {
    auto axes = cast<ArrayAttr>(key);
    if (!axes.empty()) {
      ++result.numReductions;
      measure = AllReduceOp::create(
          builder, getLoc(name), type, /*unit=*/nullptr,
          FlatSymbolRefAttr::get(mesh),
          ReductionRoleAttr::get(context, ReductionRole::Norm), axes,
          DivideAttr::get(context, 1.0, 1.0),
          TypeAttr::get(builder.getF64Type()), measure,
          isMaximum(kind) ? builder.getUnitAttr() : UnitAttr(),
          /*first=*/UnitAttr());
    }
    result.values.push_back(measure);
  }
  return result;
}

} // namespace fsdp
