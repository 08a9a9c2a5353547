//===- Memory.cpp - What a scheduled step holds in memory -----------------===//
//
// One walk finds the life of each value that is memory of its own, a second one
// over time the peak.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Memory.h"

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/TypeSwitch.h"

#include <map>
#include <tuple>

using namespace mlir;

namespace fsdp {
namespace {

/// From the operation that makes a value to the last that uses it.
struct Life {
  Value value;
  int64_t bytes;
  unsigned begin, end;
};

/// What a value is, as people say it.
std::string describe(Value value) {
  return TypeSwitch<Operation *, std::string>(value.getDefiningOp())
      .Case([](AsyncUnshardOp op) {
        return ("gathered unit '" + op.getUnit() + "'").str();
      })
      .Case([](PieceOp op) {
        return ("piece of unit '" + op.getUnit() + "'").str();
      })
      .Case([](FlattenGradsOp op) {
        return ("flat gradient of unit '" + op.getUnit() + "'").str();
      })
      .Case<AsyncReduceScatterOp, AsyncAllReduceOp>([](auto op) {
        return std::string(op.getUnitAttr() ? "reduced gradients"
                                            : "reduced values");
      })
      .Case([](aten::CallOp op) {
        std::optional<StringRef> scope = op.getScope();
        return scope ? "made in '" + scope->str() + "'"
                     : "made by '" + op.getCallee().getName().str() + "'";
      })
      .Default(
          [](Operation *op) { return op->getName().getStringRef().str(); });
}

SmallVector<Life, 0> getLives(Block &block, SmallVectorImpl<Operation *> &ops) {
  SmallVector<Life, 0> lives;
  DenseMap<Value, unsigned> owners; // to an index of lives
  for (Operation &op : block) {
    unsigned position = ops.size();
    ops.push_back(&op);
    for (Value operand : op.getOperands())
      if (auto owner = owners.find(operand); owner != owners.end())
        lives[owner->second].end = position;
    for (OpResult result : op.getResults()) {
      if (Value memory = getMemoryOf(result)) {
        // Arguments are in no list: they live anyway.
        if (auto owner = owners.find(memory); owner != owners.end()) {
          unsigned index = owner->second;
          owners[result] = index;
        }
      } else if (int64_t bytes = getMemoryBytes(result.getType())) {
        owners[result] = lives.size();
        lives.push_back({result, bytes, position, position});
      }
    }
  }
  return lives;
}

} // namespace

Value getMemoryOf(OpResult result) {
  unsigned index = result.getResultNumber();
  return TypeSwitch<Operation *, Value>(result.getOwner())
      .Case([](ViewOp op) { return op.getFull(); })
      .Case([](AsyncWaitOp op) { return op.getFuture(); })
      .Case([](AsyncUnshardOp op) {
        // A group of one rank: the shard is the whole.
        ShardType shard = op.getShard().getType();
        auto full = cast<GatheredType>(op.getFuture().getType().getValueType());
        return shard.getShards() == 1 &&
                       shard.getElementType() == full.getElementType()
                   ? Value(op.getShard())
                   : Value();
      })
      .Case([&](AdamWOp op) {
        return Value(ArrayRef<Value>{op.getParameter(), op.getExpAvg(),
                                     op.getExpAvgSq()}[index]);
      })
      .Case([&](SGDOp op) {
        return Value(index ? op.getMomentum() : op.getParameter());
      })
      .Case([](aten::CallOp op) {
        return aten::isView(op) && !op.getInputs().empty()
                   ? op.getInputs().front()
                   : Value();
      })
      .Default([](Operation *) { return Value(); });
}

int64_t getPersistentBytes(func::FuncOp step) {
  int64_t bytes = 0;
  for (BlockArgument argument : step.getArguments())
    if (!step.getArgAttr(argument.getArgNumber(),
                         FSDPDialect::getHyperAttrName()))
      bytes += getMemoryBytes(argument.getType());
  return bytes;
}

SmallVector<MemoryPeak::Alive> summarizeMemory(ArrayRef<Value> values) {
  llvm::MapVector<std::string, MemoryPeak::Alive,
                  std::map<std::string, unsigned>>
      kinds;
  for (Value value : values) {
    std::string what = describe(value);
    auto kind =
        kinds.insert({what, MemoryPeak::Alive{what, value.getLoc(), 0, 0}})
            .first;
    kind->second.bytes += getMemoryBytes(value.getType());
    ++kind->second.values;
  }
  SmallVector<MemoryPeak::Alive> alive;
  for (auto &[name, kind] : kinds)
    alive.push_back(std::move(kind));
  llvm::sort(alive, [](const auto &a, const auto &b) {
    return std::tie(b.bytes, a.what) < std::tie(a.bytes, b.what);
  });
  return alive;
}

MemoryPeak findMemoryPeak(func::FuncOp step) {
  MemoryPeak peak;
  peak.persistent = getPersistentBytes(step);

  SmallVector<Operation *, 0> ops;
  SmallVector<Life, 0> lives = getLives(step.getBody().front(), ops);
  SmallVector<int64_t, 0> changes(ops.size() + 1);
  for (const Life &life : lives) {
    changes[life.begin] += life.bytes;
    changes[life.end + 1] -= life.bytes;
  }
  int64_t now = 0;
  unsigned time = 0;
  for (unsigned position = 0; position != ops.size(); ++position) {
    now += changes[position];
    if (now > peak.transient) {
      peak.transient = now;
      time = position;
    }
  }
  if (peak.transient == 0)
    return peak;
  peak.at = ops[time];

  SmallVector<Value> alive;
  for (const Life &life : lives)
    if (life.begin <= time && time <= life.end)
      alive.push_back(life.value);
  peak.alive = summarizeMemory(alive);
  return peak;
}

} // namespace fsdp
