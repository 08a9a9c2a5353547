//===- AssignUnits.cpp - Say which unit each parameter belongs to ---------===//
//
// Modules are known from the scopes of calls and the names of parameters. A
// policy marks some of them as units; a parameter belongs to the innermost unit
// around all modules that own it. The policy that needs no words, `auto`, looks
// for repetition: names play no part in it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_ASSIGNUNITSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// A module. Counts and hashes include the modules inside.
struct Module {
  Module(StringRef path, unsigned parent) : path(path), parent(parent) {}

  StringRef path;
  unsigned parent;
  SmallVector<unsigned> children;
  bool isUnit = false, isOwner = false;
  /// Parameters that belong here or further inside, and how many modules own
  /// one of them.
  unsigned numParameters = 0, numOwners = 0;
  int64_t numElements = 0;
  /// The types of the parameters in use, in order, and the calls of the
  /// forward, in any order: the backward of equal modules differs where some
  /// are frozen.
  uint64_t parameters = 0, calls = 0;
};

/// The modules of the model; a module's index is above that of its parent.
class ModuleTree {
public:
  explicit ModuleTree(func::FuncOp step);

  /// Mark units, by one policy each.
  void markRepeated();
  LogicalResult markMatching(StringRef regex);
  LogicalResult markClass(StringRef name);
  /// Ends a sentence about a module that is not there: the class that was
  /// meant, if one has about that name.
  std::string suggestClass(StringRef wanted) const;
  LogicalResult markLarge(int64_t numElements);

  /// The paths of what is marked.
  std::vector<std::string> getMarked() const;

  /// Writes the unit of each parameter; those of one unit have equal `types`,
  /// and all or none of them are ignored: those whose name has a match of
  /// `ignore`, which there must be.
  LogicalResult assign(const DenseMap<Attribute, Attribute> &types,
                       StringRef ignore);

private:
  struct Sizes {
    int64_t smallest, sum;
  };

  unsigned getModule(StringRef path);
  void addParameter(BlockArgument argument, StringRef name);
  unsigned getCommonAncestor(unsigned left, unsigned right) const;
  FailureOr<DenseSet<unsigned>> findIgnored(StringRef ignore);
  std::optional<Sizes> markSiblings(unsigned parent, unsigned minOwners);
  bool markBlocks(unsigned parent);
  int64_t markLarge(unsigned index, int64_t numElements);
  StringRef getClass(const Module &module) const;
  LogicalResult reportNone(StringRef what, StringRef wanted,
                           std::vector<std::string> found);
  remark::detail::InFlightRemark remark(StringRef name) {
    return remark::passed(step.getLoc(),
                          getRemark("fsdp-assign-units", name, step));
  }

  func::FuncOp step;
  DictionaryAttr classes;
  std::vector<Module> modules;
  llvm::StringMap<unsigned> byPath;
  /// Each parameter, and the module that it belongs to.
  SmallVector<std::pair<BlockArgument, unsigned>> parameters;
};

} // namespace

//===----------------------------------------------------------------------===//
// The tree
//===----------------------------------------------------------------------===//

ModuleTree::ModuleTree(func::FuncOp step) : step(step) {
  classes = aten::getClasses(step->getParentOfType<ModuleOp>());
  modules.emplace_back("", 0);
  byPath[""] = 0;

  for (BlockArgument argument : step.getArguments())
    if (auto name = step.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), aten::ATenDialect::getParamAttrName()))
      addParameter(argument, name);

  DenseMap<StringAttr, unsigned> byScope;
  step.walk([&](aten::CallOp call) {
    if (!call.getScopeAttr())
      return;
    auto [entry, inserted] = byScope.try_emplace(call.getScopeAttr());
    if (inserted)
      entry->second = getModule(*call.getScope());
    if (call.getPhase().value_or(aten::Phase::Forward) == aten::Phase::Forward)
      modules[entry->second].calls += llvm::hash_combine(
          call.getCallee(), llvm::hash_combine_range(call->getResultTypes()));
  });
  for (unsigned index = modules.size(); --index > 0;)
    modules[modules[index].parent].calls += modules[index].calls;
}

unsigned ModuleTree::getModule(StringRef path) {
  if (auto found = byPath.find(path); found != byPath.end())
    return found->second;
  size_t dot = path.rfind('.');
  unsigned parent =
      getModule(dot == StringRef::npos ? "" : path.take_front(dot));
  unsigned index = modules.size();
  StringRef kept = byPath.try_emplace(path, index).first->first();
  modules.emplace_back(kept, parent);
  modules[parent].children.push_back(index);
  return index;
}

void ModuleTree::addParameter(BlockArgument argument, StringRef name) {
  auto getOwner = [&](StringRef name) {
    size_t dot = name.rfind('.');
    return getModule(dot == StringRef::npos ? "" : name.take_front(dot));
  };
  unsigned home = getOwner(name);
  if (auto aliases = step.getArgAttrOfType<ArrayAttr>(
          argument.getArgNumber(), aten::ATenDialect::getAliasesAttrName()))
    for (auto alias : aliases.getAsRange<StringAttr>())
      home = getCommonAncestor(home, getOwner(alias));

  bool isFirst = !std::exchange(modules[home].isOwner, true);
  parameters.emplace_back(argument, home);
  auto type = dyn_cast<RankedTensorType>(argument.getType());
  for (unsigned index = home;; index = modules[index].parent) {
    Module &module = modules[index];
    ++module.numParameters;
    module.numOwners += isFirst;
    if (type && type.hasStaticShape())
      module.numElements += type.getNumElements();
    if (!argument.use_empty())
      module.parameters =
          llvm::hash_combine(module.parameters, argument.getType());
    if (index == 0)
      return;
  }
}

unsigned ModuleTree::getCommonAncestor(unsigned left, unsigned right) const {
  while (left != right)
    (left > right ? left : right) = modules[std::max(left, right)].parent;
  return left;
}

//===----------------------------------------------------------------------===//
// Repetition
//===----------------------------------------------------------------------===//

/// What repetitions of a module have in common.
static uint64_t getSignature(const Module &module) {
  return llvm::hash_combine(module.parameters, module.calls);
}

/// Marks those of the modules in `parent` that own a parameter, or several if
/// so wanted, and have a sibling like them. Returns how many elements the
/// smallest has, and all together; nothing if there are none.
std::optional<ModuleTree::Sizes> ModuleTree::markSiblings(unsigned parent,
                                                          unsigned minOwners) {
  DenseMap<uint64_t, unsigned> counts;
  for (unsigned child : modules[parent].children)
    ++counts[getSignature(modules[child])];
  std::optional<Sizes> sizes;
  for (unsigned child : modules[parent].children) {
    Module &module = modules[child];
    module.isUnit = module.numOwners >= minOwners && module.parameters &&
                    counts[getSignature(module)] > 1;
    if (!module.isUnit)
      continue;
    if (!sizes)
      sizes = {module.numElements, 0};
    sizes->smallest = std::min(sizes->smallest, module.numElements);
    sizes->sum += module.numElements;
  }
  return sizes;
}

/// Marks the outermost blocks in `parent`: repeated modules in which several
/// own parameters. Returns true if there are any.
bool ModuleTree::markBlocks(unsigned parent) {
  std::optional<Sizes> sizes = markSiblings(parent, 2);
  bool found = sizes.has_value();
  for (unsigned child : modules[parent].children) {
    Module &module = modules[child];
    if (module.isUnit)
      continue;
    if (markBlocks(child))
      found = true;
    // The first of many blocks often has something more than the others.
    else if (sizes && module.numOwners >= 2)
      module.isUnit = module.numElements >= sizes->smallest;
  }
  return found;
}

void ModuleTree::markRepeated() {
  if (markBlocks(0))
    return;
  // Single layers, as of a perceptron, if they are most of the model.
  for (unsigned parent = 0; parent < modules.size(); ++parent) {
    std::optional<Sizes> sizes = markSiblings(parent, 1);
    if (sizes && 2 * sizes->sum >= modules[0].numElements)
      break;
    for (unsigned child : modules[parent].children)
      modules[child].isUnit = false;
  }
}

std::vector<std::string> ModuleTree::getMarked() const {
  std::vector<std::string> paths;
  for (const Module &module : modules)
    if (module.isUnit)
      paths.push_back(module.path.str());
  return paths;
}

//===----------------------------------------------------------------------===//
// Names and sizes
//===----------------------------------------------------------------------===//

LogicalResult ModuleTree::reportNone(StringRef what, StringRef wanted,
                                     std::vector<std::string> found) {
  InFlightDiagnostic diagnostic =
      step.emitError("no module with parameters has ")
      << what << " '" << wanted << "'";
  listFound(diagnostic, std::move(found));
  diagnostic << suggestClass(wanted);
  return diagnostic;
}

LogicalResult ModuleTree::markMatching(StringRef text) {
  FailureOr<llvm::Regex> regex =
      getPathRegex(text, [&] { return step.emitError(); });
  if (failed(regex))
    return failure();
  std::vector<std::string> paths;
  bool found = false;
  for (Module &module : modules) {
    if (module.numParameters == 0 || module.path.empty())
      continue;
    module.isUnit = regex->match(module.path);
    found |= module.isUnit;
    paths.push_back(generalizePath(module.path));
  }
  return found ? success() : reportNone("path", text, std::move(paths));
}

StringRef ModuleTree::getClass(const Module &module) const {
  auto name = classes ? classes.getAs<StringAttr>(module.path) : StringAttr();
  return name ? name.getValue() : StringRef();
}

/// "models.Layer" as people write it.
static StringRef getLast(StringRef name) {
  StringRef last = name.rsplit('.').second;
  return last.empty() ? name : last;
}

std::string ModuleTree::suggestClass(StringRef wanted) const {
  constexpr unsigned mostEdits = 2;
  StringRef closest;
  unsigned least = mostEdits + 1;
  for (const Module &module : modules) {
    StringRef name = getLast(getClass(module));
    if (module.numParameters == 0 || module.path.empty() || name.empty())
      continue;
    unsigned edits = wanted.edit_distance_insensitive(
        name, /*AllowReplacements=*/true, mostEdits);
    if (edits < least && edits < name.size())
      std::tie(closest, least) = std::pair(name, edits);
  }
  return closest.empty() ? "" : "; did you mean 'class:" + closest.str() + "'?";
}

LogicalResult ModuleTree::markClass(StringRef wanted) {
  auto module = step->getParentOfType<ModuleOp>();
  if (!classes && module->hasAttr(aten::ATenDialect::getClassesAttrName()))
    return step.emitError("expected the classes of modules, found none where "
                          "`aten.classes` says: was the resource elided?");
  std::vector<std::string> names;
  bool found = false;
  for (Module &module : modules) {
    StringRef name = getClass(module);
    if (module.numParameters == 0 || module.path.empty() || name.empty())
      continue;
    StringRef last = getLast(name);
    module.isUnit = wanted == name || wanted == last;
    found |= module.isUnit;
    names.push_back(last.str());
  }
  return found ? success() : reportNone("class", wanted, std::move(names));
}

/// Returns how many elements of the module are in units.
int64_t ModuleTree::markLarge(unsigned index, int64_t numElements) {
  StringRef name = getClass(modules[index]).rsplit('.').second;
  if (modules[index].numElements < numElements || name == "MultiheadAttention")
    return 0;
  int64_t inUnits = 0;
  for (unsigned child : modules[index].children)
    inUnits += markLarge(child, numElements);
  // What only holds a list of modules has no forward, hence no class.
  bool isContainer = classes && getClass(modules[index]).empty();
  if (index == 0 || isContainer ||
      modules[index].numElements - inUnits < numElements)
    return inUnits;
  modules[index].isUnit = true;
  return modules[index].numElements;
}

LogicalResult ModuleTree::markLarge(int64_t numElements) {
  markLarge(0, numElements);
  return success();
}

//===----------------------------------------------------------------------===//
// The answer
//===----------------------------------------------------------------------===//

/// The numbers of arguments.
FailureOr<DenseSet<unsigned>> ModuleTree::findIgnored(StringRef ignore) {
  DenseSet<unsigned> ignored;
  if (ignore.empty())
    return ignored;
  FailureOr<llvm::Regex> regex =
      getNameRegex(ignore, [&] { return step.emitError("ignore: "); });
  if (failed(regex))
    return failure();
  auto matches = [&](Attribute name) {
    return regex->match(cast<StringAttr>(name));
  };
  std::vector<std::string> names;
  for (auto [argument, module] : parameters) {
    unsigned number = argument.getArgNumber();
    Attribute name =
        step.getArgAttr(number, aten::ATenDialect::getParamAttrName());
    auto aliases = step.getArgAttrOfType<ArrayAttr>(
        number, aten::ATenDialect::getAliasesAttrName());
    if (matches(name) || (aliases && llvm::any_of(aliases, matches)))
      ignored.insert(number);
    names.push_back(cast<StringAttr>(name).str());
  }
  if (!ignored.empty())
    return ignored;
  InFlightDiagnostic diagnostic = step.emitError("ignore: expected '")
                                  << ignore
                                  << "' to match a parameter, found none";
  listFound(diagnostic, std::move(names));
  return diagnostic;
}

LogicalResult ModuleTree::assign(const DenseMap<Attribute, Attribute> &types,
                                 StringRef ignore) {
  FailureOr<DenseSet<unsigned>> ignored = findIgnored(ignore);
  if (failed(ignored))
    return failure();
  struct Unit {
    SmallVector<BlockArgument> arguments;
    int64_t numElements = 0;
  };
  llvm::MapVector<std::tuple<unsigned, Attribute, unsigned>, Unit> units;
  DenseMap<std::pair<unsigned, unsigned>, Attribute> firstTypes;
  for (auto [argument, index] : parameters) {
    while (index != 0 && !modules[index].isUnit)
      index = modules[index].parent;
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    Attribute own = types.lookup(step.getArgAttr(
        argument.getArgNumber(), aten::ATenDialect::getParamAttrName()));
    unsigned isIgnored = ignored->contains(argument.getArgNumber());
    firstTypes.try_emplace({index, isIgnored}, own);
    Unit &unit = units[{index, own, isIgnored}];
    unit.arguments.push_back(argument);
    if (type && type.hasStaticShape())
      unit.numElements += type.getNumElements();
  }

  Ports arguments = getArguments(step);
  Builder builder(step.getContext());
  auto attrName = builder.getStringAttr(FSDPDialect::getUnitAttrName());
  llvm::StringSet<> names;
  for (const auto &[key, unit] : units) {
    auto [index, own, isIgnored] = key;
    std::string name = index == 0 ? "root" : modules[index].path.str();
    if (isIgnored)
      name += ".ignored";
    if (own != firstTypes[{index, isIgnored}])
      llvm::raw_string_ostream(name)
          << '.' << getElementTypeOrSelf(unit.arguments.front().getType());
    // A module may be called "root", or like the second type of another.
    while (!names.insert(name).second)
      name += '_';
    auto attr = builder.getStringAttr(name);
    for (BlockArgument argument : unit.arguments) {
      DictionaryAttr &dict = arguments.attrs[argument.getArgNumber()];
      NamedAttrList attrs(dict);
      attrs.set(attrName, attr);
      if (isIgnored)
        attrs.set(FSDPDialect::getIgnoredAttrName(), builder.getUnitAttr());
      else if (index == 0)
        attrs.set(FSDPDialect::getRootAttrName(), builder.getUnitAttr());
      dict = attrs.getDictionary(step.getContext());
    }
    remark("unit") << remark::reason("'{0}' has {1} parameters, {2} elements",
                                     name, unit.arguments.size(),
                                     unit.numElements);
  }
  step.setAllArgAttrs(arguments.attrs);
  return success();
}

std::vector<std::string> findRepeatedModules(func::FuncOp model) {
  ModuleTree tree(model);
  tree.markRepeated();
  return tree.getMarked();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
struct AssignUnitsPass : impl::AssignUnitsPassBase<AssignUnitsPass> {
  using Base::Base;

  LogicalResult mark(ModuleTree &tree, func::FuncOp step) {
    auto [policy, value] = StringRef(wrap).split(':');
    int64_t numElements;
    if (policy == "auto" && value.empty()) {
      tree.markRepeated();
      return success();
    }
    if (policy == "scope" && !value.empty())
      return tree.markMatching(value);
    if (policy == "class" && !value.empty())
      return tree.markClass(value);
    if (policy == "size" && !value.getAsInteger(10, numElements) &&
        numElements > 0)
      return tree.markLarge(numElements);
    return step.emitError("expected wrap to be 'auto', 'scope:REGEX', "
                          "'class:NAME' or 'size:N', got '")
           << wrap << '\'' << tree.suggestClass(wrap);
  }

  /// The first program decides; parameters are the same in the others.
  LogicalResult assign() {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return failure();
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, Level::ATen)))
        return failure();
    func::FuncOp first = programs->front();
    ModuleTree tree(first);
    if (failed(mark(tree, first)))
      return failure();
    if (failed(tree.assign(getParameterTypes(*programs), ignore)))
      return failure();
    for (func::FuncOp other : llvm::drop_begin(*programs))
      if (failed(copyUnits(first, other)))
        return failure();
    return success();
  }

  void runOnOperation() final {
    if (failed(assign()))
      signalPassFailure();
  }
};
} // namespace

} // namespace fsdp
