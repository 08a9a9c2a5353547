//===- BuildStepModel.cpp - A step as the planner sees it -----------------===//
//
// Each program is scheduled three times in a copy: with nothing recomputed,
// with everything, and with what is cheap (see ProgramBuilder.cpp); where
// pieces may be kept of units, once more with all of them.
//
//===----------------------------------------------------------------------===//

#include "ProgramBuilder.h"

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"

using namespace mlir;

namespace fsdp {

bool isComputation(Operation *op) {
  if (isa<AsyncReshardOp, PieceOp>(op) || aten::getViewSource(op))
    return false;
  LaunchOpInterface launch;
  if (auto wait = dyn_cast<AsyncWaitOp>(op))
    launch = wait.getLaunch();
  else
    launch = dyn_cast<LaunchOpInterface>(op);
  if (!launch)
    return true;
  if (launch.isCopy()) // the others go with their gather or reduction
    return launch.getPhaseAttr().getValue() == aten::Phase::Update;
  // What reduces the sum of reduced gradients has nothing to overlap with.
  bool isOfSum =
      launch.isReduction() && isa<ShardType>(launch.getLaunched().getType());
  return !launch.getUnitAttr() || isOfSum;
}

/// Which micro-batches of a step a program is for, and how many these are.
static void setPart(func::FuncOp program, planner::Program &model) {
  using Role = planner::Program::Role;
  auto part = program->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  if (!part)
    return;
  model.role = part.getValue() == Part::First    ? Role::First
               : part.getValue() == Part::Middle ? Role::Middle
                                                 : Role::Last;
  auto microBatches =
      program->getParentOfType<ModuleOp>()->getAttrOfType<IntegerAttr>(
          FSDPDialect::getMicroBatchesAttrName());
  if (microBatches && model.role == Role::Middle)
    model.count = microBatches.getInt() - 2;
}

/// A unit of one rank is not, which with offload is copied.
static bool isGathered(UnitOp unit) {
  auto mesh =
      SymbolTable::lookupNearestSymbolFrom<MeshOp>(unit, unit.getMeshAttr());
  return mesh.getGroupSize(unit.getShardAxes()) != 1;
}

/// What a whole unit takes that a later micro-batch would else gather.
static void setResidentBytes(ArrayRef<UnitOp> units,
                             planner::StepModel &model) {
  for (const planner::Program &program : model.programs)
    if (program.role == planner::Program::Role::Last)
      for (auto [index, unit] : llvm::enumerate(units))
        if (isGathered(unit))
          model.units[index].residentBytes =
              program.traffic[index].gatheredBytes;
}

/// The number of a module, which is added if need be.
static uint32_t getModule(planner::StepModel &model, StringRef path) {
  auto found = llvm::find(model.modules, path);
  if (found == model.modules.end()) {
    model.modules.push_back(path.str());
    return uint32_t(model.modules.size() - 1);
  }
  return uint32_t(found - model.modules.begin());
}

/// The module that a unit is a part of: of those that may be recomputed if it
/// is in one, else its own.
static uint32_t getModuleOf(planner::StepModel &model, UnitOp unit) {
  if (unit.getRoot())
    return planner::nobody;
  StringRef name = unit.getSymName();
  for (auto [number, path] : llvm::enumerate(model.modules))
    if (name == path ||
        (name.starts_with(path) && name.substr(path.size()).starts_with(".")))
      return uint32_t(number);
  return getModule(model, name);
}

/// A module with what programs are made with: meshes and units.
static OwningOpRef<ModuleOp> cloneDeclarations(ModuleOp module) {
  OpBuilder builder(module.getContext());
  OwningOpRef<ModuleOp> copy(ModuleOp::create(builder, module.getLoc()));
  (*copy)->setDiscardableAttrs(module->getDiscardableAttrDictionary());
  builder.setInsertionPointToEnd(copy->getBody());
  for (Operation &op : *module.getBody())
    if (!isa<func::FuncOp>(op))
      builder.clone(op);
  return copy;
}

/// What costs are annotated for.
static void readMachine(func::FuncOp program, planner::StepModel &model) {
  model.sharesCore = program->hasAttr(FSDPDialect::getSharedCoreAttrName());
  auto contention =
      program->getAttrOfType<IntegerAttr>(FSDPDialect::getContentionAttrName());
  model.contention = contention ? contention.getInt() : 0;
}

/// Adds a copy of a program as it is scheduled, in which so much of modules is
/// recomputed, and all pieces are kept over the axes, if there are any.
static FailureOr<func::FuncOp>
addCopy(func::FuncOp program, const Twine &suffix,
        ArrayRef<RecomputedModule> wanted, ArrayAttr pieceAxes,
        const CostModel &costs, OpBuilder &builder,
        std::vector<Recomputed> &added) {
  auto copy = cast<func::FuncOp>(builder.clone(*program));
  copy.setSymName((program.getSymName() + "." + suffix).str());
  setReshardAfterForward(copy, true, pieceAxes);
  added = fsdp::recompute(copy, wanted);
  if (failed(makeAsync(copy)) || failed(costs.annotate(copy)))
    return failure();
  return copy;
}

/// Adds copies of a program, in which nothing, everything, and what is cheap is
/// recomputed. Returns them.
static FailureOr<SmallVector<func::FuncOp>>
addVariants(func::FuncOp program, ArrayRef<Recomputable> recomputable,
            planner::StepModel &model, const CostModel &costs,
            OpBuilder &builder, StepVariants &variants) {
  using planner::Recompute;
  SmallVector<func::FuncOp> copies;
  for (Recompute recompute :
       {Recompute::None, Recompute::All, Recompute::Cheap}) {
    SmallVector<RecomputedModule> wanted;
    SmallVector<uint32_t> modules;
    for (const Recomputable &one : recomputable)
      if (recompute == Recompute::All ||
          (recompute == Recompute::Cheap && one.hasCheap)) {
        wanted.push_back({one.path, recompute});
        modules.push_back(getModule(model, one.path));
      }
    if (recompute == Recompute::Cheap && wanted.empty())
      continue;
    std::vector<Recomputed> added;
    auto copy = addCopy(program, Twine(unsigned(recompute)), wanted, {}, costs,
                        builder, added);
    if (failed(copy))
      return failure();
    copies.push_back(*copy);
    variants.add(*copy, recompute, added, modules);
  }
  return copies;
}

/// Adds a copy in which everything is recomputed and all pieces are kept.
static FailureOr<func::FuncOp> addPieces(func::FuncOp program,
                                         ArrayRef<Recomputable> recomputable,
                                         ArrayAttr axes, const CostModel &costs,
                                         OpBuilder &builder) {
  SmallVector<RecomputedModule> all;
  for (const Recomputable &one : recomputable)
    all.push_back({one.path, planner::Recompute::All});
  std::vector<Recomputed> added;
  return addCopy(program, "pieces", all, axes, costs, builder, added);
}

ArrayAttr getPieceAxes(ModuleOp module) {
  for (auto unit : module.getOps<UnitOp>())
    if (ArrayAttr axes = unit.getPieceAxesAttr())
      return axes;
  return nullptr;
}

FailureOr<BuiltModel> buildStepModel(ArrayRef<func::FuncOp> programs,
                                     const CostModel &costs) {
  BuiltModel built;
  planner::StepModel &model = built.model;
  func::FuncOp first = programs.front();
  auto module = first->getParentOfType<ModuleOp>();
  model.persistentBytes = getPersistentBytes(first);

  SmallVector<std::vector<Recomputable>> recomputable;
  for (func::FuncOp program : programs) {
    if (failed(checkStraightLine(program.getBody().front())))
      return failure();
    recomputable.push_back(findRecomputable(program));
    for (const Recomputable &one : recomputable.back())
      getModule(model, one.path);
  }
  llvm::StringMap<uint32_t> units;
  for (auto unit : module.getOps<UnitOp>()) {
    units[unit.getSymName()] = uint32_t(model.units.size());
    bool stays = unit.getRoot() || unit.getKeptAfterBackward() ||
                 unit.getShardAxes().empty();
    model.units.push_back(
        {unit.getSymName().str(), getModuleOf(model, unit), stays});
  }

  ArrayAttr pieceAxes = getPieceAxes(module);
  std::vector<RankGroup> groups;
  OwningOpRef<ModuleOp> scratch = cloneDeclarations(module);
  OpBuilder builder(module.getContext());
  builder.setInsertionPointToEnd(scratch->getBody());
  for (auto [number, constProgram] : llvm::enumerate(programs)) {
    func::FuncOp program = constProgram;
    ProgramBuilder one(program, costs, model, units, groups);
    FailureOr<SmallVector<func::FuncOp>> copies = addVariants(
        program, recomputable[number], model, costs, builder, one.variants);
    if (failed(copies))
      return failure();
    readMachine(copies->front(), model);
    std::vector<uint32_t> modules;
    for (const Recomputable &module : recomputable[number])
      modules.push_back(getModule(model, module.path));
    if (failed(one.build(modules)))
      return failure();
    if (pieceAxes) {
      auto withPieces =
          addPieces(program, recomputable[number], pieceAxes, costs, builder);
      if (failed(withPieces))
        return failure();
      one.addPieces(*withPieces);
      copies->push_back(*withPieces);
    }
    for (func::FuncOp copy : *copies)
      copy.erase();
    setPart(program, one.program);
    model.programs.push_back(std::move(one.program));
    built.sizes.push_back(std::move(one.sizes));
  }
  setResidentBytes(llvm::to_vector(module.getOps<UnitOp>()), model);
  bool isAny = false;
  for (const RankGroup &group : groups) {
    model.overlaps.emplace_back();
    for (const RankGroup &other : groups) {
      bool overlaps = !(group == other) && group.overlaps(other);
      model.overlaps.back().push_back(overlaps);
      isAny |= overlaps;
    }
  }
  if (!isAny)
    model.overlaps.clear(); // there are no turns
  if (std::string error = planner::check(model); !error.empty())
    return first.emitError("cannot be modelled: ") << error;
  return built;
}

} // namespace fsdp
