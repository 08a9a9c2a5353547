//===- Accumulate.cpp - A step of several micro-batches -------------------===//
//
// The program that trains becomes three: one for the first micro-batch of a
// step, which sums nothing, one for those between, and one for the last, after
// which there are gradients to update with.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_ACCUMULATEPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// Divides the gradient of the loss by the loss, with which the backward
/// starts.
static LogicalResult divideSeed(func::FuncOp program, int64_t divisor) {
  aten::CallOp seed = getGradientSeed(program);
  if (!seed)
    return program.emitError(
        "expected an archive that says where the backward starts, to divide "
        "the loss by the micro-batches: capture it with fsdp_mlir.capture, or "
        "leave ':mean' out");
  FailureOr<aten::ArgsAttr> args = getSeedArgs(seed, divisor);
  if (failed(args))
    return failure();
  seed.setArgsAttr(*args);
  return success();
}

/// What the programs before leave.
static Value addArgument(func::FuncOp program, Ports &arguments, UnitOp unit,
                         StringRef kind, Type type) {
  arguments.add(type, getStateDict(unit, kind));
  auto name = StringAttr::get(program.getContext(),
                              unit.getSymName() + "." + Twine(kind));
  return program.getBody().front().addArgument(
      type, NameLoc::get(name, program.getLoc()));
}

void keepGathered(func::FuncOp step) {
  auto part = step->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  if (!part)
    return;
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  StringRef kind = StateAttr::getUnshardedParameterKind();
  Block &block = step.getBody().front();
  Ports arguments = getArguments(step), results = getResults(step);
  for (auto gather : llvm::make_early_inc_range(block.getOps<UnshardOp>())) {
    auto unit = symbols.lookup<UnitOp>(gather.getUnit());
    if (!unit.getKeptAfterBackward())
      continue;
    Value full = gather.getFull();
    if (part.getValue() == Part::First) {
      Operation *end = block.getTerminator();
      end->insertOperands(end->getNumOperands(), full);
      results.add(full.getType(), getStateDict(unit, kind));
      continue;
    }
    full.replaceAllUsesWith(
        addArgument(step, arguments, unit, kind, full.getType()));
    eraseGather(gather);
  }
  setSignature(step, arguments, results);
}

namespace {
/// Which reductions every micro-batch does. The others are of the last one.
enum class Reduced { All, OverShards, None };

/// Makes a program one for a part of the micro-batches.
class Accumulator {
public:
  Accumulator(func::FuncOp program, Part part, Reduced reduced)
      : program(program), part(part), reduced(reduced),
        block(program.getBody().front()), builder(block.getTerminator()),
        symbols(program->getParentOfType<ModuleOp>()),
        arguments(getArguments(program)), results(getResults(program)) {}

  LogicalResult run();
  /// Whether some reduction is of the last micro-batch, and one before it is
  /// not.
  bool hasPartial() const { return isPartial; }

private:
  LogicalResult accumulate(unsigned index);
  bool isLate(Operation *reduction) const {
    return reduced == Reduced::None ||
           (reduced == Reduced::OverShards && isa<AllReduceOp>(reduction));
  }
  Value add(UnitOp unit, Value sum, Value gradient) {
    return AccumulateOp::create(builder, gradient.getLoc(), sum.getType(),
                                FlatSymbolRefAttr::get(unit), sum, gradient);
  }

  func::FuncOp program;
  Part part;
  Reduced reduced;
  bool isPartial = false;
  Block &block;
  OpBuilder builder;
  SymbolTable symbols;
  Ports arguments, results;
};
} // namespace

LogicalResult Accumulator::accumulate(unsigned index) {
  Operation *end = block.getTerminator();
  Value value = end->getOperand(index);
  StateAttr state = getState(results.attrs[index]);
  auto unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
  SmallVector<Operation *> reductions; // the last one first
  Value flat = value;
  while (isa_and_nonnull<ReduceScatterOp, AllReduceOp>(flat.getDefiningOp())) {
    reductions.push_back(flat.getDefiningOp());
    flat = reductions.back()->getOperand(0);
  }
  auto flatten = flat.getDefiningOp<FlattenGradsOp>();
  if (!unit || reductions.empty() || !flatten)
    return program.emitError("expected a reduced gradient as ") << state;

  // What is summed is the operand of the first one that is late.
  size_t numLate = llvm::count_if(
      reductions, [&](Operation *reduction) { return isLate(reduction); });
  bool isUnsharded = numLate == reductions.size();
  StringRef kind = StateAttr::getShardedGradientKind();
  if (numLate)
    kind = isUnsharded ? StateAttr::getUnshardedGradientKind()
                       : StateAttr::getPartialGradientKind();
  isPartial |= numLate && !isUnsharded;
  ArrayRef<Operation *> late = ArrayRef(reductions).take_front(numLate);
  Value sum = late.empty() ? value : late.back()->getOperand(0);
  // A reduction has time until its result is needed.
  bool isNeeded = isUnsharded || (numLate && part == Part::Last);
  builder.setInsertionPoint(isNeeded ? late.back() : end);

  if (part != Part::First) {
    Value before = addArgument(program, arguments, unit, kind, sum.getType());
    // The update takes the gradient from its own place, and so does what
    // reduces it further.
    bool isInPlace = isUnsharded || part == Part::Middle;
    sum = isInPlace ? add(unit, before, sum) : add(unit, sum, before);
  }
  if (part == Part::Last) {
    if (late.empty())
      end->setOperand(index, sum);
    else
      late.back()->setOperand(0, sum);
    return success();
  }
  end->setOperand(index, sum);
  results.types[index] = sum.getType();
  results.attrs[index] = getStateDict(unit, kind);
  for (Operation *reduction : late)
    reduction->erase();
  return success();
}

LogicalResult Accumulator::run() {
  for (unsigned index : getGradients(program))
    if (failed(accumulate(index)))
      return failure();
  setSignature(program, arguments, results);
  program->setAttr(FSDPDialect::getPartAttrName(),
                   PartAttr::get(program.getContext(), part));
  keepGathered(program);
  return success();
}

namespace {
class AccumulatePass : public impl::AccumulatePassBase<AccumulatePass> {
  using AccumulatePassBase::AccumulatePassBase;

  void runOnOperation() final {
    if (failed(apply()))
      signalPassFailure();
  }

  LogicalResult apply() {
    ModuleOp module = getOperation();
    auto programs = getPrograms(module);
    if (failed(programs))
      return failure();
    const Accumulation &steps = accumulate;
    func::FuncOp program = programs->front();
    if (failed(checkLevel(program, {Level::Logical})))
      return failure();
    if (program->hasAttr(FSDPDialect::getPartAttrName()))
      return program.emitError("expected a whole step, found a part of one");
    if (steps.microBatches == 1)
      return success();
    if (getGradients(program).empty())
      return program.emitError("expected a program that trains, to accumulate "
                               "its gradients; found one without gradients");
    if (steps.isMean && failed(divideSeed(program, steps.microBatches)))
      return failure();

    SmallVector<Part> parts = {Part::First, Part::Middle, Part::Last};
    if (steps.microBatches == 2)
      parts = {Part::First, Part::Last};
    for (Part part : parts)
      if (failed(createPart(program, part)))
        return failure();
    program.erase();
    Builder builder(&getContext());
    module->setAttr(FSDPDialect::getMicroBatchesAttrName(),
                    builder.getI64IntegerAttr(steps.microBatches));
    if (steps.isMean)
      module->setAttr(FSDPDialect::getMeanLossAttrName(),
                      builder.getUnitAttr());
    return success();
  }

  /// A copy of the program, which is called as the part is.
  LogicalResult createPart(func::FuncOp program, Part part) {
    SymbolTable symbols(getOperation());
    StringRef name = stringifyPart(part);
    if (symbols.lookup(name))
      return program.emitError("expected no other program that is called '")
             << name << "', as a part of a step is";
    func::FuncOp copy = program.clone();
    copy.setName(name);
    symbols.insert(copy, Block::iterator(program));
    Reduced reduced = noSync        ? Reduced::None
                      : noAllReduce ? Reduced::OverShards
                                    : Reduced::All;
    Accumulator accumulator(copy, part, reduced);
    if (failed(accumulator.run()))
      return failure();
    if (noAllReduce && !accumulator.hasPartial())
      return program.emitError(
          "no-all-reduce: expected a unit that is sharded and replicated, "
          "whose "
          "all-reduce can wait for the last micro-batch, found none: give a "
          "mesh of several copies, such as --mesh 2x4");
    return success();
  }
};
} // namespace

} // namespace fsdp
