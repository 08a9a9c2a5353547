//===- ImportPlan.cpp - From a plan file to the plan dialect --------------===//

#include "Commands.h"

#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Verifier.h"

#include <algorithm>

using namespace mlir;
using namespace fsdp;
namespace pf = fsdp::planfile;

namespace {

class Importer {
public:
  Importer(const pf::PlanFile &file, MLIRContext *context)
      : context(context), builder(context), file(file), plan(file.plan()),
        unknown(UnknownLoc::get(context)) {}

  OwningOpRef<mlir::ModuleOp> run();

  // What has a number in the file.
  FlatSymbolRefAttr unit(uint32_t index) {
    return index == pf::none ? FlatSymbolRefAttr()
                             : symbol(plan.units()->Get(index)->name());
  }
  FlatSymbolRefAttr communicator(uint32_t index) {
    return symbol(plan.communicators()->Get(index)->name());
  }
  Type type(pf::DType dtype) { return fromPlanDType(dtype, context); }
  Value buffer(uint32_t index) {
    return index == pf::none ? Value() : buffers[index];
  }
  Value &event(uint32_t index) { return events[index]; }

  MLIRContext *context;
  OpBuilder builder;

private:
  StringAttr string(uint32_t index) {
    return index == pf::none ? StringAttr()
                             : builder.getStringAttr(file.string(index));
  }
  FlatSymbolRefAttr symbol(uint32_t index) {
    return FlatSymbolRefAttr::get(string(index));
  }
  SmallVector<int64_t> shape(uint32_t index) {
    return SmallVector<int64_t>(file.shape(index).begin(),
                                file.shape(index).end());
  }

  void addUnit(const pf::Unit &unit);
  void addBuffers();
  ElementsAttr getValue(const pf::Buffer &buffer, RankedTensorType type);
  LogicalResult addCommand(const pf::Command &command);
  plan::PredictionAttr getPrediction(const pf::Program &program);
  LogicalResult addLaunch(const pf::Launch &launch, Location loc,
                          const pf::Command &command);
  template <typename Op, typename Table, typename... Fields, size_t... indices>
  void setFields(steps::CommandParts<Op> &parts, const Table &step,
                 const std::tuple<Fields...> &fields,
                 std::index_sequence<indices...>);
  /// Adds a command, if it is of this op.
  template <typename Op> bool tryAdd(const pf::Command &command, Location loc);

  const pf::PlanFile &file;
  const pf::Plan &plan;
  Location unknown;
  std::vector<Value> buffers, events;
};

void Importer::addUnit(const pf::Unit &unit) {
  SmallVector<ParameterAttr> parameters;
  uint64_t numel = 0;
  for (const pf::Parameter *parameter : *unit.parameters()) {
    SmallVector<StringAttr> aliases;
    if (parameter->aliases())
      for (uint32_t alias : *parameter->aliases())
        aliases.push_back(string(alias));
    SmallVector<int64_t> sizes = shape(parameter->sizes()),
                         strides = shape(parameter->strides());
    if (llvm::equal(strides, aten::getDenseStrides(sizes)))
      strides.clear();
    parameters.push_back(ParameterAttr::get(
        context, string(parameter->name()), sizes, int64_t(parameter->offset()),
        !parameter->trainable(), strides, aliases));
    numel = std::max(numel, parameter->offset() +
                                uint64_t(parameters.back().getNumel()));
  }
  auto layout = LayoutAttr::get(context, parameters, int64_t(numel),
                                int64_t(unit.numel()));
  auto getAxes = [&](const flatbuffers::Vector<uint32_t> *axes) {
    SmallVector<int64_t> list;
    if (axes)
      list.append(axes->begin(), axes->end());
    return builder.getDenseI64ArrayAttr(list);
  };
  plan::UnitOp::create(
      builder, unknown, string(unit.name()), getAxes(unit.shard_axes()),
      getAxes(unit.replicate_axes()), TypeAttr::get(type(unit.storage())),
      TypeAttr::get(type(unit.reduce())), layout);
}

/// The content of an embedded buffer, by its logical order of elements.
ElementsAttr Importer::getValue(const pf::Buffer &buffer,
                                RankedTensorType type) {
  size_t itemSize = pf::getItemSize(buffer.dtype());
  auto dense = RankedTensorType::get(type.getShape(), type.getElementType());
  SmallVector<char> raw;
  SmallVector<int64_t> index(type.getRank()), strides = aten::getStrides(type);
  for (int64_t i = 0, e = type.getNumElements(); i != e; ++i) {
    int64_t from = 0;
    for (auto [position, stride] : llvm::zip_equal(index, strides))
      from += position * stride;
    const uint8_t *bytes = buffer.bytes()->data() + from * itemSize;
    raw.append(bytes, bytes + itemSize);
    for (int64_t d = type.getRank() - 1;
         d >= 0 && ++index[d] == type.getDimSize(d); --d)
      index[d] = 0;
  }
  if (type.getElementType().isInteger(1)) {
    SmallVector<bool> truths(
        llvm::map_range(raw, [](char byte) { return byte != 0; }));
    return DenseElementsAttr::get(dense, truths);
  }
  return DenseElementsAttr::getFromRawBuffer(dense, raw);
}

void Importer::addBuffers() {
  uint32_t count = plan.buffers()->size();
  buffers.assign(count, {});
  std::vector<SmallVector<Value>> after(count);
  // A view may stand before its root, and a buffer may take over the place of
  // one that stands after it: all roots come first.
  auto isView = [&](uint32_t i) {
    uint32_t root = plan.buffers()->Get(i)->root();
    return root != i && root != pf::none;
  };
  auto getType = [&](const pf::Buffer &entry) {
    return aten::getTensorType(shape(entry.sizes()), type(entry.dtype()),
                               shape(entry.strides()));
  };
  for (uint32_t i = 0; i != count; ++i) {
    if (isView(i))
      continue;
    const pf::Buffer &entry = *plan.buffers()->Get(i);
    RankedTensorType tensor = getType(entry);
    auto op = plan::BufferOp::create(builder, unknown,
                                     plan::BufferRole(entry.role()), tensor);
    op.setSpace(plan::Space(entry.space()));
    if (entry.owner() != pf::none)
      op.setOwnerAttr(pf::isOfProgram(entry.role())
                          ? symbol(plan.programs()->Get(entry.owner())->name())
                          : unit(entry.owner()));
    if (entry.name() != pf::none)
      op.setNameAttr(string(entry.name()));
    if (entry.index() != pf::none)
      op.setIndex(entry.index());
    if (entry.bytes())
      op.setValueAttr(getValue(entry, tensor));
    op.setOffset(entry.offset());
    buffers[i] = op.getBuffer();
  }
  if (plan.reuse())
    for (const pf::Reuse *edge : *plan.reuse())
      after[edge->after()].push_back(buffers[edge->before()]);

  // Backwards, each in front of the one that comes next.
  OpBuilder::InsertionGuard guard(builder);
  for (uint32_t i = count; i-- != 0;) {
    if (isView(i)) {
      const pf::Buffer &entry = *plan.buffers()->Get(i);
      const pf::Buffer &root = *plan.buffers()->Get(entry.root());
      buffers[i] = plan::ViewOp::create(
          builder, unknown, plan::BufferType::get(context),
          buffers[entry.root()],
          builder.getI64IntegerAttr(entry.offset() - root.offset()),
          TypeAttr::get(getType(entry)));
    } else {
      buffers[i].getDefiningOp<plan::BufferOp>().getAfterMutable().assign(
          after[i]);
    }
    builder.setInsertionPoint(buffers[i].getDefiningOp());
  }
}

LogicalResult Importer::addLaunch(const pf::Launch &launch, Location loc,
                                  const pf::Command &command) {
  const pf::Operator &op = *plan.operators()->Get(launch.op());
  StringRef name = file.string(op.name());
  std::optional<operators::OperatorSchema> schema =
      operators::parseOperatorSchema(file.string(op.schema()));
  if (!schema || schema->arguments.size() != launch.args()->size())
    return emitError(loc) << "expected an operator with a schema, found '"
                          << name << "'";
  name.consume_front("aten::");
  SmallVector<Attribute> values;
  SmallVector<Value> inputs, outputs;
  auto place = aten::OperandAttr::get(context);
  for (auto [i, argument] : llvm::enumerate(schema->arguments)) {
    int32_t value = launch.args()->Get(unsigned(i));
    if (value >= 0) {
      if (argument.isWritten) {
        outputs.push_back(buffers[value]);
        continue;
      }
      values.push_back(place);
      inputs.push_back(buffers[value]);
      continue;
    }
    const pf::Constant &constant = *plan.constants()->Get(~value);
    const pf::Refs *refs = constant.value_as_Refs();
    if (!refs) {
      values.push_back(readConstant(constant,
                                    plan.device()->string_view() == "cuda"
                                        ? aten::Device::CUDA
                                        : aten::Device::CPU,
                                    context));
      continue;
    }
    if (argument.isWritten) {
      for (int32_t ref : *refs->values())
        if (ref >= 0)
          outputs.push_back(buffers[ref]);
      continue;
    }
    SmallVector<Attribute> list;
    for (int32_t ref : *refs->values()) {
      list.push_back(ref < 0 ? Attribute(builder.getUnitAttr())
                             : Attribute(place));
      if (ref >= 0)
        inputs.push_back(buffers[ref]);
    }
    values.push_back(aten::ArgsAttr::getList(context, list));
  }
  DenseBoolArrayAttr present;
  if (launch.results()) {
    SmallVector<bool> places;
    for (uint32_t result : *launch.results()) {
      places.push_back(result != pf::none);
      if (result != pf::none)
        outputs.push_back(buffers[result]);
    }
    if (llvm::is_contained(places, false))
      present = builder.getDenseBoolArrayAttr(places);
  }
  plan::LaunchOp::create(
      builder, loc, aten::OpNameAttr::get(context, name),
      aten::ArgsAttr::get(context, values, ArrayRef<StringAttr>()), inputs,
      outputs, present, string(command.scope()),
      plan::RoleAttr::get(context, plan::Role(command.role())),
      plan::StreamAttr::get(context, Stream(command.stream())));
  return success();
}

template <typename Op, typename Table, typename... Fields, size_t... indices>
void Importer::setFields(steps::CommandParts<Op> &parts, const Table &step,
                         const std::tuple<Fields...> &fields,
                         std::index_sequence<indices...>) {
  (std::get<indices>(fields).set(*this, parts,
                                 step.template get_field<indices>()),
   ...);
}

template <typename Op>
bool Importer::tryAdd(const pf::Command &command, Location loc) {
  constexpr auto &fields = steps::stepOf<Op>.fields;
  using Table = typename std::decay_t<decltype(steps::stepOf<Op>)>::Table;
  if (command.step_type() != pf::StepTraits<Table>::enum_value)
    return false;
  const auto &step = *static_cast<const Table *>(command.step());
  if constexpr (std::is_same_v<Table, pf::Update>)
    if (!steps::hasRule<Op>(step.rule()))
      return false;
  steps::CommandParts<Op> parts;
  setFields(parts, step, fields,
            std::make_index_sequence<Table::Traits::fields_number>());
  parts.properties.role =
      plan::RoleAttr::get(context, plan::Role(command.role()));
  parts.properties.stream =
      plan::StreamAttr::get(context, Stream(command.stream()));
  if constexpr (pf::isCollective<Table>)
    if (command.group() != pf::none)
      parts.properties.group = builder.getI64IntegerAttr(command.group());
  OperationState state(loc, Op::getOperationName());
  for (ArrayRef<Value> group : parts.operands)
    state.addOperands(group);
  if constexpr (steps::CommandParts<Op>::hasSegments)
    llvm::transform(parts.operands,
                    parts.properties.operandSegmentSizes.begin(),
                    [](ArrayRef<Value> group) { return int(group.size()); });
  if (parts.result)
    state.addTypes(plan::EventType::get(context));
  state.getOrAddProperties<typename Op::Properties>() = parts.properties;
  Operation *op = builder.create(state);
  if (parts.result)
    *parts.result = op->getResult(0);
  return true;
}

LogicalResult Importer::addCommand(const pf::Command &command) {
  Location loc = command.node() == pf::none
                     ? unknown
                     : Location(NameLoc::get(string(command.node())));
  if (const pf::Launch *launch = command.step_as_Launch())
    return addLaunch(*launch, loc, command);
  auto tryAll = [&](auto... ops) {
    return (tryAdd<decltype(ops)>(command, loc) || ...);
  };
  if (!std::apply(tryAll, steps::Commands()))
    return emitError(loc) << "expected a command of a plan";
  return success();
}

plan::PredictionAttr Importer::getPrediction(const pf::Program &program) {
  const pf::Prediction *made = program.prediction();
  if (!made)
    return {};
  return plan::PredictionAttr::get(
      context, int64_t(made->time_ns()), int64_t(made->exposed_ns()),
      int64_t(made->flops()), int64_t(made->peak()));
}

OwningOpRef<mlir::ModuleOp> Importer::run() {
  context->loadDialect<plan::PlanDialect>();
  OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(builder, unknown);
  builder.setInsertionPointToEnd(module->getBody());
  SmallVector<Attribute> axes, notes;
  for (const pf::MeshAxis *axis : *plan.mesh())
    axes.push_back(AxisAttr::get(context, string(axis->name()), axis->size()));
  if (plan.notes())
    for (const flatbuffers::String *note : *plan.notes())
      notes.push_back(builder.getStringAttr(note->string_view()));
  auto getText = [&](const flatbuffers::String *text) {
    return text ? builder.getStringAttr(text->string_view()) : StringAttr();
  };
  std::optional<Strategy> strategy;
  if (plan.strategy()) {
    StringRef name = plan.strategy()->string_view();
    strategy = symbolizeStrategy(name);
    if (!strategy) {
      emitError(unknown) << "strategy: expected one of full_shard, "
                            "shard_grad_op, no_shard, hybrid_shard and "
                            "hybrid_shard_zero2, found '"
                         << name << "'";
      return nullptr;
    }
  }
  auto op = plan::ModuleOp::create(
      builder, unknown, builder.getStringAttr("plan"),
      builder.getArrayAttr(axes),
      aten::DeviceAttr::get(
          context, *aten::symbolizeDevice(plan.device()->string_view())),
      strategy ? StrategyAttr::get(context, *strategy) : StrategyAttr(),
      plan.token_rows() ? builder.getI64IntegerAttr(int64_t(plan.token_rows()))
                        : IntegerAttr(),
      notes.empty() ? ArrayAttr() : builder.getArrayAttr(notes),
      getText(plan.unproved()),
      plan.micro_batches() == 1
          ? IntegerAttr()
          : builder.getI64IntegerAttr(plan.micro_batches()));
  Block &body =
      op.getBody().empty() ? op.getBody().emplaceBlock() : op.getBody().front();
  builder.setInsertionPointToEnd(&body);
  for (const pf::Communicator *entry : *plan.communicators())
    plan::CommunicatorOp::create(
        builder, unknown, string(entry->name()),
        builder.getDenseI64ArrayAttr(
            SmallVector<int64_t>(entry->axes()->begin(), entry->axes()->end())),
        Stream(entry->stream()));
  for (const pf::Unit *entry : *plan.units())
    addUnit(*entry);
  addBuffers();
  for (const pf::Program *entry : *plan.programs()) {
    auto program = plan::ProgramOp::create(
        builder, unknown, string(entry->name()), entry->is_init(),
        entry->part() == pf::Part::Whole
            ? PartAttr()
            : PartAttr::get(context, Part(entry->part())),
        getPrediction(*entry));
    Block &commands = program.getBody().empty()
                          ? program.getBody().emplaceBlock()
                          : program.getBody().front();
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToEnd(&commands);
    events.assign(entry->events(), {});
    for (const pf::Command *command : *entry->commands())
      if (failed(addCommand(*command)))
        return {};
  }
  auto addMeanings = [&](const auto *meanings, const auto *texts,
                         FlatSymbolRefAttr program) {
    for (uint32_t i = 0; meanings && i != meanings->size(); ++i) {
      const pf::MeaningText *text = texts ? texts->Get(i) : nullptr;
      plan::MeaningOp::create(
          builder, unknown, string(meanings->Get(i)->what()), program,
          builder.getI64IntegerAttr(meanings->Get(i)->value()),
          text ? getText(text->words()) : StringAttr(),
          text ? getText(text->unknown()) : StringAttr());
    }
  };
  addMeanings(
      plan.meaning(),
      static_cast<decltype(plan.programs()->Get(0)->meaning_texts())>(nullptr),
      {});
  for (const pf::Program *entry : *plan.programs())
    addMeanings(entry->meaning(), entry->meaning_texts(),
                symbol(entry->name()));
  if (failed(verify(*module)))
    return {};
  return module;
}

} // namespace

OwningOpRef<mlir::ModuleOp> fsdp::importPlan(const pf::PlanFile &file,
                                             MLIRContext *context) {
  return Importer(file, context).run();
}
