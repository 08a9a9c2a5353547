//===- UnitAxes.cpp - Over which axes units are sharded -------------------===//

#include "UnitAxes.h"

#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"

#include <set>

using namespace fsdp;
using llvm::ArrayRef;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;

UnitRules fsdp::dropAuto(UnitRules rules) {
  for (UnitRule &rule : rules.rules)
    rule.isShardAuto = false;
  return rules;
}

namespace {
using Names = std::vector<StringRef>;

/// Whether the axes of a unit are decided.
class Matcher {
public:
  static FailureOr<Matcher> create(mlir::ModuleOp module,
                                   const UnitRules &rules);
  bool isAuto(StringRef unit) const;

private:
  std::vector<std::pair<llvm::Regex, UnitRule>> rules;
};
} // namespace

FailureOr<Matcher> Matcher::create(mlir::ModuleOp module,
                                   const UnitRules &rules) {
  Matcher matcher;
  for (const UnitRule &rule : rules.rules) {
    auto regex = getPathRegex(rule.regex, [&] { return module.emitError(); });
    if (failed(regex))
      return failure();
    matcher.rules.emplace_back(std::move(*regex), rule);
  }
  return matcher;
}

bool Matcher::isAuto(StringRef unit) const {
  UnitRule own;
  for (const auto &[regex, rule] : rules)
    if (regex.match(unit))
      own.add(rule);
  return own.isShardAuto;
}

/// The axes over which a unit is sharded, without those of one rank.
static MeshSizes getAxes(UnitOp unit) {
  auto mesh = mlir::SymbolTable::lookupNearestSymbolFrom<MeshOp>(
      unit, unit.getMeshAttr());
  MeshSizes sizes;
  for (auto axis : unit.getShardAxes().getAsRange<mlir::StringAttr>())
    if (int64_t size = *mesh.getAxisSize(axis.getValue()); size > 1)
      sizes.axes.emplace_back(axis.str(), size);
  return sizes;
}

MeshSizes fsdp::findMostAxes(mlir::ModuleOp logical) {
  MeshSizes most;
  for (auto unit : logical.getOps<UnitOp>())
    if (MeshSizes own = getAxes(unit); own.getRanks() > most.getRanks())
      most = std::move(own);
  return most;
}

/// Rules that shard these units over these axes: names of several in one
/// expression, which may be only so long.
static std::vector<UnitRule> makeRules(ArrayRef<StringRef> names,
                                       const MeshSizes &axes) {
  constexpr size_t longest = 900;
  std::vector<UnitRule> rules;
  for (StringRef name : names) {
    std::string regex = llvm::Regex::escape(name);
    if (!rules.empty() && rules.back().regex.size() + regex.size() < longest) {
      rules.back().regex += "|" + regex;
      continue;
    }
    UnitRule &rule = rules.emplace_back();
    rule.regex = std::move(regex);
    for (const auto &[axis, size] : axes.axes)
      rule.shard.push_back(axis);
  }
  return rules;
}

static Names pickSpread(ArrayRef<StringRef> names, size_t count) {
  Names picked;
  for (size_t i = 0; i != count; ++i)
    picked.push_back(names[(2 * i + 1) * names.size() / (2 * count)]);
  return picked;
}

/// Of the unit with the most, if those of these names have so many.
static int64_t countMostShards(mlir::ModuleOp logical, const Names &names,
                               int64_t shards) {
  int64_t most = 1;
  for (auto unit : logical.getOps<UnitOp>())
    most = std::max(most, llvm::is_contained(names, unit.getSymName())
                              ? shards
                              : getAxes(unit).getRanks());
  return most;
}

FailureOr<std::vector<UnitAxes>> fsdp::listUnitAxes(mlir::ModuleOp logical,
                                                    const UnitRules &rules) {
  auto matcher = Matcher::create(logical, rules);
  auto programs = getPrograms(logical);
  if (failed(matcher) || failed(programs))
    return failure();
  mlir::SymbolTable symbols(logical);
  llvm::MapVector<StringRef, UnitOp> free; // by their first gathers
  for (auto gather : programs->front().getOps<UnshardOp>())
    if (auto unit = symbols.lookup<UnitOp>(gather.getUnit());
        matcher->isAuto(unit.getSymName()) && getAxes(unit).axes.size() > 1)
      free.try_emplace(unit.getSymName(), unit);

  std::vector<UnitAxes> list = {{"all units over all axes", {}, 0}};
  list.front().shards = countMostShards(logical, {}, 1);
  if (free.empty())
    return list;
  Names roots, others;
  for (auto [name, unit] : free)
    (unit.getRoot() ? roots : others).push_back(name);
  MeshSizes inner = getAxes(free.front().second);
  while (inner.axes.size() > 1) {
    inner.axes.erase(inner.axes.begin());
    std::string over =
        " over " + llvm::join(llvm::make_first_range(inner.axes), "+");
    std::set<Names> seen;
    auto add = [&](const Names &names, const std::string &what,
                   StringRef how = "") {
      if (!names.empty() && seen.insert(names).second)
        list.push_back({what + over + how.str(), makeRules(names, inner),
                        countMostShards(logical, names, inner.getRanks())});
    };
    add(roots, "root");
    std::string of = " of " + std::to_string(others.size()) + " units";
    for (size_t eighths = 1; eighths != 8; ++eighths) {
      size_t count = (others.size() * eighths + 4) / 8;
      if (count == others.size())
        continue;
      std::string what = std::to_string(count) + of;
      add(Names(others.begin(), others.begin() + count), what, ", the first");
      add(pickSpread(others, count), what, ", spread");
    }
    add(others, roots.empty() ? "all units" : "all units but root");
    Names all = roots;
    llvm::append_range(all, others);
    add(all, "all units");
  }
  return list;
}
