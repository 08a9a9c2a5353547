//===- ExportPlan.cpp - From the plan dialect to a plan file --------------===//

#include "Commands.h"

#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/AsmState.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

#include <map>

using namespace mlir;
using namespace fsdp;
namespace pf = fsdp::planfile;

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

namespace {

/// Gives each distinct value the number of its first use.
template <typename Key> struct Table {
  uint32_t number(const Key &key) {
    auto [it, inserted] = numbers.try_emplace(key, uint32_t(keys.size()));
    if (inserted)
      keys.push_back(key);
    return it->second;
  }
  std::map<Key, uint32_t> numbers;
  std::vector<Key> keys;
};

class Exporter {
public:
  Exporter(plan::ModuleOp module, StringRef name) : module(module), name(name) {
    // One walk: the body has as many buffers as the model has values.
    for (Operation &op : module.getBody().front())
      llvm::TypeSwitch<Operation *>(&op)
          .Case([&](plan::BufferOp op) { bufferOps.push_back(op); })
          .Case([&](plan::UnitOp op) { unitOps.push_back(op); })
          .Case([&](plan::ProgramOp op) { programOps.push_back(op); })
          .Case([&](plan::MeaningOp op) { meaningOps.push_back(op); });
  }

  FailureOr<pf::PlanFile> run();

  // What is numbered in the file.
  uint32_t buffer(Value value) const {
    return value ? buffers.lookup(value) : pf::none;
  }
  uint32_t unit(std::optional<StringRef> symbol) const {
    return symbol ? units.lookup(*symbol) : pf::none;
  }
  uint32_t communicator(StringRef symbol) const {
    return communicators.lookup(symbol);
  }
  uint32_t event(Value event) const { return events.lookup(event); }

  FlatBufferBuilder fbb{1 << 20};

private:
  uint32_t string(StringRef text) {
    auto [entry, isNew] =
        stringNumbers.try_emplace(text, uint32_t(strings.size()));
    if (isNew)
      strings.push_back(entry->getKey());
    return entry->second;
  }
  uint32_t string(std::optional<StringRef> text) {
    return text ? string(*text) : pf::none;
  }
  uint32_t shape(ArrayRef<int64_t> values) {
    return shapes.number(values.vec());
  }
  /// The number of a unit or a program.
  uint32_t owner(std::optional<StringRef> symbol) const {
    auto found = programs.find(symbol.value_or(""));
    return found == programs.end() ? unit(symbol) : found->second;
  }
  std::vector<pf::Meaning>
  getMeanings(StringRef program, std::vector<Offset<pf::MeaningText>> &texts);

  LogicalResult addBuffers();
  LogicalResult addUnits();
  LogicalResult addPrograms();
  FailureOr<Offset<void>> getStep(Operation &op, pf::Step &kind);
  template <typename Op> Offset<void> write(Op op, pf::Step &kind);
  template <typename Op> void addCollective(Op op, pf::Step kind);
  uint32_t getOperator(plan::LaunchOp launch);
  FailureOr<Offset<pf::Launch>> getLaunch(plan::LaunchOp launch);
  LogicalResult addArenas();

  plan::ModuleOp module;
  SmallVector<plan::BufferOp, 0> bufferOps;
  SmallVector<plan::UnitOp, 0> unitOps;
  SmallVector<plan::ProgramOp> programOps;
  SmallVector<plan::MeaningOp, 0> meaningOps;
  StringRef name;
  llvm::StringMap<uint32_t> stringNumbers;
  std::vector<StringRef> strings; // the keys of these
  Table<std::vector<int64_t>> shapes;
  Table<std::pair<std::string, std::string>> operators; // name and schema
  DenseMap<Attribute, uint32_t> operatorOf;             // by known callee
  std::map<ConstantValue, uint32_t> constantNumbers;
  std::vector<Offset<pf::Constant>> constants;
  DenseMap<Value, uint32_t> buffers, events;
  llvm::StringMap<uint32_t> units, programs, communicators;
  std::vector<Offset<pf::Buffer>> bufferTable;
  std::vector<Offset<pf::Unit>> unitTable;
  std::vector<Offset<pf::Program>> programTable;
  std::vector<pf::Reuse> reuse;
  std::vector<std::vector<std::string>>
      sequences; // of collectives, per communicator
  uint64_t arena[3] = {0, 0, 0};
  uint64_t persistentBytes = 0;
};

/// Of a buffer in its arena, with what aligns the next one.
uint64_t getEnd(plan::BufferOp op, plan::ModuleOp module) {
  uint64_t alignment = module.getDevice() == aten::Device::CUDA ? 512 : 64;
  return llvm::alignTo(*op.getOffset() + plan::getExtent(op.getTensorType()),
                       alignment);
}

FailureOr<pf::DType> getDType(Operation *op, Type type) {
  if (std::optional<pf::DType> dtype = toPlanDType(type))
    return *dtype;
  return op->emitOpError()
         << "expected an element type that a plan file knows, found " << type;
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

LogicalResult Exporter::addBuffers() {
  for (Operation &op : module.getBody().front())
    if (isa<plan::BufferOp, plan::ViewOp>(op))
      buffers.try_emplace(op.getResult(0), uint32_t(buffers.size()));

  for (Operation &op : module.getBody().front()) {
    if (!isa<plan::BufferOp, plan::ViewOp>(op))
      continue;
    Value value = op.getResult(0);
    plan::BufferOp root = plan::getRoot(value);
    RankedTensorType type = plan::getTensorType(value);
    FailureOr<pf::DType> dtype = getDType(&op, type.getElementType());
    if (failed(dtype))
      return failure();
    if (!root.getOffset())
      return op.emitOpError()
             << "expected a place in the arena: run 'plan-assign-memory' first";
    uint64_t offset = *root.getOffset() + plan::getRootOffset(value);
    uint32_t sizes = shape(type.getShape()),
             strides = shape(aten::getStrides(type));
    auto own = dyn_cast<plan::BufferOp>(op);

    flatbuffers::Offset<flatbuffers::Vector<uint8_t>> bytes;
    if (own && own.getValue()) {
      FailureOr<std::vector<uint8_t>> content =
          getBytes(own, *own.getValue(), type);
      if (failed(content))
        return failure();
      fbb.ForceVectorAlignment(content->size(), 1, 16);
      bytes = fbb.CreateVector(*content);
    }
    uint32_t ownerNumber = own ? owner(own.getOwner()) : pf::none;
    uint32_t label = own ? string(own.getName()) : pf::none;
    pf::BufferBuilder builder(fbb);
    builder.add_space(pf::Space(root.getSpace()));
    builder.add_dtype(*dtype);
    builder.add_role(own ? pf::BufferRole(own.getRole())
                         : pf::BufferRole::Transient);
    builder.add_offset(offset);
    builder.add_sizes(sizes);
    builder.add_strides(strides);
    builder.add_root(buffer(root.getBuffer()));
    builder.add_owner(ownerNumber);
    if (own && own.getIndex())
      builder.add_index(uint32_t(*own.getIndex()));
    builder.add_name(label);
    if (!bytes.IsNull())
      builder.add_bytes(bytes);
    bufferTable.push_back(builder.Finish());
    if (own)
      for (Value before : own.getAfter())
        reuse.emplace_back(buffer(before), buffer(value));
  }
  return success();
}

/// The sizes of the arenas, and where persistent memory ends.
LogicalResult Exporter::addArenas() {
  for (unsigned space = 0; space != std::size(arena); ++space)
    arena[space] = getArenaBytes(module, plan::Space(space));
  for (plan::BufferOp op : bufferOps)
    if (op.isPersistent() && op.getSpace() == plan::Space::Device)
      persistentBytes = std::max(persistentBytes, getEnd(op, module));
  return success();
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

LogicalResult Exporter::addUnits() {
  llvm::StringMap<uint32_t> shards, gradients;
  for (plan::BufferOp op : bufferOps) {
    if (op.getRole() == plan::BufferRole::Shard)
      shards[*op.getOwner()] = buffer(op.getBuffer());
    if (op.getRole() == plan::BufferRole::Gradient)
      gradients[*op.getOwner()] = buffer(op.getBuffer());
  }
  auto find = [](const llvm::StringMap<uint32_t> &map, StringRef key) {
    auto it = map.find(key);
    return it == map.end() ? pf::none : it->second;
  };
  for (plan::UnitOp op : unitOps) {
    FailureOr<pf::DType> storage = getDType(op, op.getStorage()),
                         reduce = getDType(op, op.getReduce());
    if (failed(storage) || failed(reduce))
      return failure();
    std::vector<Offset<pf::Parameter>> parameters;
    for (ParameterAttr parameter : op.getLayout().getParameters()) {
      std::vector<uint32_t> aliases;
      for (StringAttr alias : parameter.getAliases())
        aliases.push_back(string(alias.getValue()));
      SmallVector<int64_t> strides(parameter.getStrides());
      if (strides.empty())
        strides = aten::getDenseStrides(parameter.getSizes());
      parameters.push_back(pf::CreateParameterDirect(
          fbb, string(parameter.getName().getValue()), &aliases,
          shape(parameter.getSizes()), shape(strides), parameter.getOffset(),
          !parameter.getFrozen()));
    }
    std::vector<uint32_t> shardAxes(op.getShardAxes().begin(),
                                    op.getShardAxes().end()),
        replicateAxes(op.getReplicateAxes().begin(),
                      op.getReplicateAxes().end());
    unitTable.push_back(pf::CreateUnitDirect(
        fbb, string(op.getSymName()), *storage, *reduce,
        op.getLayout().getPadded(), op.getShards(), &parameters,
        find(shards, op.getSymName()), find(gradients, op.getSymName()),
        &shardAxes, &replicateAxes));
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

uint32_t Exporter::getOperator(plan::LaunchOp launch) {
  aten::OpNameAttr callee = launch.getCalleeAttr();
  auto known = operatorOf.find(callee);
  if (known != operatorOf.end())
    return known->second;
  uint32_t number =
      operators.number({callee.getQualifiedName(), getSchemaText(launch)});
  // The schema of an operator that is not known is that of the call.
  if (callee.getFacts())
    operatorOf[callee] = number;
  return number;
}

FailureOr<Offset<pf::Launch>> Exporter::getLaunch(plan::LaunchOp launch) {
  FailureOr<LaunchArguments> arguments = completeArguments(launch);
  if (failed(arguments))
    return failure();
  auto constant = [&](const ConstantValue &value) -> int32_t {
    auto [it, inserted] =
        constantNumbers.try_emplace(value, uint32_t(constants.size()));
    if (inserted)
      constants.push_back(writeConstant(fbb, value));
    return ~int32_t(it->second);
  };
  std::vector<int32_t> args;
  for (const LaunchArguments::Argument &argument : arguments->arguments) {
    if (argument.isTensor) {
      args.push_back(int32_t(buffer(argument.tensors.front())));
    } else if (argument.isTensorList) {
      ConstantValue refs{pf::Value::Refs};
      for (Value tensor : argument.tensors)
        refs.integers.push_back(tensor ? int64_t(buffer(tensor)) : -1);
      args.push_back(constant(refs));
    } else {
      args.push_back(constant(argument.constant));
    }
  }
  std::vector<uint32_t> results;
  for (Value result : arguments->results)
    results.push_back(buffer(result));
  return pf::CreateLaunchDirect(fbb, getOperator(launch), &args,
                                results.empty() ? nullptr : &results);
}

/// Adds a collective to its communicator's sequence.
template <typename Op> void Exporter::addCollective(Op op, pf::Step kind) {
  RankedTensorType type = plan::getTensorType(op.getSource());
  pf::DType dtype = toPlanDType(type.getElementType()).value_or(pf::DType::F32);
  auto reduce = pf::ReduceKind::Sum;
  if constexpr (std::is_same_v<Op, plan::AllReduceOp>)
    reduce = steps::reduceKind.get(*this, op);
  sequences[communicator(op.getCommunicator())].push_back(
      pf::describeCollective(
          kind, uint64_t(type.getNumElements()) * pf::getItemSize(dtype), dtype,
          op.getUnit().value_or("").str(), reduce));
}

template <typename Op> Offset<void> Exporter::write(Op op, pf::Step &kind) {
  constexpr auto &step = steps::stepOf<Op>;
  using Table = typename std::decay_t<decltype(step)>::Table;
  kind = pf::StepTraits<Table>::enum_value;
  if constexpr (pf::isCollective<Table>)
    addCollective(op, kind);
  auto create = [&](auto... values) {
    return Table::Traits::Create(fbb, values...);
  };
  auto writeFields = [&](auto... fields) {
    return std::apply(create, std::tuple{fields.get(*this, op)...});
  };
  return std::apply(writeFields, step.fields).Union();
}

FailureOr<Offset<void>> Exporter::getStep(Operation &op, pf::Step &kind) {
  if (auto launch = dyn_cast<plan::LaunchOp>(op)) {
    kind = pf::Step::Launch;
    FailureOr<Offset<pf::Launch>> offset = getLaunch(launch);
    if (failed(offset))
      return failure();
    return offset->Union();
  }
  Offset<void> step;
  auto tryAs = [&](auto candidate) {
    auto command = dyn_cast<decltype(candidate)>(op);
    if (command)
      step = write(command, kind);
    return bool(command);
  };
  auto tryAll = [&](auto... candidates) { return (tryAs(candidates) || ...); };
  if (!std::apply(tryAll, steps::Commands()))
    return op.emitOpError() << "expected a command of a plan";
  return step;
}

/// The name of a node, if a command comes from one.
std::optional<StringRef> getNode(Location loc) {
  if (auto named = dyn_cast<NameLoc>(loc))
    return named.getName().getValue();
  return std::nullopt;
}

LogicalResult Exporter::addPrograms() {
  for (plan::ProgramOp program : programOps) {
    events.clear();
    for (auto record : program.getOps<plan::RecordOp>())
      events.try_emplace(record.getEvent(), uint32_t(events.size()));
    std::vector<Offset<pf::Command>> commands;
    for (Operation &op : program.getBody().front()) {
      pf::Step kind = pf::Step::NONE;
      FailureOr<Offset<void>> step = getStep(op, kind);
      if (failed(step))
        return failure();
      auto command = cast<plan::CommandOpInterface>(op);
      std::optional<StringRef> scope;
      if (auto launch = dyn_cast<plan::LaunchOp>(op))
        scope = launch.getScope();
      commands.push_back(pf::CreateCommand(
          fbb, pf::Stream(command.getStream()), pf::Role(command.getRole()),
          kind, *step, string(getNode(op.getLoc())), string(scope),
          uint32_t(command.getGroup().value_or(pf::none))));
    }
    std::vector<Offset<pf::MeaningText>> texts;
    std::vector<pf::Meaning> meanings =
        getMeanings(program.getSymName(), texts);
    Offset<pf::Prediction> prediction;
    if (plan::PredictionAttr made = program.getPredictionAttr())
      prediction = pf::CreatePrediction(
          fbb, uint64_t(made.getTime()), uint64_t(made.getExposed()),
          uint64_t(made.getFlops()), uint64_t(made.getPeak()));
    programTable.push_back(pf::CreateProgramDirect(
        fbb, string(program.getSymName()), &commands, uint32_t(events.size()),
        program.getInit(), meanings.empty() ? nullptr : &meanings,
        texts.empty() ? nullptr : &texts,
        program.getPart() ? pf::Part(*program.getPart()) : pf::Part::Whole,
        prediction));
  }
  return success();
}

/// Those of a program, or of the plan as a whole where the name is empty.
std::vector<pf::Meaning>
Exporter::getMeanings(StringRef program,
                      std::vector<Offset<pf::MeaningText>> &texts) {
  std::vector<pf::Meaning> meanings;
  auto optional = [&](std::optional<StringRef> text) {
    return text ? fbb.CreateSharedString(text->str())
                : Offset<flatbuffers::String>();
  };
  for (plan::MeaningOp meaning : meaningOps) {
    if (meaning.getProgram().value_or("") != program)
      continue;
    meanings.emplace_back(uint64_t(meaning.getNumber()),
                          string(meaning.getWhat()));
    texts.push_back(pf::CreateMeaningText(fbb, optional(meaning.getWords()),
                                          optional(meaning.getUnknown())));
  }
  return meanings;
}

FailureOr<pf::PlanFile> Exporter::run() {
  for (plan::UnitOp op : unitOps)
    units.try_emplace(op.getSymName(), uint32_t(units.size()));
  for (plan::ProgramOp op : programOps)
    programs.try_emplace(op.getSymName(), uint32_t(programs.size()));
  std::vector<Offset<pf::Communicator>> communicatorTable;
  for (auto op : module.getOps<plan::CommunicatorOp>()) {
    communicators.try_emplace(op.getSymName(), uint32_t(communicators.size()));
    std::vector<uint32_t> axes(op.getAxes().begin(), op.getAxes().end());
    sequences.emplace_back();
    communicatorTable.push_back(pf::CreateCommunicatorDirect(
        fbb, string(op.getSymName()), &axes, pf::Stream(op.getStream())));
  }
  std::vector<Offset<pf::MeshAxis>> mesh;
  for (AxisAttr axis : module.getMesh().getAsRange<AxisAttr>())
    mesh.push_back(pf::CreateMeshAxis(fbb, string(axis.getName().getValue()),
                                      uint32_t(axis.getSize())));
  if (failed(addBuffers()) || failed(addUnits()) || failed(addPrograms()) ||
      failed(addArenas()))
    return failure();

  std::vector<Offset<pf::Operator>> operatorTable;
  for (const auto &[qualified, schema] : operators.keys)
    operatorTable.push_back(pf::CreateOperator(
        fbb, string(StringRef(qualified)), string(StringRef(schema))));
  std::vector<Offset<pf::Shape>> shapeTable;
  for (const std::vector<int64_t> &values : shapes.keys)
    shapeTable.push_back(pf::CreateShapeDirect(fbb, &values));
  std::vector<Offset<pf::MeaningText>> texts;
  std::vector<pf::Meaning> meanings = getMeanings("", texts);
  std::vector<Offset<flatbuffers::String>> notes, stringTable;
  if (module.getNotes())
    for (StringAttr note : module.getNotes()->getAsRange<StringAttr>())
      notes.push_back(fbb.CreateString(note.getValue().str()));
  for (StringRef text : strings)
    stringTable.push_back(fbb.CreateString(text.data(), text.size()));
  StringRef device = stringifyEnum(module.getDevice()),
            strategy = module.getStrategy()
                           ? stringifyEnum(*module.getStrategy())
                           : StringRef();
  std::optional<std::string> unproved;
  if (module.getUnproved())
    unproved = module.getUnproved()->str();
  std::vector<Offset<flatbuffers::String>> digests;
  for (const std::vector<std::string> &sequence : sequences)
    digests.push_back(fbb.CreateString(pf::digestCollectives(sequence)));
  fbb.Finish(pf::CreatePlanDirect(
                 fbb, pf::planVersion, "fsdp-mlir", device.data(),
                 strategy.data(), &mesh, arena[0], persistentBytes, arena[1],
                 &stringTable, &shapeTable, &operatorTable, &constants,
                 &bufferTable, &unitTable, &communicatorTable, &programTable,
                 &reuse, &digests, uint64_t(module.getTokenRows().value_or(0)),
                 &notes, meanings.empty() ? nullptr : &meanings,
                 unproved ? unproved->c_str() : nullptr,
                 uint32_t(module.getMicroBatches().value_or(1)), arena[2]),
             pf::PlanIdentifier());
  pf::Expected<pf::PlanFile> file =
      pf::PlanFile::seal(name.str(), fbb.GetBufferPointer(), fbb.GetSize());
  if (!file)
    return module.emitError() << file.error().message;
  return std::move(*file);
}

} // namespace

uint64_t fsdp::getArenaBytes(plan::ModuleOp module, plan::Space space) {
  uint64_t bytes = 0;
  for (auto buffer : module.getBody().front().getOps<plan::BufferOp>())
    if (buffer.getSpace() == space)
      bytes = std::max(bytes, getEnd(buffer, module));
  return bytes;
}

FailureOr<pf::PlanFile> fsdp::exportPlan(mlir::ModuleOp module,
                                         StringRef name) {
  auto plans = llvm::to_vector(module.getOps<plan::ModuleOp>());
  if (plans.size() != 1)
    return module.emitError()
           << "expected one plan.module to export, found " << plans.size();
  return exportPlan(plans.front(), name);
}

FailureOr<pf::PlanFile> fsdp::exportPlan(plan::ModuleOp plan, StringRef name) {
  for (NamedAttribute attr : plan->getDiscardableAttrs())
    return plan.emitOpError()
           << "expected only attributes that the plan file has, found '"
           << attr.getName().getValue() << "'";
  if (llvm::all_of(plan.getOps<plan::ProgramOp>(),
                   [](plan::ProgramOp program) { return program.getInit(); }))
    return plan.emitOpError() << "expected a program to run, found none";
  return Exporter(plan, name).run();
}
