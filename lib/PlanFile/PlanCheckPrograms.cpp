//===- PlanCheckPrograms.cpp - What a plan's commands must mean -----------===//

#include "PlanCheck.h"
#include "fsdp/Archive/Numbers.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/PlanFile/Steps.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace fsdp::planfile {

bool isFloat(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F32 ||
         dtype == DType::F64;
}

//===----------------------------------------------------------------------===//
// Operators and their calls
//===----------------------------------------------------------------------===//

bool PlanChecker::checkOperators() {
  for (uint32_t i = 0; i != plan.operators()->size(); ++i) {
    const Operator &op = *plan.operators()->Get(i);
    Place place("operators", i, nameOf(op.name()));
    if (!checkString(place, op.name()) || !checkString(place, op.schema()))
      return false;
    std::string_view name = nameOf(op.name()), text = nameOf(op.schema());
    std::optional<operators::OperatorSchema> schema =
        operators::parseOperatorSchema(text);
    if (!schema)
      return reject(place.text(), "an operator schema", text);
    if (schema->name != name)
      return reject(place.text(), "the schema of " + std::string(name),
                    "that of " + schema->name);
    // Operators of other namespaces are known to the runtime only, and it is
    // there that a user says which others may run.
    constexpr std::string_view aten = "aten::";
    bool keepsStrides = true, isRandom = false;
    if (name.substr(0, aten.size()) == aten) {
      const operators::OpFacts *facts =
          operators::lookupOpFacts(name.substr(aten.size()));
      if (!facts || facts->safety == operators::Safety::Never)
        return reject(place.text(), "an operator that a plan may run",
                      facts ? "one that no plan may" : "an unknown one");
      if (facts->schema != text)
        return reject(place.text(), facts->schema, text);
      std::string_view packet = name.substr(0, name.find('.'));
      keepsStrides = facts->keepsStrides || packet.back() == '_';
      isRandom = facts->isRandom;
    }
    keepStrides.push_back(keepsStrides);
    areRandom.push_back(isRandom);
    schemas.push_back(std::move(*schema));
  }
  return true;
}

/// True if a constant can stand for an argument that is no tensor or list of
/// tensors.
static bool fits(const operators::OperatorSchema::Argument &argument,
                 Value value) {
  if (value == Value::None)
    return argument.isOptional || operators::mayBeUndefined(argument.name);
  struct Rule {
    std::string_view kind;
    Value one, another, list;
  };
  static constexpr Rule rules[] = {
      {"int", Value::Int, Value::Int, Value::Ints},
      {"SymInt", Value::Int, Value::Int, Value::Ints},
      {"float", Value::Float, Value::Int, Value::Floats},
      {"bool", Value::Bool, Value::Bool, Value::Bools},
      {"str", Value::Text, Value::Text, Value::NONE},
      {"ScalarType", Value::Type, Value::Type, Value::NONE},
      {"Device", Value::Device, Value::Device, Value::NONE},
      {"MemoryFormat", Value::MemoryFormat, Value::MemoryFormat, Value::NONE},
      {"Layout", Value::Layout, Value::Layout, Value::NONE},
  };
  // PyTorch takes a number for a tensor, too.
  if ((argument.kind == "Scalar" || argument.kind == "Tensor") &&
      !argument.isList)
    return value == Value::Int || value == Value::Float || value == Value::Bool;
  for (const Rule &rule : rules)
    if (argument.kind == rule.kind)
      return argument.isList ? value == rule.list
                             : value == rule.one || value == rule.another;
  return false;
}

bool PlanChecker::checkArgument(
    const Place &place, const operators::OperatorSchema::Argument &argument,
    int32_t value, Role role) {
  bool isTensor = argument.kind == "Tensor";
  auto unfit = [&](std::string_view found) {
    std::string kind = argument.kind + (argument.noneInside ? "?" : "") +
                       (argument.isList ? "[]" : "") +
                       (argument.isOptional ? "?" : "");
    return reject(place.text(), argument.name + " of type " + kind, found);
  };
  if (value >= 0) {
    uint32_t index = static_cast<uint32_t>(value);
    if (!checkRead(place, index, role))
      return false;
    if (!isTensor || argument.isList)
      return unfit(describeBuffer(index));
    return !argument.isWritten || checkWrite(place, index, role);
  }

  uint32_t index = static_cast<uint32_t>(~value);
  if (!checkIndex(place, "constant", index, plan.constants()->size()))
    return false;
  const Constant &constant = *plan.constants()->Get(index);
  const Refs *refs = constant.value_as_Refs();
  if (!refs || !isTensor || !argument.isList) {
    if (!fits(argument, constant.value_type()) || argument.isWritten)
      return unfit(EnumNameValue(constant.value_type()));
    return true;
  }
  if (!spend(place, refs->values()->size()))
    return false;
  for (int32_t ref : *refs->values()) {
    if (ref == -1 && !argument.noneInside)
      return unfit("none inside");
    if (ref == -1)
      continue;
    uint32_t element = static_cast<uint32_t>(ref);
    if (!checkRead(place, element, role) ||
        (argument.isWritten && !checkWrite(place, element, role)))
      return false;
  }
  return true;
}

bool PlanChecker::checkLaunch(const Place &place, const Launch &launch,
                              Role role) {
  if (!checkIndex(place, "operator", launch.op(), schemas.size()))
    return false;
  const operators::OperatorSchema &schema = schemas[launch.op()];
  size_t count = launch.args()->size();
  if (count != schema.arguments.size())
    return reject(place.text(),
                  std::to_string(schema.arguments.size()) + " arguments of " +
                      schema.name,
                  std::to_string(count));
  if (!spend(place, count))
    return false;
  std::vector<uint32_t> targets;
  for (uint32_t i = 0; i != count; ++i) {
    int32_t value = launch.args()->Get(i);
    if (!checkArgument(place, schema.arguments[i], value, role))
      return false;
    if (!schema.arguments[i].isWritten)
      continue;
    if (value >= 0)
      targets.push_back(static_cast<uint32_t>(value));
    else if (const Refs *refs = plan.constants()
                                    ->Get(static_cast<uint32_t>(~value))
                                    ->value_as_Refs())
      for (int32_t ref : *refs->values())
        if (ref != -1)
          targets.push_back(static_cast<uint32_t>(ref));
  }
  for (uint32_t target : targets)
    if (!keepStrides[launch.op()] && !windows[target].isRowMajor)
      return reject(place.text(),
                    "a row-major target, for " + schema.name +
                        " ignores other strides",
                    describeBuffer(target));

  size_t expected = schema.hasWrittenArguments() ? 0 : schema.numResults;
  size_t found = launch.results() ? launch.results()->size() : 0;
  if (found != expected)
    return reject(place.text(),
                  std::to_string(expected) + " results of " + schema.name,
                  std::to_string(found));
  if (!spend(place, found))
    return false;
  for (uint32_t i = 0; i != found; ++i)
    if (uint32_t index = launch.results()->Get(i); index != none) {
      if (!checkWrite(place, index, role))
        return false;
      targets.push_back(index);
    }
  return checkApart(place, std::move(targets));
}

/// All draws of a rank have one order, at every run: that of one stream, and of
/// programs that the user runs. Attention has a generator that is not the
/// rank's.
bool PlanChecker::checkDraw(const Place &place, const Command &command) {
  const Launch &launch = *command.step_as_Launch();
  if (!areRandom[launch.op()])
    return true;
  const operators::OperatorSchema &schema = schemas[launch.op()];
  for (uint32_t i = 0; i != schema.arguments.size(); ++i) {
    if (schema.arguments[i].name != "dropout_p")
      continue;
    int32_t value = launch.args()->Get(i);
    const auto *p = value < 0 ? plan.constants()
                                    ->Get(static_cast<uint32_t>(~value))
                                    ->value_as_Float()
                              : nullptr;
    return (p && p->value() == 0) ||
           reject(place.text(), "attention without dropout",
                  "one that would draw from a generator of its own");
  }
  if (command.stream() != Stream::Compute)
    return reject(place.text(), "to draw random numbers on the compute stream",
                  EnumNameStream(command.stream()));
  return command.role() != Role::Init ||
         reject(place.text(), "no random numbers in a program of constants",
                schema.name);
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

template <typename Collective>
bool PlanChecker::checkCollective(const Place &place,
                                  const Collective &collective) {
  if (!checkIndex(place, "communicator", collective.communicator(),
                  groupSizes.size()))
    return false;
  uint64_t group = groupSizes[collective.communicator()];
  const Window &source = windows[collective.source()];
  const Window &target = windows[collective.target()];
  if (!source.isDense || !target.isDense)
    return reject(place.text(), "dense buffers",
                  describeBuffer(source.isDense ? collective.target()
                                                : collective.source()));

  // How many elements the two have, in pieces of which one is a rank's.
  constexpr bool gathers = std::is_same_v<Collective, AllGather>;
  constexpr bool keeps = std::is_same_v<Collective, Piece>;
  constexpr bool scatters = keeps || std::is_same_v<Collective, ReduceScatter>;
  uint64_t piece = gathers ? source.numel : target.numel;
  uint64_t whole = gathers ? target.numel : source.numel;
  uint64_t factor = gathers || scatters ? group : 1, expected = 0;
  if (__builtin_mul_overflow(piece, factor, &expected) || expected != whole)
    return reject(place.text(),
                  std::to_string(factor) + " x " + std::to_string(piece) +
                      " elements for the whole",
                  std::to_string(whole));
  if (collective.unit() != none) {
    if (!checkIndex(place, "unit", collective.unit(), plan.units()->size()))
      return false;
    const Unit &unit = *plan.units()->Get(collective.unit());
    if (!checkString(place, unit.name())) // part of the digest
      return false;
    // Pieces of what is gathered may be those of a group that is smaller.
    bool isSmaller = (gathers || keeps) && group < unit.shards();
    if (isSmaller && whole != unit.numel())
      return reject(place.text(),
                    std::to_string(unit.numel()) + " elements of unit " +
                        std::string(nameOf(unit.name())) + " for the whole",
                    std::to_string(whole));
    if (!isSmaller && piece != unit.numel() / unit.shards())
      return reject(place.text(),
                    "pieces of " +
                        std::to_string(unit.numel() / unit.shards()) +
                        " elements of unit " + std::string(nameOf(unit.name())),
                    std::to_string(piece));
  }

  bool isSame = source.begin == target.begin && source.end == target.end;
  bool overlaps = buffer(collective.source()).space() ==
                      buffer(collective.target()).space() &&
                  source.begin < target.end && target.begin < source.end;
  if (overlaps && (gathers || scatters || !isSame))
    return reject(place.text(), "a source and a target apart",
                  describeBuffer(collective.source()) + " across " +
                      describeBuffer(collective.target()));
  DType from = buffer(collective.source()).dtype();
  DType to = buffer(collective.target()).dtype();
  if ((gathers || keeps) && from != to)
    return reject(place.text(), "a target of " + std::string(spell(from)),
                  spell(to));
  return true;
}

constexpr double largestF16 = 65504;

template <typename Reduction>
bool PlanChecker::checkReduction(const Place &place,
                                 const Reduction &reduction) {
  if (!checkCollective(place, reduction) ||
      !checkEnum(place, "an element type", reduction.via()))
    return false;
  // What multiplies, or divides by more than the ranks whose mean it is part
  // of, makes infinities and zeros of good numbers.
  double pre = reduction.pre(), post = reduction.post();
  bool areBounded = pre >= 1 && post >= 1 && pre * post <= double(numRanks);
  if (!areBounded)
    return reject(place.text(),
                  "divisors of at least 1 whose product is at most the " +
                      std::to_string(numRanks) + " ranks",
                  archive::spellNumber(pre) + " and " +
                      archive::spellNumber(post));
  if (reduction.via() == DType::F16 && std::max(pre, post) > largestF16)
    return reject(place.text(), "divisors that f16 can hold",
                  archive::spellNumber(pre) + " and " +
                      archive::spellNumber(post));
  bool isSum = true, isFirst = false;
  if constexpr (std::is_same_v<Reduction, AllReduce>) {
    if (!checkEnum(place, "a kind of reduction", reduction.kind()))
      return false;
    isSum = reduction.kind() == ReduceKind::Sum;
    isFirst = reduction.kind() == ReduceKind::First;
  }
  if (!isSum && (pre != 1 || post != 1))
    return reject(place.text(), "divisors of 1 for what is no sum",
                  archive::spellNumber(pre) + " and " +
                      archive::spellNumber(post));
  if (!isFirst && !isFloat(reduction.via()))
    return reject(place.text(), "a sum of floats", spell(reduction.via()));
  for (uint32_t index : {reduction.source(), reduction.target()})
    if (DType dtype = buffer(index).dtype(); dtype != reduction.via())
      return reject(place.text(),
                    "a sum of one element type, " +
                        std::string(spell(reduction.via())),
                    "a buffer of " + std::string(spell(dtype)));
  return true;
}

//===----------------------------------------------------------------------===//
// Optimizers
//===----------------------------------------------------------------------===//

bool PlanChecker::checkUpdateState(const Place &place, const Update &update,
                                   uint32_t state) {
  uint32_t index = update.states()->Get(state);
  const Buffer &found = buffer(index);
  std::string_view name = getFacts(update.rule()).states[state];
  if (found.role() != BufferRole::OptimizerState ||
      found.owner() != update.unit() || nameOf(found.name()) != name)
    return reject(place.text(),
                  "the state " + std::string(name) + " of the unit",
                  describeBuffer(index));
  DType expected = plan.units()->Get(update.unit())->storage();
  if (found.dtype() != expected)
    return reject(place.text(),
                  "an optimizer state of " + std::string(spell(expected)),
                  spell(found.dtype()));
  return true;
}

bool PlanChecker::checkScalar(const Place &place, std::string_view what,
                              uint32_t index, DType dtype) {
  return (buffer(index).dtype() == dtype && windows[index].numel == 1) ||
         reject(place.text(),
                "one " + std::string(spell(dtype)) + " as " + std::string(what),
                describeBuffer(index));
}

bool PlanChecker::checkMeasure(const Place &place, const Measure &measure) {
  if (!checkEnum(place, "a kind of measure", measure.kind()) ||
      !checkIndex(place, "unit", measure.unit(), plan.units()->size()) ||
      !checkScalar(place, "target", measure.target(), DType::F64))
    return false;
  if (measure.initial() != none &&
      (!checkScalar(place, "what is measured so far", measure.initial(),
                    DType::F64) ||
       !checkApart(place, {measure.initial(), measure.target()})))
    return false;
  const Unit &unit = *plan.units()->Get(measure.unit());
  const Window &source = windows[measure.source()];
  if (source.numel != unit.numel() / unit.shards() || !source.isRowMajor ||
      !isFloat(buffer(measure.source()).dtype()))
    return reject(place.text(),
                  "a dense piece of unit " + std::string(nameOf(unit.name())),
                  describeBuffer(measure.source()));
  return checkApart(place, {measure.source(), measure.target()}) &&
         checkIntervals(place, unit, *measure.intervals());
}

/// Of one kind and length, so that one kernel adds them without a copy.
bool PlanChecker::checkAccumulate(const Place &place, const Accumulate &add) {
  if (!checkIndex(place, "unit", add.unit(), plan.units()->size()) ||
      !checkApart(place, {add.source(), add.target()}))
    return false;
  const Unit &unit = *plan.units()->Get(add.unit());
  DType dtype = buffer(add.target()).dtype();
  for (uint32_t index : {add.source(), add.target()}) {
    const Window &window = windows[index];
    bool isKnown = window.numel == unit.numel() ||
                   window.numel == unit.numel() / unit.shards();
    if (!isKnown || window.numel != windows[add.target()].numel ||
        !window.isRowMajor || !isFloat(dtype) || buffer(index).dtype() != dtype)
      return reject(place.text(),
                    "dense gradients of unit " +
                        std::string(nameOf(unit.name())) +
                        ", of one type and length",
                    describeBuffer(index));
  }
  return true;
}

bool PlanChecker::checkIntervals(
    const Place &place, const Unit &unit,
    const flatbuffers::Vector<const Interval *> &intervals) {
  if (!checkVector(place, intervals))
    return false;
  uint64_t end = 0;
  for (const Interval *interval : intervals) {
    if (interval->begin() < end || interval->end() <= interval->begin() ||
        interval->end() > unit.numel())
      return reject(place.text(),
                    "ascending intervals inside [" + std::to_string(end) +
                        ", " + std::to_string(unit.numel()) + ")",
                    "[" + std::to_string(interval->begin()) + ", " +
                        std::to_string(interval->end()) + ")");
    end = interval->end();
  }
  return true;
}

/// The shard, or a copy of it in the memory of the states.
bool PlanChecker::checkUpdated(const Place &place, const Unit &unit,
                               uint32_t index) {
  const Window &window = windows[index];
  bool isCopy = buffer(buffer(index).root()).role() == BufferRole::Transient &&
                buffer(index).dtype() == unit.storage() && window.isRowMajor &&
                window.numel == unit.numel() / unit.shards();
  return index == unit.shard() || isCopy ||
         reject(place.text(),
                "the shard of unit " + std::string(nameOf(unit.name())) +
                    ", or a copy of it",
                describeBuffer(index));
}

bool PlanChecker::checkUpdate(const Place &place, const Update &update) {
  if (!checkEnum(place, "a rule", update.rule()) ||
      !checkIndex(place, "unit", update.unit(), plan.units()->size()))
    return false;
  const Unit &unit = *plan.units()->Get(update.unit());
  if (update.gradient() != unit.gradient() || update.gradient() == none)
    return reject(place.text(),
                  "the gradient of unit " + std::string(nameOf(unit.name())),
                  describeBuffer(update.gradient()));
  if (!checkUpdated(place, unit, update.parameter()))
    return false;
  if (DType dtype = buffer(unit.gradient()).dtype(); dtype != unit.storage())
    return reject(place.text(),
                  "a gradient of " + std::string(spell(unit.storage())),
                  spell(dtype));
  if (!checkIntervals(place, unit, *update.intervals()))
    return false;

  const UpdateRuleFacts &rule = getFacts(update.rule());
  size_t count = update.states()->size();
  if (count < rule.required || count > rule.states.size())
    return reject(place.text(),
                  std::to_string(rule.states.size()) + " states of " +
                      std::string(rule.name),
                  std::to_string(count));
  for (uint32_t i = 0; i != count; ++i)
    if (!checkUpdateState(place, update, i))
      return false;

  if (buffer(update.hyper()).role() != BufferRole::Hyper)
    return reject(place.text(), "the hyper-parameters of a decay group",
                  describeBuffer(update.hyper()));
  std::vector<uint32_t> changed = {update.parameter(), update.gradient()};
  changed.insert(changed.end(), update.states()->begin(),
                 update.states()->end());
  if (!checkApart(place, changed))
    return false;
  for (UpdateScalar scalar : EnumValuesUpdateScalar()) {
    uint32_t index = getScalars(update)[static_cast<size_t>(scalar)];
    if (index == none)
      continue;
    std::string what = toSnakeCase(EnumNameUpdateScalar(scalar));
    if (!checkScalar(place, what, index, DType::F32))
      return false;
    for (uint32_t other : changed)
      if (!checkApart(place, {index, other}))
        return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

bool PlanChecker::checkEvent(const Place &place, const Command &command) {
  const Record *record = command.step_as_Record();
  uint32_t event = record ? record->event() : command.step_as_Wait()->event();
  if (!checkIndex(place, "event", event, recorders.size()))
    return false;
  int stream = static_cast<int>(command.stream()), &recorder = recorders[event];
  if (record) {
    if (recorder >= 0)
      return reject(place.text(), "an event that is recorded once",
                    "event " + std::to_string(event) + " again");
    recorder = stream;
    return true;
  }
  if (recorder < 0)
    return reject(place.text(), "an event that has been recorded",
                  "event " + std::to_string(event));
  if (recorder == stream)
    return reject(place.text(), "an event of another stream",
                  "event " + std::to_string(event) + " of " +
                      EnumNameStream(command.stream()));
  return true;
}

bool PlanChecker::checkCommand(const Place &place, const Command &command) {
  return checkStep(place, command) && checkSpaces(place, command);
}

bool PlanChecker::checkStep(const Place &place, const Command &command) {
  if (!checkEnum(place, "a stream", command.stream()) ||
      !checkEnum(place, "a role", command.role()))
    return false;
  for (uint32_t text : {command.node(), command.scope()})
    if (text != none && !checkString(place, text))
      return false;
  Role role = command.role();
  Step step = command.step_type();
  if (step == Step::Update && role != Role::Update)
    return reject(place.text(), "the role Update", EnumNameRole(role));
  if (step != Step::Launch && !checkBuffers(place, command))
    return false;
  switch (step) {
  case Step::Launch:
    return checkLaunch(place, *command.step_as_Launch(), role) &&
           checkDraw(place, command);
  case Step::AllGather:
    return checkCollective(place, *command.step_as_AllGather());
  case Step::ReduceScatter:
    return checkReduction(place, *command.step_as_ReduceScatter());
  case Step::AllReduce:
    return checkReduction(place, *command.step_as_AllReduce());
  case Step::Update:
    return checkUpdate(place, *command.step_as_Update());
  case Step::Measure:
    return checkMeasure(place, *command.step_as_Measure());
  case Step::Accumulate:
    return checkAccumulate(place, *command.step_as_Accumulate());
  case Step::Zero: {
    uint32_t target = command.step_as_Zero()->target();
    return windows[target].isDense ||
           reject(place.text(), "a dense buffer", describeBuffer(target));
  }
  case Step::Copy: {
    const Copy &copy = *command.step_as_Copy();
    uint64_t source = windows[copy.source()].numel;
    uint64_t target = windows[copy.target()].numel;
    return source == target ||
           reject(place.text(),
                  "a target of " + std::to_string(source) + " elements",
                  std::to_string(target));
  }
  case Step::Piece:
    return checkCollective(place, *command.step_as_Piece());
  case Step::Record:
  case Step::Wait:
    return checkEvent(place, command);
  case Step::NONE:
    break;
  }
  return reject(place.text(), "a known kind of command",
                std::to_string(static_cast<int>(step)));
}

bool PlanChecker::checkStream(const Place &place, const Command &command) {
  uint32_t index = getCommunicator(command);
  if (index == none)
    return true;
  const Communicator &communicator = *plan.communicators()->Get(index);
  if (communicator.stream() == command.stream())
    return true;
  return reject(
      place.text(),
      Place("communicators", index, nameOf(communicator.name())).text() +
          "'s stream, " + EnumNameStream(communicator.stream()),
      EnumNameStream(command.stream()));
}

bool PlanChecker::checkGroup(const Place &place, const Command *before,
                             const Command &command) {
  uint32_t group = command.group();
  if (group == none)
    return true;
  std::string name = "group " + std::to_string(group);
  if (getCommunicator(command) == none)
    return reject(place.text(), "a collective in " + name,
                  EnumNameStep(command.step_type()));
  if (!before || before->group() != group)
    return groups.insert(group).second ||
           reject(place.text(), "the collectives of " + name + " in a row",
                  "another command between them");
  bool isAlike = before->step_type() == command.step_type() &&
                 before->role() == command.role() &&
                 getCommunicator(*before) == getCommunicator(command);
  return isAlike || reject(place.text(),
                           "one kind, communicator and role in " + name, "two");
}

/// A step has a first and a last micro-batch, and one program for all between.
bool PlanChecker::checkParts() {
  std::array<uint32_t, 4> counts{};
  for (uint32_t i = 0; i != plan.programs()->size(); ++i) {
    const Program &own = *plan.programs()->Get(i);
    Place place("programs", i, nameOf(own.name()));
    if (!checkEnum(place, "a part of a step", own.part()))
      return false;
    if (own.is_init() && own.part() != Part::Whole)
      return reject(place.text(), "an init program that is no part of a step",
                    EnumNamePart(own.part()));
    ++counts[static_cast<size_t>(own.part())];
  }
  constexpr uint32_t mostMicroBatches = 1 << 20;
  uint32_t number = plan.micro_batches();
  if (number < 1 || number > mostMicroBatches)
    return reject("micro_batches", "1 to " + std::to_string(mostMicroBatches),
                  std::to_string(number));
  for (Part part : {Part::First, Part::Middle, Part::Last}) {
    uint32_t expected = number > 2 || (number == 2 && part != Part::Middle);
    if (uint32_t found = counts[static_cast<size_t>(part)]; found != expected)
      return reject("programs",
                    std::to_string(expected) + " for the part " +
                        EnumNamePart(part) + " of a step of " +
                        std::to_string(number) + " micro-batches",
                    std::to_string(found));
  }
  return true;
}

bool PlanChecker::checkPrediction(const Place &place,
                                  const Prediction &prediction) {
  constexpr uint64_t largest = std::numeric_limits<int64_t>::max();
  for (uint64_t number :
       {prediction.time_ns(), prediction.flops(), prediction.peak()})
    if (number > largest)
      return reject(place.text(), "a prediction of less than 2^63", "more");
  if (prediction.exposed_ns() > prediction.time_ns())
    return reject(place.text(),
                  "a prediction with an exposed part of its " +
                      std::to_string(prediction.time_ns()) + " ns",
                  std::to_string(prediction.exposed_ns()) + " ns");
  return true;
}

bool PlanChecker::checkPrograms() {
  for (program = 0; program != plan.programs()->size(); ++program) {
    const Program &own = *plan.programs()->Get(program);
    Place place("programs", program, nameOf(own.name()));
    if (!checkString(place, own.name()) ||
        !checkUnique(place, "program", nameOf(own.name())) ||
        !spend(place, own.commands()->size()))
      return false;
    if (own.prediction() && !checkPrediction(place, *own.prediction()))
      return false;
    if (own.events() > own.commands()->size())
      return reject(place.text(), "at most one event for each command",
                    std::to_string(own.events()) + " events");
    recorders.assign(own.events(), -1);
    groups.clear();
    const Command *before = nullptr;
    bool isInit = own.is_init();
    for (uint32_t j = 0; j != own.commands()->size(); ++j) {
      const Command &command = *own.commands()->Get(j);
      Place inner("commands", j, nameOf(command.node()), &place);
      if (!checkCommand(inner, command) || !checkStream(inner, command) ||
          !checkGroup(inner, before, command))
        return false;
      before = &command;
      if ((command.role() == Role::Init) != isInit)
        return reject(inner.text(),
                      isInit ? "the role Init" : "a role of a step",
                      EnumNameRole(command.role()));
    }
  }
  if (!checkParts())
    return false;
  for (auto [root, writer] : writers)
    if (readOnce.count(root))
      return reject(
          Place("programs", writer,
                nameOf(plan.programs()->Get(writer)->name()))
              .text(),
          "no command that writes what Init commands have read, once for all "
          "steps",
          describeBuffer(root) + " as a target");
  return true;
}

} // namespace fsdp::planfile
