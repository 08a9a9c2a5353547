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

/// What memory is for, as people say it.
std::string describe(const MemoryLife &life) {
  if (life.isCommunication)
    return "buffers of copied collectives";
  return TypeSwitch<Operation *, std::string>(life.value.getDefiningOp())
      .Case([](AsyncUnshardOp op) {
        return ("gathered unit '" + op.getUnit() + "'").str();
      })
      .Case([](AsyncCopyOp op) {
        return ("shards copied to the " +
                StringRef(isOnHost(op.getFuture().getType()) ? "host"
                                                             : "device"))
            .str();
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

} // namespace

/// The bytes that a copied launch takes beside operands and result: its part of
/// the bucket's buffer, and of the sums of several units. (As elsewhere, the
/// shard in the type in which it is gathered is not counted.)
static int64_t getCommunicationBytes(CollectiveOpInterface launch) {
  int64_t bytes = getMemoryBytes(launch->getResult(0).getType());
  if (isa<AsyncUnshardOp>(launch.getOperation()))
    return bytes;
  // Sums of several units are copied out, those of one are where they belong.
  return getMemoryBytes(launch->getOperand(0).getType()) +
         (launch.getBucketAttr() ? bytes : 0);
}

static MemorySpace getSpace(Type type) {
  return isOnHost(type) ? MemorySpace::Host : MemorySpace::Device;
}

SmallVector<MemoryLife, 0> findMemoryLives(const StreamOrder &order,
                                           MemorySpace space) {
  SmallVector<MemoryLife, 0> lives;
  DenseMap<Value, unsigned> owners; // to an index of lives
  // Units that are gathered in one buffer, until they are copied out: the lives
  // of each, and of its part of the buffer.
  SmallVector<SmallVector<std::pair<unsigned, unsigned>, 1>, 0> gathers;
  DenseMap<Value, unsigned> gatherOf; // by the future
  Attribute bucket;                   // of the latest gather
  for (auto [index, op] : llvm::enumerate(order.getOperations())) {
    unsigned position = index;
    unsigned begin = order.getStart(position), end = order.getEnd(position);
    for (Value operand : op->getOperands())
      if (auto owner = owners.find(operand); owner != owners.end()) {
        MemoryLife &life = lives[owner->second];
        life.end = std::max(life.end, end);
      }
    for (OpResult result : op->getResults()) {
      if (Value memory = getMemoryOf(result)) {
        // Arguments are in no list: they live anyway.
        if (auto owner = owners.find(memory); owner != owners.end()) {
          unsigned life = owner->second;
          owners[result] = life;
        }
      } else if (int64_t bytes = getSpace(result.getType()) == space
                                     ? getMemoryBytes(result.getType())
                                     : 0) {
        unsigned unit = owners[result] = lives.size();
        lives.push_back({result, bytes, begin, end});
        auto launch = dyn_cast<CollectiveOpInterface>(op);
        if (!launch || !launch.getCopy())
          continue;
        lives.push_back({result, getCommunicationBytes(launch), begin, end});
        lives.back().isCommunication = true;
        if (!isa<AsyncUnshardOp>(op))
          continue;
        if (!bucket || launch.getBucketAttr() != bucket)
          gathers.emplace_back();
        bucket = launch.getBucketAttr();
        gathers.back().push_back({unit, unit + 1});
        gatherOf[result] = gathers.size() - 1;
      }
    }
    // All that was gathered at once is copied out at the first wait.
    auto wait = dyn_cast<AsyncWaitOp>(op);
    if (auto found = wait ? gatherOf.find(wait.getFuture()) : gatherOf.end();
        found != gatherOf.end()) {
      for (auto [unit, buffer] : gathers[found->second])
        lives[unit].begin = lives[unit].end = lives[buffer].end = position;
      gathers[found->second].clear();
    }
  }
  return lives;
}

Value getMemoryOf(OpResult result) {
  unsigned index = result.getResultNumber();
  return TypeSwitch<Operation *, Value>(result.getOwner())
      .Case([](AsyncWaitOp op) { return op.getFuture(); })
      .Case([](AsyncUnshardOp op) {
        // A group of one rank: the shard is the whole.
        ShardType shard = op.getShardType();
        auto full = cast<GatheredType>(op.getFuture().getType().getValueType());
        return shard.getShards() == 1 &&
                       shard.getElementType() == full.getElementType()
                   ? Value(op.getShard())
                   : Value();
      })
      .Case([](AccumulateOp op) { return op.getSum(); })
      .Case([&](UpdateOpInterface op) { return op.getStates()[index].before; })
      .Default([](Operation *op) { return aten::getViewSource(op); });
}

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
      if (getSpace(argument.getType()) != space ||
          program.getArgAttr(index, FSDPDialect::getHyperAttrName()))
        continue;
      Attribute key = getArgumentKey(program, index);
      if (!key || counted.insert(key).second)
        bytes += getMemoryBytes(argument.getType());
    }
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
