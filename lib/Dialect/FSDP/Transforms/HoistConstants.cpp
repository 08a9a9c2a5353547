//===- HoistConstants.cpp - Compute once what each step would -------------===//
//
// What depends on constants alone moves into `@init`. Views stay with those
// who read them: they cost nothing, and their memory is somebody else's.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Archive/OpFacts.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

#include <map>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_HOISTCONSTANTSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// Elements times their size.
static int64_t getBytes(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return type.getNumElements() * aten::getItemSize(type.getElementType());
}

namespace {
class ConstantHoister {
public:
  ConstantHoister(func::FuncOp step, int64_t maxBytes)
      : step(step), maxBytes(maxBytes), block(step.getBody().front()) {}

  /// Moves what fits.
  void run();

private:
  void findFixedArguments();
  void findMovable();
  void mergeEqual();
  void findResults();
  bool fits();
  void createInit();
  void rewriteStep();
  bool isFixed(Value value) const;
  bool isMovable(Operation &op) const;
  remark::RemarkOpts getRemark(StringRef name) {
    return remark::RemarkOpts::name(name)
        .category("fsdp-hoist-constants")
        .function("step");
  }

  func::FuncOp step;
  int64_t maxBytes;
  Block &block;
  DenseSet<Value> fixedArguments;
  DenseSet<Operation *> movable;  // computable in `@init`
  DenseSet<Operation *> tooLarge; // not to be moved all the same
  DenseSet<Operation *> views;    // movable, and needed in the step
  llvm::SetVector<Value> results; // of `@init`
  int64_t bytes = 0;              // of the results
};
} // namespace

/// Constants, and buffers that no checkpoint has and no step changes.
void ConstantHoister::findFixedArguments() {
  DenseSet<Attribute> mutated;
  for (unsigned i = 0, e = step.getNumResults(); i != e; ++i)
    mutated.insert(
        step.getResultAttr(i, aten::ATenDialect::getBufferMutationAttrName()));
  for (BlockArgument argument : block.getArguments()) {
    unsigned index = argument.getArgNumber();
    Attribute name =
        step.getArgAttr(index, aten::ATenDialect::getBufferAttrName());
    if (step.getArgAttr(index, aten::ATenDialect::getValueAttrName()) &&
        !(name && mutated.contains(name)))
      fixedArguments.insert(argument);
  }
}

bool ConstantHoister::isFixed(Value value) const {
  Operation *op = value.getDefiningOp();
  return op ? movable.contains(op) : fixedArguments.contains(value);
}

bool ConstantHoister::isMovable(Operation &op) const {
  auto call = dyn_cast<aten::CallOp>(op);
  if (!call || !call.getFacts() || !isMemoryEffectFree(call) ||
      tooLarge.contains(call))
    return false;
  return llvm::all_of(call.getOutputs(),
                      [](Value output) {
                        auto type =
                            dyn_cast<RankedTensorType>(output.getType());
                        return type && type.hasStaticShape();
                      }) &&
         llvm::all_of(call.getInputs(),
                      [&](Value input) { return isFixed(input); });
}

void ConstantHoister::findMovable() {
  movable.clear();
  for (Operation &op : block)
    if (isMovable(op))
      movable.insert(&op);
}

/// Each layer has its own mask, equal to all others: in `@init`, scope and
/// phase mean nothing.
void ConstantHoister::mergeEqual() {
  std::map<SmallVector<const void *>, Operation *> first;
  for (Operation &op : llvm::make_early_inc_range(block)) {
    if (!movable.contains(&op))
      continue;
    auto call = cast<aten::CallOp>(op);
    SmallVector<const void *> key = {call.getCallee().getAsOpaquePointer(),
                                     call.getArgs().getAsOpaquePointer()};
    for (Value input : call.getInputs())
      key.push_back(input.getAsOpaquePointer());
    for (Type type : op.getResultTypes())
      key.push_back(type.getAsOpaquePointer());
    auto [entry, isNew] = first.try_emplace(key, &op);
    if (isNew)
      continue;
    op.replaceAllUsesWith(entry->second);
    movable.erase(&op);
    op.erase();
  }
}

/// The memory that the step reads of what is movable.
void ConstantHoister::findResults() {
  views.clear();
  results.clear();
  bytes = 0;
  for (Operation &op : llvm::reverse(block)) {
    if (!movable.contains(&op))
      continue;
    bool isView = aten::isView(cast<aten::CallOp>(op));
    for (Value result : op.getResults()) {
      bool isNeeded = llvm::any_of(result.getUsers(), [&](Operation *user) {
        return !movable.contains(user) || views.contains(user);
      });
      if (!isNeeded)
        continue;
      if (isView)
        views.insert(&op);
      else if (results.insert(result))
        bytes += getBytes(result);
    }
  }
  auto reversed = results.takeVector();
  results.insert(reversed.rbegin(), reversed.rend());
}

/// True if the results do not take too many bytes; else the largest are marked
/// to stay, so that the fewest operations do.
bool ConstantHoister::fits() {
  if (bytes <= maxBytes)
    return true;
  SmallVector<Value> bySize(results.begin(), results.end());
  // By size and then as they stand in the block, the last one first.
  std::vector<std::pair<int64_t, size_t>> order;
  for (auto [index, result] : llvm::enumerate(bySize))
    order.emplace_back(-getBytes(result), index);
  llvm::sort(order);
  for (auto [negative, index] : order) {
    if (bytes <= maxBytes)
      break;
    bytes += negative;
    Operation *op = bySize[index].getDefiningOp();
    if (tooLarge.insert(op).second)
      remark::missed(op->getLoc(), getRemark("too-large"))
          << remark::metric("Bytes", -negative)
          << remark::metric("MaxBytes", maxBytes);
  }
  return false;
}

void ConstantHoister::createInit() {
  OpBuilder builder(step);
  auto init = func::FuncOp::create(builder, step.getLoc(), "init",
                                   builder.getFunctionType({}, {}));
  builder.setInsertionPointToStart(init.addEntryBlock());
  Ports arguments, outputs;
  IRMapping mapping;
  int64_t operations = 0;
  // From the results back to what they need, then forth.
  DenseSet<Operation *> needed;
  for (Operation &op : llvm::reverse(block))
    if (movable.contains(&op) &&
        llvm::any_of(op.getResults(), [&](Value result) {
          return results.contains(result) ||
                 llvm::any_of(result.getUsers(), [&](Operation *user) {
                   return needed.contains(user);
                 });
        }))
      needed.insert(&op);
  for (Operation &op : block) {
    if (!needed.contains(&op))
      continue;
    for (Value input : op.getOperands())
      if (auto argument = dyn_cast<BlockArgument>(input);
          argument && !mapping.contains(input)) {
        arguments.add(input.getType(),
                      step.getArgAttrDict(argument.getArgNumber()));
        mapping.map(input, init.getBody().front().addArgument(input.getType(),
                                                              input.getLoc()));
      }
    builder.clone(op, mapping);
    operations += !aten::isView(cast<aten::CallOp>(op));
  }
  SmallVector<Value> returned;
  for (Value result : results) {
    returned.push_back(mapping.lookup(result));
    outputs.add(result.getType(), builder.getDictionaryAttr({}));
  }
  func::ReturnOp::create(builder, step.getLoc(), returned);
  setSignature(init, arguments, outputs);
  remark::passed(step.getLoc(), getRemark("init"))
      << remark::metric("Operations", operations)
      << remark::metric("Results", int64_t(results.size()))
      << remark::metric("Bytes", bytes);
}

/// Reads results of `@init` in place of what has moved.
void ConstantHoister::rewriteStep() {
  Builder builder(step.getContext());
  Ports arguments = getArguments(step);
  for (auto [index, value] : llvm::enumerate(results)) {
    Value result = value;
    arguments.add(result.getType(),
                  builder.getDictionaryAttr(builder.getNamedAttr(
                      FSDPDialect::getResultAttrName(),
                      builder.getI64IntegerAttr(int64_t(index)))));
    Value argument = block.addArgument(result.getType(), result.getLoc());
    result.replaceAllUsesWith(argument);
  }
  setSignature(step, arguments, getResults(step));
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (movable.contains(&op) && !views.contains(&op))
      op.erase();
}

void ConstantHoister::run() {
  findFixedArguments();
  findMovable();
  mergeEqual();
  for (findResults(); !fits(); findResults())
    findMovable();
  if (results.empty())
    return;
  createInit();
  rewriteStep();
}

namespace {
class HoistConstantsPass
    : public impl::HoistConstantsPassBase<HoistConstantsPass> {
  using HoistConstantsPassBase::HoistConstantsPassBase;

  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step))
      return signalPassFailure();
    if (auto init = getOperation().lookupSymbol("init")) {
      init->emitError("expected no '@init' yet, found one");
      return signalPassFailure();
    }
    ConstantHoister(*step, maxBytes).run();
  }
};
} // namespace

} // namespace fsdp
