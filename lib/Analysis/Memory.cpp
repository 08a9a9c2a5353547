//===- Memory.cpp - What a scheduled step holds in memory -----------------===//
//
// The peak is found in one walk over the lives of all memory.
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

/// What memory is for, as people say it.
std::string describe(const MemoryLife &life) {
  if (life.isCommunication)
    return "buffers and casts of collectives";
  return TypeSwitch<Operation *, std::string>(life.value.getDefiningOp())
      .Case([](LaunchOpInterface op) -> std::string {
        FlatSymbolRefAttr unit = op.getUnitAttr();
        if (op.isGather())
          return ("gathered unit '" + unit.getValue() + "'").str();
        if (op.isCopy())
          return isOnHost(op.getFuture().getType())
                     ? "shards copied to the host"
                     : "shards copied to the device";
        return unit ? "reduced gradients" : "reduced values";
      })
      .Case([](PieceOp op) {
        return ("piece of unit '" + op.getUnit() + "'").str();
      })
      .Case([](FlattenGradsOp op) {
        return ("flat gradient of unit '" + op.getUnit() + "'").str();
      })
      .Case([](aten::CallOp op) {
        std::optional<StringRef> scope = op.getScope();
        return scope ? "made in '" + scope->str() + "'"
                     : "made by '" + op.getCallee().getName().str() + "'";
      })
      .Default(
          [](Operation *op) { return op->getName().getStringRef().str(); });
}

} // namespace

/// What an argument is, in whatever program: null if it is its own.
static Attribute getArgumentKey(func::FuncOp program, unsigned index) {
  auto get = [&](StringRef name) { return program.getArgAttr(index, name); };
  if (Attribute state = get(FSDPDialect::getStateAttrName()))
    return state;
  for (StringRef name : {StringRef(FSDPDialect::getResultAttrName()),
                         StringRef(aten::ATenDialect::getBufferAttrName()),
                         StringRef(aten::ATenDialect::getConstantAttrName())})
    if (Attribute value = get(name)) {
      Attribute content = get(aten::ATenDialect::getValueAttrName());
      return ArrayAttr::get(
          program.getContext(),
          {StringAttr::get(program.getContext(), name), value,
           content ? content : UnitAttr::get(program.getContext())});
    }
  return {};
}

int64_t getPersistentBytes(func::FuncOp step, MemorySpace space) {
  int64_t bytes = 0;
  DenseSet<Attribute> counted;
  auto add = [&](func::FuncOp program) {
    for (BlockArgument argument : program.getArguments()) {
      unsigned index = argument.getArgNumber();
      if (getMemorySpace(argument.getType()) != space ||
          program.getArgAttr(index, FSDPDialect::getHyperAttrName()))
        continue;
      Attribute key = getArgumentKey(program, index);
      if (!key || counted.insert(key).second)
        bytes += getMemoryBytes(argument.getType());
    }
    for (auto [index, type] : llvm::enumerate(program.getResultTypes()))
      if (getMemorySpace(type) == space &&
          program.getResultAttr(index, aten::ATenDialect::getLossAttrName()))
        bytes += getMemoryBytes(type);
  };
  add(step);
  // What other programs keep is there as well.
  if (auto module = step->getParentOfType<ModuleOp>())
    for (auto other : module.getOps<func::FuncOp>())
      if (other != step && !other.isDeclaration() &&
          other->hasAttr(aten::ATenDialect::getProgramAttrName()))
        add(other);
  return bytes;
}

SmallVector<MemoryPeak::Alive> summarizeMemory(ArrayRef<MemoryLife> lives) {
  llvm::MapVector<std::string, MemoryPeak::Alive,
                  std::map<std::string, unsigned>>
      kinds;
  for (const MemoryLife &life : lives) {
    std::string what = describe(life);
    auto kind =
        kinds.insert({what, MemoryPeak::Alive{what, life.value.getLoc(), 0, 0}})
            .first;
    kind->second.bytes += life.bytes;
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

MemoryPeak findMemoryPeak(func::FuncOp step, MemorySpace space) {
  MemoryPeak peak;
  peak.persistent = getPersistentBytes(step, space);

  StreamOrder order(IssueOrder::getOwn(step.getBody().front()));
  ArrayRef<Operation *> operations = order.getOperations();
  SmallVector<MemoryLife, 0> lives = findMemoryLives(order, space);
  SmallVector<int64_t, 0> changes(operations.size() + 1);
  for (const MemoryLife &life : lives) {
    changes[life.begin] += life.bytes;
    changes[life.end + 1] -= life.bytes;
  }
  int64_t now = 0;
  unsigned time = 0;
  for (auto [position, op] : llvm::enumerate(operations)) {
    now += changes[position];
    if (now > peak.transient) {
      peak.transient = now;
      peak.at = op;
      time = position;
    }
  }
  llvm::erase_if(lives, [&](const MemoryLife &life) {
    return life.begin > time || time > life.end;
  });
  if (peak.at)
    peak.alive = summarizeMemory(lives);
  return peak;
}

} // namespace fsdp
