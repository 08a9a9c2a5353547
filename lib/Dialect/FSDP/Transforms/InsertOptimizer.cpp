//===- InsertOptimizer.cpp - Update the shards at the end of the step -----===//
//
// States and updates, one per unit with a reduced gradient.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_INSERTOPTIMIZERPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// The elements that train: from the first parameter of each run without frozen
/// ones to where the next frozen one, or the layout, begins or ends. What lies
/// between is padding, which is 0 and has no gradient, so it stays 0.
static SmallVector<int64_t> getTrainableIntervals(LayoutAttr layout) {
  SmallVector<int64_t> intervals;
  bool inside = false;
  for (ParameterAttr parameter : layout.getParameters()) {
    if (parameter.getNumel() != 0 && inside == parameter.getFrozen()) {
      intervals.push_back(parameter.getOffset());
      inside = !inside;
    }
  }
  if (inside)
    intervals.push_back(layout.getPadded());
  return intervals;
}

namespace {
class InsertOptimizerPass
    : public ProgramPass<impl::InsertOptimizerPassBase<InsertOptimizerPass>,
                         Level::Logical> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    return optimizer == Optimizer::None ? success() : insert(program);
  }

  LogicalResult insert(func::FuncOp step) {
    MLIRContext *context = &getContext();
    SymbolTable symbols(getOperation());
    Block &block = step.getBody().front();
    Operation *terminator = block.getTerminator();
    Ports arguments = getArguments(step), results = getResults(step);
    SmallVector<Value> returned(terminator->getOperands());

    // Which argument is which unit's shard.
    DenseMap<Attribute, Value> shards;
    for (auto [argument, dict] :
         llvm::zip_equal(block.getArguments(), arguments.attrs)) {
      auto state = dict ? dict.getAs<StateAttr>(FSDPDialect::getStateAttrName())
                        : StateAttr();
      if (state && state.getKind() == StateAttr::getParameterKind())
        shards[state.getUnit()] = argument;
    }
    // The gradients, in the order in which their reductions are launched: the
    // first one to be there is the first to be used.
    SmallVector<std::pair<UnitOp, Value>> gradients;
    DenseMap<Value, UnitOp> unitOf;
    for (auto [value, dict] : llvm::zip_equal(returned, results.attrs)) {
      auto state = dict ? dict.getAs<StateAttr>(FSDPDialect::getStateAttrName())
                        : StateAttr();
      if (!state || state.getKind() != StateAttr::getGradientKind())
        continue;
      auto unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
      if (!unit || !shards.contains(state.getUnit()))
        return step.emitError("expected a parameter argument for the gradient ")
               << state;
      unitOf[value] = unit;
    }
    for (Operation &op : block)
      for (Value result : op.getResults())
        if (UnitOp unit = unitOf.lookup(result))
          gradients.emplace_back(unit, result);
    if (gradients.empty())
      return success();

    OpBuilder builder(terminator);
    auto getLoc = [&](UnitOp unit, StringRef what) {
      return NameLoc::get(builder.getStringAttr(unit.getSymName() + "." + what),
                          step.getLoc());
    };
    // A new argument and, once it is computed, a new result.
    auto addState = [&](UnitOp unit, StringRef kind, Type type) {
      arguments.add(type, getStateDict(unit, kind));
      return block.addArgument(type, getLoc(unit, kind));
    };
    auto addResult = [&](UnitOp unit, StringRef kind, Value value) {
      results.add(value.getType(), getStateDict(unit, kind));
      returned.push_back(value);
    };

    // All that trains is in one decay group.
    RankedTensorType hyperType = getHyperType(context);
    Value hyper = block.addArgument(
        hyperType, NameLoc::get(builder.getStringAttr("hyper"), step.getLoc()));
    arguments.add(hyperType, builder.getDictionaryAttr(builder.getNamedAttr(
                                 FSDPDialect::getHyperAttrName(),
                                 builder.getI64IntegerAttr(0))));
    for (auto [unit, gradient] : gradients) {
      auto name = FlatSymbolRefAttr::get(context, unit.getSymName());
      Value shard = shards.lookup(name);
      Type type = shard.getType();
      auto intervals =
          builder.getDenseI64ArrayAttr(getTrainableIntervals(unit.getLayout()));
      Location loc = getLoc(unit, "new");
      Value none; // nothing scales the gradient or stops the update
      UpdateOpInterface update;
      if (optimizer == Optimizer::AdamW) {
        Value first = addState(unit, StateAttr::getExpAvgKind(), type);
        Value second = addState(unit, StateAttr::getExpAvgSqKind(), type);
        update = AdamWOp::create(builder, loc, TypeRange{type, type, type},
                                 name, intervals, shard, gradient, first,
                                 second, hyper, none, none, none);
      } else {
        Value old = momentum
                        ? addState(unit, StateAttr::getMomentumKind(), type)
                        : Value();
        update = SGDOp::create(builder, loc, type, old ? type : Type(), name,
                               intervals, shard, gradient, old, hyper, none,
                               none, none);
      }
      for (const UpdatedState &state : update.getStates())
        addResult(unit, state.kind, state.after);
    }
    terminator->setOperands(returned);
    setSignature(step, arguments, results);
    return success();
  }
};
} // namespace

} // namespace fsdp
