//===- FSDPToPlan.cpp - Lowering of the scheduled level -------------------===//
//
// The pass: makes the tables of the plan, and a program of each function.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Analysis/IssueOrder.h"

#include "StepToProgram.h"
#include "fsdp/Dialect/FSDP/IR/Programs.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/FormatVariadic.h"

namespace fsdp {
#define GEN_PASS_DEF_CONVERTFSDPTOPLAN
#include "fsdp/Conversion/FSDPToPlan/Passes.h.inc"
} // namespace fsdp

using namespace mlir;
using namespace fsdp;
using fsdp::detail::Tables;

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

plan::BufferOp Tables::addBuffer(Location loc, plan::BufferRole role,
                                 RankedTensorType type) {
  return plan::BufferOp::create(builder, loc, role, type);
}

Value Tables::addView(Location loc, Value base, int64_t offset,
                      RankedTensorType type) {
  return plan::ViewOp::create(builder, loc, plan::getRoot(base),
                              plan::getRootOffset(base) + offset, type);
}

plan::BufferOp Tables::getState(Location loc, StateAttr state, Type type) {
  Value &value = named[{state, Attribute()}];
  if (value)
    return value.getDefiningOp<plan::BufferOp>();
  StringRef kind = state.getKind().getValue();
  plan::BufferRole role = plan::BufferRole::OptimizerState;
  if (kind == StateAttr::getParameterKind())
    role = plan::BufferRole::Shard;
  else if (kind == StateAttr::getGradientKind())
    role = plan::BufferRole::Gradient;
  else if (state.isAccumulated())
    role = plan::BufferRole::Accumulator;
  else if (kind == StateAttr::getUnshardedParameterKind())
    role = plan::BufferRole::Unsharded;
  plan::BufferOp buffer =
      addBuffer(loc, role, fsdp::detail::getMemoryType(type));
  // What is copied has to be pinned; no copy touches the states of updates.
  if (isOnHost(type))
    buffer.setSpace(role == plan::BufferRole::OptimizerState
                        ? plan::Space::Host
                        : plan::Space::Pinned);
  buffer.setOwnerAttr(state.getUnit());
  if (role == plan::BufferRole::OptimizerState || state.isAccumulated())
    buffer.setNameAttr(state.getKind());
  value = buffer;
  return buffer;
}

FlatSymbolRefAttr Tables::getCommunicator(ArrayRef<StringRef> axes,
                                          Stream stream) {
  SmallVector<int64_t> indices;
  std::string name;
  for (auto [index, axis] :
       llvm::enumerate(mesh.getAxes().getAsRange<AxisAttr>())) {
    if (!llvm::is_contained(axes, axis.getName().getValue()) ||
        axis.getSize() == 1)
      continue;
    indices.push_back(index);
    name += (name.empty() ? "" : "_") + axis.getName().str();
  }
  if (indices.empty())
    return nullptr;
  auto indexAttr = builder.getDenseI64ArrayAttr(indices);
  FlatSymbolRefAttr &symbol = communicators[{indexAttr, stream}];
  if (!symbol) {
    (name += "_") += stringifyStream(stream);
    // A unit may have that name.
    Operation *plan = builder.getInsertionBlock()->getParentOp();
    while (SymbolTable::lookupSymbolIn(plan, name))
      name += '_';
    plan::CommunicatorOp::create(builder, mesh.getLoc(), name, indexAttr,
                                 stream);
    symbol = FlatSymbolRefAttr::get(builder.getContext(), name);
  }
  return symbol;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// A note for each output of the model that the program does not return.
static void addDropped(func::FuncOp source, func::FuncOp step, StringRef prefix,
                       SmallVectorImpl<std::string> &notes) {
  DenseSet<Attribute> kept;
  for (unsigned i = 0, e = step.getNumResults(); i != e; ++i)
    kept.insert(step.getResultAttr(i, aten::ATenDialect::getOutputAttrName()));
  Operation *end = source.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(end->getOperands())) {
    auto get = [&, index = index](StringRef name) {
      return source.getResultAttrOfType<IntegerAttr>(index, name);
    };
    std::string node;
    if (auto named = dyn_cast<NameLoc>(value.getLoc()))
      node = (" ('" + named.getName().getValue() + "')").str();
    if (auto output = get(aten::ATenDialect::getOutputAttrName());
        output && !kept.contains(output))
      notes.push_back(
          llvm::formatv("{0}output {1}{2} is not kept; --keep-output keeps it",
                        prefix, output.getInt(), node));
    if (auto input = get(aten::ATenDialect::getGradOfInputAttrName()))
      notes.push_back(
          llvm::formatv("{0}the gradient of input {1}{2} is not kept", prefix,
                        input.getInt(), node));
  }
}

/// What people should know of the graphs that the plan was made from.
static ArrayAttr getNotes(ModuleOp module, ArrayRef<func::FuncOp> programs) {
  SmallVector<std::string> notes;
  auto order = module->getAttrOfType<StringAttr>(
      aten::ATenDialect::getParameterOrderAttrName());
  if (order && order.getValue() != "model")
    notes.push_back(
        "parameters are in the order of the archive, and a tied parameter has "
        "only the names that stand there: the archive does not say what the "
        "model registers");
  for (func::FuncOp program : programs) {
    std::string prefix;
    if (program != programs.front())
      prefix = ("program '" + program.getName() + "': ").str();
    func::FuncOp source = getSource(program);
    if (source && source.getBody().hasOneBlock())
      addDropped(source, program, prefix, notes);
  }
  if (notes.empty())
    return {};
  return Builder(module.getContext())
      .getStrArrayAttr(llvm::to_vector_of<StringRef>(notes));
}

/// The rows of the embedding that reads input 0, itself or through views; or 0.
static int64_t getTokenRows(func::FuncOp step) {
  SmallVector<Value> tokens;
  for (BlockArgument argument : step.getArguments()) {
    auto index = step.getArgAttrOfType<IntegerAttr>(
        argument.getArgNumber(), aten::ATenDialect::getInputAttrName());
    if (index && index.getInt() == 0)
      tokens.push_back(argument);
  }
  while (!tokens.empty()) {
    Value value = tokens.pop_back_val();
    for (Operation *user : value.getUsers()) {
      auto call = dyn_cast<aten::CallOp>(user);
      if (!call)
        continue;
      if (call.getCallee().getName() == "embedding" &&
          call.getInputs().size() == 2 && call.getInputs()[1] == value)
        return cast<RankedTensorType>(call.getInputs()[0].getType())
            .getDimSize(0);
      if (aten::getViewSource(call))
        llvm::append_range(tokens, call.getResults());
    }
  }
  return 0;
}

namespace {
struct ConvertFSDPToPlan
    : fsdp::impl::ConvertFSDPToPlanBase<ConvertFSDPToPlan> {
  using ConvertFSDPToPlanBase::ConvertFSDPToPlanBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshes = llvm::to_vector(module.getOps<MeshOp>());
    auto functions = getPrograms(module);
    if (failed(functions))
      return signalPassFailure();
    if (meshes.size() != 1) {
      module.emitError("expected one 'fsdp.mesh', found ") << meshes.size();
      return signalPassFailure();
    }
    MeshOp mesh = meshes.front();
    func::FuncOp first = functions->front();

    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    int64_t tokenRows = getTokenRows(first);
    auto plan = plan::ModuleOp::create(
        builder, first.getLoc(), builder.getStringAttr("plan"), mesh.getAxes(),
        aten::DeviceAttr::get(&getContext(), device),
        StrategyAttr::get(&getContext(), strategy),
        tokenRows ? builder.getI64IntegerAttr(tokenRows) : IntegerAttr(),
        getNotes(module, *functions), /*unproved=*/StringAttr(),
        module->getAttrOfType<IntegerAttr>(
            FSDPDialect::getMicroBatchesAttrName()));
    builder.createBlock(&plan.getBody());

    auto getAxes = [&](ArrayAttr names) {
      SmallVector<int64_t> indices;
      for (Attribute name : names)
        for (auto [index, axis] :
             llvm::enumerate(mesh.getAxes().getAsRange<AxisAttr>()))
          if (axis.getName() == name)
            indices.push_back(index);
      return indices;
    };
    for (UnitOp unit : module.getOps<UnitOp>())
      plan::UnitOp::create(builder, unit.getLoc(), unit.getSymName(),
                           getAxes(unit.getShardAxes()),
                           getAxes(unit.getReplicateAxes()), unit.getStorage(),
                           unit.getReduce(), unit.getLayout());

    SmallVector<std::pair<func::FuncOp, plan::ProgramOp>> programs;
    auto addProgram = [&](func::FuncOp func, bool isInit) {
      auto program = plan::ProgramOp::create(
          builder, func.getLoc(), func.getSymName(), isInit,
          func->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName()),
          /*prediction=*/plan::PredictionAttr());
      program.getBody().emplaceBlock();
      programs.emplace_back(func, program);
    };
    if (func::FuncOp init = getInit(module))
      addProgram(init, /*isInit=*/true);
    for (func::FuncOp func : *functions) {
      if (failed(checkApplied(func.getBody().front())))
        return signalPassFailure();
      addProgram(func, /*isInit=*/false);
    }
    Tables tables(mesh, programs.front().second);
    for (auto [func, program] : programs)
      if (failed(fsdp::detail::lowerFunction(func, tables, program)))
        return signalPassFailure();

    for (auto meaning :
         llvm::make_early_inc_range(module.getOps<plan::MeaningOp>()))
      meaning->moveBefore(&plan.getBody().front(),
                          plan.getBody().front().end());
    for (Operation &op : llvm::make_early_inc_range(*module.getBody()))
      if (&op != plan.getOperation())
        op.erase();
    module->setAttrs(DictionaryAttr::get(&getContext()));
  }
};
} // namespace
