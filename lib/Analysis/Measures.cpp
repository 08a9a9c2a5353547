//===- Measures.cpp - Is something measured of all gradients? -------------===//

#include "Measures.h"

using namespace mlir;

namespace fsdp {

LogicalResult verifyCovered(UnitOp unit,
                            SmallVectorImpl<UnitInterval> &intervals,
                            StringRef what) {
  if (intervals.empty())
    return success();
  llvm::sort(intervals,
             [](const UnitInterval &left, const UnitInterval &right) {
               return left.begin < right.begin;
             });
  for (size_t i = 1; i < intervals.size(); ++i)
    if (intervals[i].begin < intervals[i - 1].end)
      return intervals[i].op->emitError("expected each element of unit '")
             << unit.getSymName() << "' to be " << what
             << " once, found element " << intervals[i].begin
             << " a second time";
  // Intervals are disjoint and ascend, and so do parameters.
  const UnitInterval *interval = intervals.begin();
  for (ParameterAttr parameter : unit.getLayout().getParameters()) {
    if (parameter.getFrozen())
      continue;
    for (int64_t at = parameter.getOffset(); at < parameter.getEnd();) {
      while (interval != intervals.end() && interval->end <= at)
        ++interval;
      if (interval == intervals.end() || interval->begin > at)
        return intervals.front().op->emitError("expected parameter ")
               << parameter.getName() << " to be " << what << ", found element "
               << at << " in no interval";
      at = interval->end;
    }
  }
  return success();
}

MeasuredGradients::MeasuredGradients(func::FuncOp program,
                                     function_ref<bool(Value, Value)> areEqual)
    : module(program->getParentOfType<ModuleOp>()), symbols(module),
      areEqual(areEqual) {
  for (auto update : program.getBody().front().getOps<UpdateOpInterface>())
    gradients.try_emplace(update.getUnitAttr(), update.getGradient());
}

/// Those of the axes that have more than one rank.
llvm::StringSet<> MeasuredGradients::getAxes(UnitOp unit,
                                             ArrayRef<StringRef> axes) {
  auto mesh = symbols.lookup<MeshOp>(unit.getMesh());
  llvm::StringSet<> found;
  for (StringRef axis : axes)
    if (mesh.getAxisSize(axis).value_or(1) != 1)
      found.insert(axis);
  return found;
}

LogicalResult
MeasuredGradients::readMeasure(MeasureOp measure,
                               const llvm::StringSet<> &reducedOver) {
  auto unit = symbols.lookup<UnitOp>(measure.getUnit());
  auto names =
      llvm::to_vector(unit.getShardAxes().getAsValueRange<StringAttr>());
  llvm::StringSet<> expected = getAxes(unit, names);
  bool isSame = expected.size() == reducedOver.size() &&
                llvm::all_of(reducedOver.keys(), [&](StringRef axis) {
                  return expected.contains(axis);
                });
  if (!isSame)
    return measure.emitError("expected the measure of unit '")
           << unit.getSymName() << "' to be reduced over the axes "
           << unit.getShardAxes()
           << " along which it is sharded, found other axes";
  if (measure.getKind() != kind)
    return measure.emitError("expected a measure of the kind '")
           << stringifyMeasureKind(kind) << "', found another";
  Value gradient = gradients.lookup(measure.getUnitAttr());
  if (!gradient || !areEqual(gradient, measure.getShard()))
    return measure.emitError(
        "expected a measure of a gradient that is updated, "
        "found one of another value");
  SmallVector<UnitInterval> &own = measured[measure.getUnitAttr()];
  ArrayRef<int64_t> intervals = measure.getIntervals();
  for (size_t i = 0; i + 1 < intervals.size(); i += 2)
    own.push_back(
        {intervals[i], intervals[i + 1], measure, measure.getShard()});
  return success();
}

/// The measures of which a norm is made, each reduced over the axes along which
/// its unit is sharded, and over no others.
LogicalResult MeasuredGradients::readNorm(Value norm) {
  auto skipWaits = [](Value value) {
    while (auto wait = value ? value.getDefiningOp<AsyncWaitOp>() : nullptr)
      value = wait.getFuture();
    return value;
  };
  norm = skipWaits(norm);
  SmallVector<StringRef> axes;
  if (auto reduction = norm.getDefiningOp<CollectiveOpInterface>()) {
    auto divide = reduction->getAttrOfType<DivideAttr>("divide");
    bool isRight = reduction.getKind() == CollectiveKind::AllReduce &&
                   reduction->hasAttr("max") == isMaximum(kind) &&
                   divide.getPre() == 1 && divide.getPost() == 1 &&
                   reduction.getWireType().isF64();
    if (!isRight)
      return reduction->emitError("expected a measure to be ")
             << (isMaximum(kind) ? "the largest" : "the sum")
             << " over ranks in f64, found another reduction";
    axes = reduction.getGroupAxes();
    norm = skipWaits(reduction->getOperand(0));
  }
  for (; norm;) {
    auto measure = norm.getDefiningOp<MeasureOp>();
    if (!measure)
      return user->emitError("expected measures of gradients, found another "
                             "value");
    auto unit = symbols.lookup<UnitOp>(measure.getUnit());
    if (failed(readMeasure(measure, getAxes(unit, axes))))
      return failure();
    norm = skipWaits(measure.getInitial());
  }
  return success();
}

LogicalResult MeasuredGradients::verify(Operation *op, MeasureKind measure,
                                        ValueRange measures) {
  user = op;
  kind = measure;
  measured.clear();
  for (Value norm : measures)
    if (failed(readNorm(norm)))
      return failure();
  for (auto unit : module.getOps<UnitOp>()) {
    auto name = FlatSymbolRefAttr::get(unit);
    if (gradients.contains(name) && unit.getLayout().hasTrainable() &&
        !measured.contains(name))
      return user->emitError("expected measures of all gradients that are "
                             "updated, found none of unit ")
             << name;
    if (failed(verifyCovered(unit, measured[name], "measured")))
      return failure();
  }
  return success();
}

} // namespace fsdp
