//===- Reduction.cpp - From a program to a small one ----------------------===//
//
// Changes runs of operations, half as many in each round, and keeps what the
// script still wants: delta debugging (Zeller and Hildebrandt, 2002). mlir's
// own reduction-tree erases operations that have users, and its patterns may
// not touch operations but the one that they match.
//
//===----------------------------------------------------------------------===//

#include "Reduction.h"

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Reducer/Tester.h"
#include "mlir/Transforms/RegionUtils.h"

using namespace mlir;
using namespace fsdp;

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

/// An operand of the result's type is taken in its place: a chain loses a link,
/// and a residual network whole layers.
static bool forwardOperand(Operation *op) {
  auto call = dyn_cast<aten::CallOp>(op);
  if (!call || call.getNumResults() != 1)
    return false;
  for (Value input : call.getInputs())
    if (input.getType() == call.getResult(0).getType()) {
      call.getResult(0).replaceAllUsesWith(input);
      return true;
    }
  return false;
}

/// A tensor of which only sizes, strides and element type count.
static Value makeEmpty(Operation *before, RankedTensorType type) {
  OpBuilder builder(before);
  auto args =
      aten::ArgsAttr::get(builder.getContext(),
                          {builder.getDenseI64ArrayAttr(type.getShape()),
                           builder.getDenseI64ArrayAttr(aten::getStrides(type)),
                           TypeAttr::get(type.getElementType())},
                          builder.getStringAttr("dtype"));
  return aten::CallOp::create(builder, before->getLoc(), TypeRange(type),
                              "empty_strided", args, ValueRange(),
                              before->getAttrOfType<aten::PhaseAttr>("phase"),
                              before->getAttrOfType<StringAttr>("scope"))
      .getResult(0);
}

/// Placeholders for the results: of calls, and of views of parameters, which
/// their unit is gathered for. What computed the operands has a user less.
static bool replaceResults(Operation *op) {
  auto isStatic = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && tensor.hasStaticShape();
  };
  if (!isa<aten::CallOp, ViewOp>(op) || op->getNumOperands() == 0 ||
      op->use_empty() || !llvm::all_of(op->getResultTypes(), isStatic))
    return false;
  for (Value result : op->getResults())
    result.replaceAllUsesWith(
        makeEmpty(op, cast<RankedTensorType>(result.getType())));
  return true;
}

/// Operations that are nobody's operands and have effects.
static bool eraseUnused(Operation *op) {
  if (!op->use_empty() || isa<SymbolOpInterface>(op) ||
      op->hasTrait<OpTrait::IsTerminator>() || isa<ModuleOp>(op))
    return false;
  op->erase();
  return true;
}

/// Units, meshes and functions that nobody names.
static bool eraseSymbol(Operation *op) {
  if (!isa<SymbolOpInterface>(op) || isa<ModuleOp>(op) ||
      !SymbolTable::symbolKnownUseEmpty(op, op->getParentOp()))
    return false;
  op->erase();
  return true;
}

/// A function that nobody calls returns all but its last result.
static bool dropResult(Operation *op) {
  auto function = dyn_cast<func::FuncOp>(op);
  if (!function || function.getNumResults() == 0 ||
      !llvm::hasSingleElement(function.getBody()) ||
      !SymbolTable::symbolKnownUseEmpty(op, op->getParentOp()))
    return false;
  Operation *end = function.front().getTerminator();
  end->eraseOperand(end->getNumOperands() - 1);
  return succeeded(function.eraseResult(function.getNumResults() - 1));
}

/// It loses the arguments that it does not use.
static bool dropArguments(Operation *op) {
  auto function = dyn_cast<func::FuncOp>(op);
  if (!function || function.isExternal() ||
      !SymbolTable::symbolKnownUseEmpty(op, op->getParentOp()))
    return false;
  BitVector unused(function.getNumArguments());
  for (BlockArgument argument : function.getArguments())
    unused[argument.getArgNumber()] = argument.use_empty();
  return unused.any() && succeeded(function.eraseArguments(unused));
}

using Step = bool (*)(Operation *);
static constexpr Step kSteps[] = {dropResult,  forwardOperand, replaceResults,
                                  eraseUnused, dropArguments,  eraseSymbol};

//===----------------------------------------------------------------------===//
// Search
//===----------------------------------------------------------------------===//

namespace {
struct ReductionPass : PassWrapper<ReductionPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ReductionPass)

  ReductionPass() = default;
  ReductionPass(const ReductionPass &other) : PassWrapper(other) {}

  StringRef getArgument() const override { return "fsdp-reduction"; }
  StringRef getDescription() const override {
    return "Make the program as small as a script allows";
  }

  void runOnOperation() override;

  Option<std::string> test{
      *this, "test",
      llvm::cl::desc("A script that gets the name of a program as its last "
                     "argument, and ends with 1 if it is of interest, else "
                     "with 0, as for mlir-reduce.")};
  ListOption<std::string> testArgs{
      *this, "test-arg", llvm::cl::desc("An argument ahead of that name.")};
};

/// The smallest program so far, and what may take its place.
class Search {
public:
  Search(ModuleOp module, Tester &tester)
      : best(module.clone()), tester(tester) {}

  /// Whether anything became smaller.
  bool tryAll(Step step);

  ModuleOp get() { return *best; }
  bool isOfInterest(ModuleOp module) {
    return tester.isInteresting(module).first == Tester::Interestingness::True;
  }

private:
  /// Takes the step at operations `[begin, end)` of all, in their order.
  bool tryAt(Step step, unsigned begin, unsigned end);

  OwningOpRef<ModuleOp> best;
  Tester &tester;
};
} // namespace

static SmallVector<Operation *> listOperations(ModuleOp module) {
  SmallVector<Operation *> all;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) { all.push_back(op); });
  return all;
}

bool Search::tryAt(Step step, unsigned begin, unsigned end) {
  OwningOpRef<ModuleOp> smaller = best->clone();
  SmallVector<Operation *> all = listOperations(*smaller);
  bool changed = false;
  // Backwards: users before what they use, and what is inside before a symbol.
  for (unsigned k = std::min<size_t>(end, all.size()); k-- > begin;)
    changed |= step(all[k]);
  if (!changed)
    return false;
  IRRewriter rewriter(smaller->getContext());
  for (Region &region : (*smaller)->getRegions())
    (void)runRegionDCE(rewriter, region);
  ScopedDiagnosticHandler quiet(smaller->getContext(),
                                [](Diagnostic &) { return success(); });
  if (failed(verify(*smaller)) || !isOfInterest(*smaller))
    return false;
  best = std::move(smaller);
  return true;
}

bool Search::tryAll(Step step) {
  bool changed = false;
  for (size_t size = listOperations(*best).size(); size > 0; size /= 2)
    for (size_t begin = 0; begin < listOperations(*best).size();)
      if (tryAt(step, begin, begin + size))
        changed = true; // What came after is here now.
      else
        begin += size;
  return changed;
}

void ReductionPass::runOnOperation() {
  Tester tester(test, testArgs);
  Search search(getOperation(), tester);
  if (test.empty() || !search.isOfInterest(search.get())) {
    getOperation().emitError("expected a script with test=FILE that ends with "
                             "1 for the whole program, got '")
        << test << "', which does not";
    return signalPassFailure();
  }
  bool changed = true;
  while (changed) {
    changed = false;
    for (Step step : kSteps)
      changed |= search.tryAll(step);
  }
  getOperation().getBodyRegion().takeBody(search.get().getBodyRegion());
}

void fsdp::registerReduction() { PassRegistration<ReductionPass>(); }
