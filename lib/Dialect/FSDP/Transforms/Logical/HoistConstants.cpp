//===- HoistConstants.cpp - Compute once what each step would -------------===//
//
// What depends on constants alone moves into `@init`, once for all programs
// that compute it. Views stay with those who read them: they cost nothing, and
// their memory is somebody else's.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

#include <map>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_HOISTCONSTANTSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// What an operation is, where scope and phase mean nothing: callee, arguments,
/// what `operands` are, and types.
static SmallVector<const void *> getKey(aten::CallOp call,
                                        ArrayRef<Value> operands) {
  SmallVector<const void *> key = {call.getCallee().getAsOpaquePointer(),
                                   call.getArgs().getAsOpaquePointer()};
  for (Value operand : operands)
    key.push_back(operand.getAsOpaquePointer());
  for (Type type : call->getResultTypes())
    key.push_back(type.getAsOpaquePointer());
  return key;
}

namespace {
/// The function that runs once, while it is made. Equal operations of several
/// programs are one.
class Init {
public:
  explicit Init(func::FuncOp first)
      : builder(first.getContext()),
        func(func::FuncOp::create(first.getLoc(), "init",
                                  builder.getFunctionType({}, {}))) {
    SymbolTable(first->getParentOfType<ModuleOp>())
        .insert(func, Block::iterator(first)); // which may rename it
    func->setAttr(FSDPDialect::getInitAttrName(), builder.getUnitAttr());
    builder.setInsertionPointToStart(func.addEntryBlock());
  }

  /// Maps the results of `call` in `known` if it is there already.
  void find(aten::CallOp call, IRMapping &known);
  /// Adds `call`, and maps its results.
  void add(aten::CallOp call, IRMapping &known);
  /// The number of the result that `value` is, which it becomes if it is none.
  int64_t addResult(Value value);
  bool isResult(Value value) const { return results.contains(value); }
  /// Returns the results; without any, there is no function.
  void finish();

  int64_t bytes = 0;         // of the results
  int64_t numOperations = 0; // but for views

private:
  Value getArgument(BlockArgument argument, bool mayAdd);

  OpBuilder builder;
  func::FuncOp func;
  Ports arguments;
  DenseMap<std::pair<Attribute, Type>, Value> argumentOf;
  std::map<SmallVector<const void *>, aten::CallOp> calls;
  llvm::MapVector<Value, int64_t> results; // and their numbers
};

class ConstantHoister {
public:
  ConstantHoister(func::FuncOp step, const DenseSet<Attribute> &mutated,
                  Init &init, int64_t maxBytes)
      : step(step), mutated(mutated), init(init), maxBytes(maxBytes),
        block(step.getBody().front()) {}

  /// Moves what fits.
  void run();

private:
  void findFixedArguments();
  void findMovable();
  void mergeEqual();
  void findKnown();
  void findResults();
  bool fits();
  void addToInit();
  void rewriteStep();
  bool isFixed(Value value) const;
  bool isMovable(Operation &op) const;

  func::FuncOp step;
  const DenseSet<Attribute> &mutated; // buffers that any program changes
  Init &init;
  int64_t maxBytes;
  Block &block;
  DenseSet<Value> fixedArguments;
  DenseSet<Operation *> movable;  // computable in `@init`
  DenseSet<Operation *> tooLarge; // not to be moved all the same
  DenseSet<Operation *> views;    // movable, and needed in the step
  IRMapping known;                // what is in `@init`
  llvm::SetVector<Value> results; // that the step reads of `@init`
  int64_t bytes = 0;              // of those that are new there
};
} // namespace

/// The argument of any program with these attributes.
Value Init::getArgument(BlockArgument argument, bool mayAdd) {
  auto program = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  DictionaryAttr dict = program.getArgAttrDict(argument.getArgNumber());
  Value &own = argumentOf[{dict, argument.getType()}];
  if (!own && mayAdd) {
    arguments.add(argument.getType(), dict);
    own = func.getBody().front().addArgument(argument.getType(),
                                             argument.getLoc());
  }
  return own;
}

void Init::find(aten::CallOp call, IRMapping &known) {
  SmallVector<Value> operands;
  for (Value input : call.getInputs()) {
    auto argument = dyn_cast<BlockArgument>(input);
    operands.push_back(argument ? getArgument(argument, /*mayAdd=*/false)
                                : known.lookupOrNull(input));
    if (!operands.back())
      return;
  }
  if (auto found = calls.find(getKey(call, operands)); found != calls.end())
    known.map(call->getResults(), found->second->getResults());
}

void Init::add(aten::CallOp call, IRMapping &known) {
  for (Value input : call.getInputs())
    if (auto argument = dyn_cast<BlockArgument>(input))
      known.map(argument, getArgument(argument, /*mayAdd=*/true));
  auto copy = cast<aten::CallOp>(builder.clone(*call, known));
  calls[getKey(copy, llvm::to_vector_of<Value>(copy.getInputs()))] = copy;
  numOperations += !aten::getViewSource(copy);
}

int64_t Init::addResult(Value value) {
  auto [result, isNew] = results.try_emplace(value, results.size());
  if (isNew)
    bytes += getMemoryBytes(value.getType());
  return result->second;
}

void Init::finish() {
  if (results.empty())
    return func.erase();
  Ports outputs;
  SmallVector<Value> values;
  for (auto [result, number] : results) {
    values.push_back(result);
    outputs.add(result.getType(), builder.getDictionaryAttr({}));
  }
  func::ReturnOp::create(builder, func.getLoc(), values);
  setSignature(func, arguments, outputs);
  remark::passed(func.getLoc(), getRemark("fsdp-hoist-constants", "init", func))
      << remark::metric("Operations", numOperations)
      << remark::metric("Results", int64_t(results.size()))
      << remark::metric("Bytes", bytes);
}

/// The names of buffers that a step of any of the programs changes.
static DenseSet<Attribute> getMutated(ArrayRef<func::FuncOp> programs) {
  DenseSet<Attribute> mutated;
  for (func::FuncOp program : programs)
    for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
      if (Attribute name = program.getResultAttr(
              i, aten::ATenDialect::getBufferMutationAttrName()))
        mutated.insert(name);
  return mutated;
}

/// Constants, and buffers that no checkpoint has and no step changes.
void ConstantHoister::findFixedArguments() {
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

/// Draws fill it, and do not look at it.
static bool isOnlyFilled(Operation &op) {
  return !op.use_empty() && llvm::all_of(op.getUses(), [](OpOperand &use) {
    auto draw = dyn_cast<aten::CallOp>(use.getOwner());
    return draw && draw.getFacts() && use.getOperandNumber() == 0 &&
           draw.getFacts()->equivalent == operators::Equivalent::Draw;
  });
}

bool ConstantHoister::isMovable(Operation &op) const {
  auto call = dyn_cast<aten::CallOp>(op);
  if (!call || !call.getFacts() || !isMemoryEffectFree(call) ||
      tooLarge.contains(call) || isOnlyFilled(op))
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
    auto key = getKey(call, llvm::to_vector_of<Value>(call.getInputs()));
    auto [entry, isNew] = first.try_emplace(key, &op);
    if (isNew)
      continue;
    op.replaceAllUsesWith(entry->second);
    movable.erase(&op);
    op.erase();
  }
}

/// What another program has moved already.
void ConstantHoister::findKnown() {
  for (Operation &op : block)
    if (movable.contains(&op))
      init.find(cast<aten::CallOp>(op), known);
}

/// The memory that the step reads of what is movable.
void ConstantHoister::findResults() {
  views.clear();
  results.clear();
  bytes = 0;
  for (Operation &op : llvm::reverse(block)) {
    if (!movable.contains(&op))
      continue;
    bool isView = bool(aten::getViewSource(&op));
    for (Value result : op.getResults()) {
      bool isNeeded = llvm::any_of(result.getUsers(), [&](Operation *user) {
        return !movable.contains(user) || views.contains(user);
      });
      if (!isNeeded)
        continue;
      if (isView)
        views.insert(&op);
      else if (results.insert(result) &&
               !init.isResult(known.lookupOrNull(result)))
        bytes += getMemoryBytes(result.getType());
    }
  }
  auto reversed = results.takeVector();
  results.insert(reversed.rbegin(), reversed.rend());
}

/// True if the results do not take too many bytes; else the largest are marked
/// to stay, so that the fewest operations do.
bool ConstantHoister::fits() {
  int64_t most = maxBytes - init.bytes;
  if (bytes <= most)
    return true;
  SmallVector<Value> bySize(results.begin(), results.end());
  // By size and then as they stand in the block, the last one first.
  std::vector<std::pair<int64_t, size_t>> order;
  for (auto [index, result] : llvm::enumerate(bySize))
    order.emplace_back(-getMemoryBytes(result.getType()), index);
  llvm::sort(order);
  for (auto [negative, index] : order) {
    if (bytes <= most)
      break;
    Operation *op = bySize[index].getDefiningOp();
    if (init.isResult(known.lookupOrNull(bySize[index])))
      continue;
    bytes += negative;
    if (tooLarge.insert(op).second)
      remark::missed(op->getLoc(),
                     getRemark("fsdp-hoist-constants", "too-large", op))
          << remark::metric("Bytes", -negative)
          << remark::metric("MaxBytes", maxBytes);
  }
  return false;
}

void ConstantHoister::addToInit() {
  // From the results back to what they need, then forth.
  DenseSet<Operation *> needed;
  for (Operation &op : llvm::reverse(block))
    if (movable.contains(&op) && !known.contains(op.getResult(0)) &&
        llvm::any_of(op.getResults(), [&](Value result) {
          return results.contains(result) ||
                 llvm::any_of(result.getUsers(), [&](Operation *user) {
                   return needed.contains(user);
                 });
        }))
      needed.insert(&op);
  for (Operation &op : block)
    if (needed.contains(&op))
      init.add(cast<aten::CallOp>(op), known);
}

/// Reads results of `@init` in place of what has moved.
void ConstantHoister::rewriteStep() {
  Builder builder(step.getContext());
  Ports arguments = getArguments(step);
  for (Value result : results) {
    int64_t number = init.addResult(known.lookup(result));
    arguments.add(result.getType(),
                  builder.getDictionaryAttr(
                      builder.getNamedAttr(FSDPDialect::getResultAttrName(),
                                           builder.getI64IntegerAttr(number))));
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
  findKnown();
  for (findResults(); !fits(); findResults())
    findMovable();
  if (results.empty())
    return;
  addToInit();
  rewriteStep();
}

namespace {
class HoistConstantsPass
    : public impl::HoistConstantsPassBase<HoistConstantsPass> {
  using HoistConstantsPassBase::HoistConstantsPassBase;

  void runOnOperation() final {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return signalPassFailure();
    if (func::FuncOp init = getInit(getOperation())) {
      init.emitError("expected no function with 'fsdp.init' yet, found one");
      return signalPassFailure();
    }
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, {Level::ATen, Level::Logical})))
        return signalPassFailure();
    Init init(programs->front());
    DenseSet<Attribute> mutated = getMutated(*programs);
    for (func::FuncOp program : *programs)
      ConstantHoister(program, mutated, init, maxBytes).run();
    init.finish();
  }
};
} // namespace

} // namespace fsdp
