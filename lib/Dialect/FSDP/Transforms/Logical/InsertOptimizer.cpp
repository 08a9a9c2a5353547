//===- InsertOptimizer.cpp - Update the shards at the end of the step -----===//
//
// States and updates: of each unit with a reduced gradient, one per decay
// group.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include <map>
#include <set>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_INSERTOPTIMIZERPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// One update of a unit.
struct Group {
  int64_t number;
  SmallVector<int64_t> intervals;
};
} // namespace

/// The decay groups of parameters: 0 is that of those that are not there. Odd
/// ones have no decay.
using GroupNumbers = DenseMap<ParameterAttr, int64_t>;

static bool decays(int64_t group) { return group % 2 == 0; }

/// The decay groups in which a unit has elements; without any elements, it is
/// updated all the same.
static SmallVector<Group> getGroups(LayoutAttr layout,
                                    const GroupNumbers &numbers) {
  std::set<int64_t> present;
  for (ParameterAttr parameter : layout.getParameters())
    if (!parameter.getFrozen())
      present.insert(numbers.lookup(parameter));
  SmallVector<Group> groups;
  for (int64_t number : present) {
    auto isIn = [&](ParameterAttr parameter) {
      return !parameter.getFrozen() && numbers.lookup(parameter) == number;
    };
    if (SmallVector<int64_t> intervals = getIntervals(layout, isIn);
        !intervals.empty())
      groups.push_back({number, std::move(intervals)});
  }
  if (groups.empty())
    groups.push_back({/*number=*/0, {}});
  return groups;
}

namespace {
class InsertOptimizerPass
    : public ProgramPass<impl::InsertOptimizerPassBase<InsertOptimizerPass>,
                         Level::Logical> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    return optimizer == Optimizer::None ? success() : insert(program);
  }

  /// The parameters that train and that `rule`, of the option `name`, means;
  /// there must be some.
  FailureOr<SmallVector<ParameterAttr>>
  findMatching(func::FuncOp step, ArrayRef<std::pair<UnitOp, Value>> gradients,
               StringRef name, const NoDecay &rule) {
    std::optional<llvm::Regex> regex;
    if (!rule.regex.empty()) {
      auto parsed = getNameRegex(
          rule.regex, [&] { return emitError(step.getLoc()) << name << ": "; });
      if (failed(parsed))
        return failure();
      regex = std::move(*parsed);
    }
    auto matches = [&](ParameterAttr parameter) {
      auto hasName = [&](StringAttr name) { return regex->match(name); };
      return int64_t(parameter.getSizes().size()) < rule.dims ||
             (regex && (hasName(parameter.getName()) ||
                        llvm::any_of(parameter.getAliases(), hasName)));
    };
    SmallVector<ParameterAttr> found;
    std::vector<std::string> names;
    for (auto [unit, gradient] : gradients)
      for (ParameterAttr parameter : unit.getLayout().getParameters()) {
        if (parameter.getFrozen())
          continue;
        names.push_back(parameter.getName().str());
        if (matches(parameter))
          found.push_back(parameter);
      }
    if (!found.empty())
      return found;
    InFlightDiagnostic diagnostic = emitError(step.getLoc());
    diagnostic << name << ": expected '" << spellOption(rule)
               << "' to match a parameter that trains, found none";
    listFound(diagnostic, std::move(names));
    return diagnostic;
  }

  /// By `lr-groups` and `no-decay`.
  LogicalResult findGroups(func::FuncOp step,
                           ArrayRef<std::pair<UnitOp, Value>> gradients,
                           GroupNumbers &numbers) {
    int64_t rule = 0;
    for (const NoDecay &group : lrGroups.getValue().rules) {
      auto found = findMatching(step, gradients, "lr-groups", group);
      if (failed(found))
        return failure();
      ++rule;
      for (ParameterAttr parameter : *found)
        numbers[parameter] = 2 * rule;
    }
    if (!noDecay)
      return success();
    auto found = findMatching(step, gradients, "no-decay", noDecay);
    if (failed(found))
      return failure();
    int64_t numel = 0;
    SmallVector<StringRef> matching;
    for (ParameterAttr parameter : *found) {
      ++numbers[parameter];
      matching.push_back(parameter.getName());
      numel += parameter.getNumel();
    }
    llvm::sort(matching);
    step->setAttr(FSDPDialect::getNoDecayAttrName(),
                  Builder(&getContext()).getStrArrayAttr(matching));
    remark::passed(step.getLoc(), getRemark(getArgument(), "no-decay", step))
        << remark::metric("Parameters", int64_t(found->size()))
        << remark::metric("Elements", numel);
    return success();
  }

  LogicalResult insert(func::FuncOp step) {
    MLIRContext *context = &getContext();
    SymbolTable symbols(getOperation());
    Block &block = step.getBody().front();
    Operation *terminator = block.getTerminator();
    Ports arguments = getArguments(step), results = getResults(step);
    SmallVector<Value> returned(terminator->getOperands());

    // Which argument is which unit's shard.
    DenseMap<Attribute, Value> shards;
    for (auto [argument, dict] :
         llvm::zip_equal(block.getArguments(), arguments.attrs)) {
      StateAttr state = getState(dict);
      if (state && state.getKind() == StateAttr::getParameterKind())
        shards[state.getUnit()] = argument;
    }
    // The first one to be there is the first to be used.
    SmallVector<std::pair<UnitOp, Value>> gradients;
    for (unsigned index : getGradients(step)) {
      StateAttr state = getState(results.attrs[index]);
      auto unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
      if (!unit || !shards.contains(state.getUnit()))
        return step.emitError("expected a parameter argument for the gradient ")
               << state;
      gradients.emplace_back(unit, returned[index]);
    }
    if (gradients.empty())
      return success();

    OpBuilder builder(terminator);
    auto getLoc = [&](UnitOp unit, StringRef what) {
      return NameLoc::get(builder.getStringAttr(unit.getSymName() + "." + what),
                          step.getLoc());
    };
    // A new argument and, once it is computed, a new result.
    auto addState = [&](UnitOp unit, StringRef kind, Type type) {
      arguments.add(type, getStateDict(unit, kind));
      return block.addArgument(type, getLoc(unit, kind));
    };
    auto addResult = [&](UnitOp unit, StringRef kind, Value value) {
      results.add(value.getType(), getStateDict(unit, kind));
      returned.push_back(value);
    };

    GroupNumbers numbers;
    if (failed(findGroups(step, gradients, numbers)))
      return failure();
    // The hyper-parameters of each decay group that has an update.
    std::map<int64_t, Value> hypers;
    auto getHyper = [&](int64_t group) {
      Value &hyper = hypers[group];
      if (hyper)
        return hyper;
      RankedTensorType type = getHyperType(context);
      NamedAttrList roles;
      roles.set(FSDPDialect::getHyperAttrName(),
                builder.getI64IntegerAttr(group));
      if (!decays(group))
        roles.set(FSDPDialect::getNoDecayAttrName(), builder.getUnitAttr());
      arguments.add(type, roles.getDictionary(context));
      std::string name = decays(group) ? "hyper" : "hyper_no_decay";
      if (group > 1)
        name += "_" + std::to_string(group / 2);
      hyper = block.addArgument(
          type, NameLoc::get(builder.getStringAttr(name), step.getLoc()));
      return hyper;
    };
    for (auto [unit, gradient] : gradients) {
      auto name = FlatSymbolRefAttr::get(context, unit.getSymName());
      SmallVector<Group> groups = getGroups(unit.getLayout(), numbers);
      // Hyper-parameters stand ahead of the states.
      for (const Group &group : groups)
        getHyper(group.number);
      SmallVector<Value> states = {shards.lookup(name)};
      Type type = states.front().getType();
      if (optimizer == Optimizer::AdamW) {
        states.push_back(addState(unit, StateAttr::getExpAvgKind(), type));
        states.push_back(addState(unit, StateAttr::getExpAvgSqKind(), type));
      } else {
        states.push_back(
            momentum ? addState(unit, StateAttr::getMomentumKind(), type)
                     : Value());
      }
      UpdateOpInterface update;
      for (const Group &group : groups) {
        auto intervals = builder.getDenseI64ArrayAttr(group.intervals);
        Value hyper = getHyper(group.number);
        Location loc = getLoc(unit, "new");
        auto create = [&, gradient = gradient](auto... none) {
          if (optimizer == Optimizer::AdamW)
            update = AdamWOp::create(builder, loc, TypeRange{type, type, type},
                                     name, intervals, states[0], gradient,
                                     states[1], states[2], hyper, none...);
          else
            update = SGDOp::create(builder, loc, type, momentum ? type : Type(),
                                   name, intervals, states[0], gradient,
                                   states[1], hyper, none...);
        };
        // Nothing scales the gradient or stops the update.
        std::apply(create, UpdateScalars());
        for (auto [state, updated] : llvm::zip(states, update.getStates()))
          state = updated.after;
      }
      for (const UpdatedState &state : update.getStates())
        addResult(unit, state.kind, state.after);
    }
    terminator->setOperands(returned);
    setSignature(step, arguments, results);
    return success();
  }
};
} // namespace

} // namespace fsdp
