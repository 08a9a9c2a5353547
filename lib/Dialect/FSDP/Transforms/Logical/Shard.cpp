//===- Shard.cpp - Shard the parameters of the step over ranks ------------===//
//
// Units are collected from all programs, decided and laid out. Then each
// program is sharded (Sharder.h):
//
//   parameters of a unit          one argument, its shard
//   first use in a phase          fsdp.unshard and fsdp.view in front of it
//   views, copies of parameters   made anew in front of their first use
//   last gradient of a unit       fsdp.flatten_grads behind it, then
//     sharded S > 1 times           fsdp.reduce_scatter
//     R > 1 replicas, or S = 1      fsdp.all_reduce
//   loss, synchronised buffers    fsdp.all_reduce over all ranks
//   gradients of a unit           one result, the shard of the gradient
//   outputs                       dropped, unless they are asked for
//
// The reductions of a gradient divide by S * R together. What is gathered once
// more is for the reshard policy to say.
//
//===----------------------------------------------------------------------===//

#include "Sharder.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ShardUnits.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_SHARDPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// All sizes are known, and all operations of the aten level.
static LogicalResult checkSizes(func::FuncOp program) {
  auto isBound = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return !tensor || aten::hasKnownLayout(tensor);
  };
  Block &block = program.getBody().front();
  for (BlockArgument argument : block.getArguments())
    if (!isa<RankedTensorType>(argument.getType()) ||
        !isBound(argument.getType()))
      return emitError(argument.getLoc())
             << "expected sizes that are bound, as by --bind hint or --bind "
                "NAME=SIZE; got "
             << argument.getType();
  for (Operation &op : block) {
    if (!isa<aten::CallOp, func::ReturnOp>(op))
      return op.emitError("expected an operation of the aten level");
    for (Type type : op.getResultTypes())
      if (!isBound(type))
        return op.emitError("expected sizes that are bound, as by --bind hint "
                            "or --bind NAME=SIZE; got ")
               << type;
  }
  return success();
}

static bool reshards(Strategy strategy) {
  return strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
}

namespace {
class ShardPass : public impl::ShardPassBase<ShardPass> {
  using ShardPassBase::ShardPassBase;

  /// The type that an option names; null if it names none.
  Type getType(ElementType type) {
    return type == ElementType::Unchanged
               ? Type()
               : aten::getElementType(&getContext(), stringifyEnum(type));
  }

  void runOnOperation() final {
    if (failed(shard()))
      signalPassFailure();
  }

  MeshSizes getSizes();
  FailureOr<MeshOp> createMesh(func::FuncOp first);
  UnitRule getRule(const ShardUnits::Unit &target,
                   ArrayRef<llvm::Regex> regexes,
                   MutableArrayRef<bool> matched);
  UnitDecision decide(MeshOp mesh, const ShardUnits::Unit &unit,
                      const UnitRule &rule);
  FailureOr<SmallVector<UnitDecision>> decide(func::FuncOp first, MeshOp mesh,
                                              const ShardUnits &units);
  LogicalResult markSynchronised(ArrayRef<func::FuncOp> programs);
  LogicalResult shard();
};
} // namespace

/// The axes of the mesh: always one of copies and one of shards, of one rank
/// each if they are not said.
MeshSizes ShardPass::getSizes() {
  MeshSizes sizes = mesh;
  if (sizes.axes.empty())
    return strategy == Strategy::NoShard ? MeshSizes::of(ranks, 1)
                                         : MeshSizes::of(1, ranks);
  if (!sizes.hasAxis(MeshSizes::replicate))
    sizes.axes.insert(sizes.axes.begin(), {MeshSizes::replicate.str(), 1});
  if (sizes.axes.size() == 1)
    sizes.axes.emplace_back("shard", 1);
  return sizes;
}

FailureOr<MeshOp> ShardPass::createMesh(func::FuncOp first) {
  if (mesh.isAuto)
    return first.emitError("expected the sizes of a mesh, such as mesh=2x4; "
                           "'auto' is a decision of fsdp-plan");
  if (unit.getValue().isAuto())
    return first.emitError("expected the axes of units, such as shard=local; "
                           "'auto' is a decision of fsdp-plan");
  if (ranks < 1)
    return first.emitError("expected at least one rank, got ")
           << ranks.getValue();
  if (mesh.axes.empty() && isHybrid(strategy))
    return first.emitError("expected a mesh of two axes for ")
           << stringifyStrategy(strategy) << ", such as mesh=2x4";
  if (!mesh.axes.empty() && ranks != 1 && mesh.getRanks() != ranks)
    return first.emitError("expected a mesh of ")
           << ranks.getValue() << " ranks, got " << spellOption(mesh);
  OpBuilder builder(first);
  SmallVector<Attribute> axes;
  for (const auto &[name, size] : getSizes().axes)
    axes.push_back(
        AxisAttr::get(&getContext(), builder.getStringAttr(name), size));
  if (mesh.getRanks() > INT32_MAX)
    return first.emitError("expected less than 2^31 ranks, got more");
  SymbolTable symbols(getOperation());
  auto op = MeshOp::create(builder, first.getLoc(), "mesh",
                           builder.getArrayAttr(axes));
  symbols.insert(op, Block::iterator(first)); // which may rename it
  return op;
}

/// The rules that match a unit by its name, or by that which reports have, over
/// the options, which are of all units.
UnitRule ShardPass::getRule(const ShardUnits::Unit &target,
                            ArrayRef<llvm::Regex> regexes,
                            MutableArrayRef<bool> matched) {
  UnitRule own;
  own.strategy = strategy.getValue();
  own.reshardAfterBackward = reshardAfterBackward.getValue();
  own.storage = storageDtype;
  own.reduce = reduceDtype;
  for (auto [index, regex] : llvm::enumerate(regexes)) {
    if (!regex.match(target.name) && !regex.match(target.symbol))
      continue;
    own.add(unit.getValue().rules[index]);
    matched[index] = true;
  }
  return own;
}

static bool isShardedOver(AxisAttr axis, const UnitRule &rule) {
  StringRef name = axis.getName().getValue();
  if (!rule.shard.empty() && rule.strategy != Strategy::NoShard)
    return llvm::is_contained(rule.shard, name);
  // Which of the two an axis of one rank is makes no difference.
  return axis.getSize() == 1 || isHybrid(*rule.strategy)
             ? name != MeshSizes::replicate
             : rule.strategy != Strategy::NoShard;
}

UnitDecision ShardPass::decide(MeshOp mesh, const ShardUnits::Unit &unit,
                               const UnitRule &rule) {
  UnitDecision decision;
  bool isSharded = false;
  for (auto axis : mesh.getAxes().getAsRange<AxisAttr>()) {
    if (unit.isIgnored)
      break;
    StringRef name = axis.getName().getValue();
    bool isShard = isShardedOver(axis, rule);
    (isShard ? decision.shardAxes : decision.replicateAxes).push_back(name);
    isSharded |= isShard && axis.getSize() > 1;
  }
  // What stays for the next micro-batch has its place in memory all the while.
  decision.keep = isSharded && !*rule.reshardAfterBackward;
  // The backward starts where the forward ends, with the root: freeing it in
  // between would only mean to gather it at once again.
  decision.reshard =
      isSharded && !decision.keep &&
      rule.reshard.value_or(reshards(*rule.strategy) && !unit.isRoot);
  decision.storage = getType(rule.storage);
  decision.reduce = getType(rule.reduce);
  return decision;
}

/// The mesh has the axes that a rule names.
static LogicalResult checkAxes(func::FuncOp first, MeshOp mesh,
                               const UnitRule &rule) {
  for (const std::string &name : rule.shard) {
    if (mesh.getAxisSize(name))
      continue;
    std::vector<std::string> names;
    for (auto axis : mesh.getAxes().getAsRange<AxisAttr>())
      names.push_back(axis.getName().str());
    InFlightDiagnostic diagnostic = first.emitError("expected 'shard=")
                                    << name << "' of '" << rule.regex
                                    << "' to name an axis of the mesh";
    listFound(diagnostic, std::move(names));
    return diagnostic;
  }
  return success();
}

FailureOr<SmallVector<UnitDecision>>
ShardPass::decide(func::FuncOp first, MeshOp mesh, const ShardUnits &units) {
  ArrayRef<UnitRule> rules = unit.getValue().rules;
  std::vector<llvm::Regex> regexes;
  for (const UnitRule &rule : rules) {
    auto regex = getPathRegex(rule.regex, [&] { return first.emitError(); });
    if (failed(regex) || failed(checkAxes(first, mesh, rule)))
      return failure();
    regexes.push_back(std::move(*regex));
  }
  SmallVector<bool> matched(rules.size());
  SmallVector<UnitDecision> decisions;
  for (const ShardUnits::Unit &unit : units.units)
    decisions.push_back(decide(mesh, unit, getRule(unit, regexes, matched)));
  for (auto [rule, isMatched] : llvm::zip_equal(rules, matched)) {
    if (isMatched)
      continue;
    std::vector<std::string> names;
    for (const ShardUnits::Unit &unit : units.units)
      names.push_back(unit.name.str());
    InFlightDiagnostic diagnostic = first.emitError("expected '")
                                    << rule.regex
                                    << "' to match the name of a unit";
    listFound(diagnostic, std::move(names));
    return diagnostic;
  }
  return decisions;
}

/// Says of each program that changes buffers what becomes of them.
LogicalResult ShardPass::markSynchronised(ArrayRef<func::FuncOp> programs) {
  if (syncBuffers == SyncBuffers::None)
    return success();
  bool isFound = false;
  auto name = StringAttr::get(&getContext(), stringifySyncBuffers(syncBuffers));
  for (func::FuncOp program : programs)
    for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
      if (program.getResultAttr(
              i, aten::ATenDialect::getBufferMutationAttrName())) {
        program->setAttr(FSDPDialect::getSyncBuffersAttrName(), name);
        isFound = true;
      }
  if (isFound)
    return success();
  return func::FuncOp(programs.front())
             .emitError("sync-buffers: expected a program that changes a "
                        "buffer, such as "
                        "the statistics of batch norm, found none; leave out '")
         << stringifySyncBuffers(syncBuffers) << '\'';
}

LogicalResult ShardPass::shard() {
  ModuleOp module = getOperation();
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  func::FuncOp first = programs->front();
  ShardUnits units;
  for (func::FuncOp program : *programs)
    if (failed(checkLevel(program, Level::ATen)) ||
        failed(checkSizes(program)) || failed(units.add(program)))
      return failure();
  int64_t shards =
      countShards(strategy, std::max<int64_t>(ranks, mesh.getRanks()), mesh);
  if (strategy != Strategy::NoShard && shards == 1) {
    first->emitWarning("one rank has nothing to shard: using 'no_shard'");
    strategy = Strategy::NoShard;
  }
  if (failed(markSynchronised(*programs)))
    return failure();
  FailureOr<MeshOp> meshOp = createMesh(first);
  if (failed(meshOp))
    return failure();
  units.nameSymbols(module);
  auto decisions = decide(first, *meshOp, units);
  if (failed(decisions) || failed(units.create(first, *meshOp, *decisions)))
    return failure();
  for (func::FuncOp program : *programs)
    if (failed(Sharder(program, units, *meshOp, keepOutput, syncBuffers).run()))
      return failure();
  return success();
}

} // namespace fsdp
