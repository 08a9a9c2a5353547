//===- AnnotateCosts.cpp - Write durations on operations ------------------===//
//
// Asks each operation for its work and the hardware for its duration; what a
// profile has measured takes the place of what is predicted.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Dialect/FSDP/Transforms/CostModel.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

#include <cmath>
#include <map>
#include <tuple>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_ANNOTATECOSTSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

using MeasuredKind = archive::Profile::Collective::Kind;

/// Durations by operation, in nanoseconds.
class Costs {
public:
  /// Predicts the durations of all operations of a step that take time.
  Costs(func::FuncOp step, const planner::Hardware &hardware);

  /// Replaces what was predicted by what was measured, where it was.
  void measure(const archive::Profile &profile);
  void annotate(func::FuncOp step);
  void emitRemark(func::FuncOp step);

private:
  struct Cost {
    int64_t duration;
    bool isMeasured = false;
    std::optional<planner::Communication> sent;
  };
  int64_t getDuration(CollectiveOpInterface launch,
                      const planner::Communication &sent);

  const planner::Hardware &hardware;
  llvm::MapVector<Operation *, Cost> costs;
  /// By bucket, what it costs so far; its launches need not stand together yet.
  DenseMap<Attribute, planner::CollectiveCost> together;
};

} // namespace

Costs::Costs(func::FuncOp step, const planner::Hardware &hardware)
    : hardware(hardware) {
  SymbolTableCollection symbols;
  for (Operation &op : step.getOps()) {
    auto costly = dyn_cast<CostOpInterface>(op);
    if (!costly)
      continue;
    Work work = costly.getWork(symbols);
    if (auto *computation = std::get_if<planner::Computation>(&work))
      costs[&op] = {hardware.getDuration(*computation), false, std::nullopt};
    else if (auto *sent = std::get_if<planner::Communication>(&work))
      costs[&op] = {getDuration(cast<CollectiveOpInterface>(op), *sent), false,
                    *sent};
    else if (auto *copied = std::get_if<planner::Transfer>(&work))
      costs[&op] = {hardware.getDuration(*copied), false, std::nullopt};
  }
}

/// What is issued together is one call: each launch takes what the call takes
/// longer for it.
int64_t Costs::getDuration(CollectiveOpInterface launch,
                           const planner::Communication &sent) {
  Attribute bucket = launch.getBucketAttr();
  if (!bucket)
    return hardware.getDuration(sent);
  planner::CollectiveCost &cost = together[bucket];
  int64_t before = cost.getDuration();
  cost.add(hardware.getCost(sent));
  return cost.getDuration() - before;
}

/// A profile counts the bytes of one rank's source: of a gather, its piece as
/// it is sent.
static std::tuple<MeasuredKind, int64_t, int64_t>
getKey(Operation *op, const planner::Communication &sent) {
  int64_t source = getMemoryBytes(op->getOperand(0).getType());
  switch (sent.kind) {
  case planner::CollectiveKind::AllGather:
    return {MeasuredKind::AllGather, int64_t(sent.bytes) / sent.ranks,
            sent.ranks};
  case planner::CollectiveKind::ReduceScatter:
    return {MeasuredKind::ReduceScatter, source, sent.ranks};
  case planner::CollectiveKind::AllReduce:
    return {MeasuredKind::AllReduce, source, sent.ranks};
  }
  llvm_unreachable("not a kind");
}

void Costs::measure(const archive::Profile &profile) {
  std::map<std::tuple<MeasuredKind, int64_t, int64_t>, int64_t> collectives;
  for (const archive::Profile::Collective &row : profile.collectives)
    collectives[{row.kind, row.bytes, row.ranks}] = row.duration;
  // The parts of each node: in the forward, and in the backward, which computes
  // some again.
  std::map<std::pair<StringRef, aten::Phase>, SmallVector<Cost *, 1>> nodes;
  for (auto &[op, cost] : costs) {
    if (cost.sent) {
      auto found = collectives.find(getKey(op, *cost.sent));
      if (found != collectives.end())
        cost = {found->second, true, cost.sent};
    } else if (auto name = dyn_cast<NameLoc>(op->getLoc())) {
      nodes[{name.getName(), getGatherPhase(op)}].push_back(&cost);
    }
  }
  std::map<StringRef, int64_t> measured;
  for (const archive::Profile::Node &node : profile.nodes)
    measured[node.name] = node.duration;
  for (auto &[key, parts] : nodes) {
    auto found = measured.find(key.first);
    if (found == measured.end())
      continue;
    // What one node became shares its time as predicted.
    double predicted = 0;
    for (Cost *part : parts)
      predicted += double(part->duration);
    for (Cost *part : parts) {
      double share = predicted > 0 ? double(part->duration) / predicted
                                   : 1 / double(parts.size());
      *part = {std::llround(double(found->second) * share), true, std::nullopt};
    }
  }
}

void Costs::annotate(func::FuncOp step) {
  auto name =
      StringAttr::get(step.getContext(), FSDPDialect::getCostAttrName());
  auto linksName =
      StringAttr::get(step.getContext(), FSDPDialect::getLinksAttrName());
  Builder builder(step.getContext());
  auto set = [&](StringRef machineName, bool isThere, Attribute value) {
    if (isThere)
      step->setAttr(machineName, value);
    else
      step->removeAttr(machineName);
  };
  int64_t contention = hardware.getContention();
  set(FSDPDialect::getSharedCoreAttrName(), hardware.sharedCore,
      builder.getUnitAttr());
  set(FSDPDialect::getContentionAttrName(), contention,
      builder.getI64IntegerAttr(contention));
  for (Operation &op : step.getOps()) {
    auto found = costs.find(&op);
    if (found != costs.end() && found->second.duration)
      op.setAttr(name, builder.getI64IntegerAttr(found->second.duration));
    else
      op.removeAttr(name);
    planner::LinkUse links = {};
    if (found != costs.end() && found->second.sent)
      links = hardware.getLinks(*found->second.sent);
    if (links != planner::LinkUse())
      op.setAttr(linksName, builder.getDenseI32ArrayAttr({links[0], links[1]}));
    else
      op.removeAttr(linksName);
  }
}

void Costs::emitRemark(func::FuncOp step) {
  int64_t measured = 0, time = 0, measuredTime = 0;
  for (auto &[op, cost] : costs) {
    measured += cost.isMeasured;
    time += cost.duration;
    measuredTime += cost.isMeasured ? cost.duration : 0;
  }
  remark::analysis(step.getLoc(),
                   getRemark("fsdp-annotate-costs", "costs", step))
      << remark::metric("Operations", int64_t(costs.size()))
      << remark::metric("Measured", measured)
      << remark::metric("Nanoseconds", time)
      << remark::metric("MeasuredNanoseconds", measuredTime);
}

FailureOr<CostModel> CostModel::load(Operation *op, StringRef hardware,
                                     StringRef profile, StringRef whatIf) {
  auto machine = planner::loadHardware(
      hardware.empty() ? "cpu" : hardware.str(), whatIf.str());
  if (!machine)
    return op->emitError(machine.error().message);
  if (profile.empty())
    return CostModel{*machine, std::nullopt};
  auto measured = archive::Profile::read(profile.str());
  if (!measured)
    return op->emitError(measured.error().message);
  return CostModel{*machine, std::move(*measured)};
}

LogicalResult CostModel::annotate(func::FuncOp step, bool emitsRemark) const {
  for (auto launch : step.getOps<LaunchOpInterface>())
    if (launch.isCopy() && !hardware.host.bandwidth)
      return launch->emitError("offload: expected hardware with host memory, "
                               "found none in '")
             << hardware.name
             << "'; give it a [host] table, or leave --offload out";
  Costs costs(step, hardware);
  if (profile)
    costs.measure(*profile);
  costs.annotate(step);
  if (emitsRemark)
    costs.emitRemark(step);
  return success();
}

namespace {
class AnnotateCostsPass
    : public ProgramPass<impl::AnnotateCostsPassBase<AnnotateCostsPass>,
                         Level::ATen, Level::Logical, Level::Scheduled> {
  using ProgramPass::ProgramPass;

  void getDependentDialects(DialectRegistry &registry) const final {
    registry.insert<FSDPDialect>();
    registerCostModels(registry);
  }

  LogicalResult runOnProgram(func::FuncOp program) final {
    auto model = CostModel::load(getOperation(), hardware, profile, whatIf);
    if (failed(model))
      return failure();
    return model->annotate(program, /*emitsRemark=*/true);
  }
};
} // namespace

} // namespace fsdp
