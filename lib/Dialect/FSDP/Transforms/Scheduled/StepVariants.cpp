//===- StepVariants.cpp - What may be computed, in one order --------------===//
//
// What is there in any case is the same in all variants, views included. In
// front of each of it stand copies, by module: so decisions insert them, one
// module after the other.
//
//===----------------------------------------------------------------------===//

#include "StepVariants.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"

#include <map>

using namespace mlir;

namespace fsdp {

StepVariant::StepVariant(func::FuncOp program, planner::Recompute recompute)
    : recompute(recompute),
      order(IssueOrder::getOwn(program.getBody().front())),
      lives(findMemoryLives(order)) {}

void StepVariants::add(func::FuncOp program, planner::Recompute recompute,
                       ArrayRef<Recomputed> added, ArrayRef<uint32_t> modules) {
  variants.push_back(std::make_unique<StepVariant>(program, recompute));
  for (const Recomputed &one : added)
    copies[one.copy] = {one.original, modules[one.module]};
}

std::vector<StepVariants::Part>
StepVariants::split(const StepVariant &variant) const {
  std::vector<Part> parts(1);
  for (Operation *op : variant.order.getOperations()) {
    if (!isComputation(op) && !isa<aten::CallOp>(op))
      continue;
    auto copy = copies.find(op);
    if (copy == copies.end()) {
      parts.back().op = op;
      parts.emplace_back();
    } else if (isComputation(op)) {
      parts.back().copies.push_back(
          {op, copy->second.module, variant.recompute});
    }
  }
  parts.pop_back(); // nothing is after the terminator
  return parts;
}

std::string StepVariants::merge() {
  std::vector<std::vector<Part>> all;
  for (const auto &variant : variants) {
    all.push_back(split(*variant));
    if (all.back().size() != all.front().size())
      return "recomputation changes what else is computed";
  }
  for (size_t i = 0; i != all.front().size(); ++i) {
    Operation *op = all.front()[i].op;
    std::map<uint32_t, std::vector<std::pair<StepVariant *, Computation>>>
        before; // by module
    for (auto [variant, parts] : llvm::zip_equal(variants, all)) {
      if (parts[i].op->getName() != op->getName())
        return "recomputation changes the order of what is computed";
      for (const Computation &copy : parts[i].copies)
        before[copy.onlyIf].emplace_back(variant.get(), copy);
    }
    for (const auto &[module, copiesOf] : before)
      for (const auto &[variant, copy] : copiesOf) {
        variant->numbers[copy.op] = uint32_t(computations.size());
        computations.push_back(copy);
      }
    if (!isComputation(op))
      continue;
    for (auto [variant, parts] : llvm::zip_equal(variants, all))
      variant->numbers[parts[i].op] = uint32_t(computations.size());
    computations.push_back({op});
    computations.back().duration = getCost(op);
  }
  for (const auto &variant : variants) {
    findPlaces(*variant);
    findOriginals(*variant);
  }
  return "";
}

void StepVariants::findPlaces(StepVariant &variant) {
  ArrayRef<Operation *> operations = variant.order.getOperations();
  variant.latest.assign(operations.size(), 0);
  variant.next.assign(operations.size(), 0);
  uint32_t known = 0;
  auto find = [&](size_t place) {
    auto number = variant.numbers.find(operations[place]);
    return known = number == variant.numbers.end() ? known : number->second;
  };
  for (size_t place = 0; place != operations.size(); ++place)
    variant.latest[place] = find(place);
  for (size_t place = operations.size(); place-- != 0;)
    variant.next[place] = find(place);
}

/// A copy takes as long as what it is one of.
void StepVariants::findOriginals(const StepVariant &variant) {
  for (const auto &[op, number] : variant.numbers) {
    auto copy = copies.find(op);
    if (copy == copies.end())
      continue;
    uint32_t original = variant.numbers.lookup(copy->second.original);
    computations[number].duration = computations[original].duration;
    repeatedBy[original] = copy->second.module;
  }
}

} // namespace fsdp
