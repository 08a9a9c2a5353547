//===- VerifyPlan.cpp - Does a plan do what its model means? --------------===//

#include "PlanVerifier.h"

#include <algorithm>

namespace fsdp::symbolic {

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void PlanVerifier::runLaunch(const pf::Launch &launch) {
  std::vector<Argument> arguments;
  arguments.reserve(launch.args()->size());
  std::vector<const Window *> results;
  auto getWindow = [&](uint32_t index) {
    return index == none ? nullptr : &windows[index];
  };
  for (int32_t value : *launch.args()) {
    Argument &argument = arguments.emplace_back();
    if (value >= 0) {
      argument.tensors = {getWindow(static_cast<uint32_t>(value))};
      continue;
    }
    const pf::Constant &constant =
        *plan.constants()->Get(static_cast<uint32_t>(~value));
    if (const pf::Refs *refs = constant.value_as_Refs())
      for (int32_t ref : *refs->values())
        argument.tensors.push_back(getWindow(static_cast<uint32_t>(ref)));
    else
      argument.literal = &literals[static_cast<uint32_t>(~value)];
  }
  if (launch.results())
    for (uint32_t result : *launch.results())
      results.push_back(getWindow(result));
  machine.launch(*operators[launch.op()], arguments, results);
}

static std::vector<Range>
getRanges(const flatbuffers::Vector<const pf::Interval *> &intervals) {
  std::vector<Range> ranges;
  for (const pf::Interval *interval : intervals)
    ranges.emplace_back(interval->begin(), interval->end());
  return ranges;
}

void PlanVerifier::runUpdate(const pf::Update &update) {
  const Unit &unit = units[update.unit()];
  std::vector<const Window *> states = {&windows[update.parameter()]};
  for (uint32_t state : *update.states())
    states.push_back(&windows[state]);
  Machine::Scalars scalars = {};
  for (size_t i = 0; i != scalars.size(); ++i)
    if (uint32_t scalar = getScalars(update)[i]; scalar != none)
      scalars[i] = &windows[scalar];
  machine.update(unit, pf::getFacts(update.rule()).name,
                 windows[update.gradient()], states, windows[update.hyper()],
                 scalars, getRanges(*update.intervals()));
}

void PlanVerifier::runMeasure(const pf::Measure &measure) {
  machine.measure(
      units[measure.unit()], pf::EnumNameMeasureKind(measure.kind()),
      windows[measure.source()],
      measure.initial() == none ? nullptr : &windows[measure.initial()],
      windows[measure.target()], getRanges(*measure.intervals()));
}

void PlanVerifier::runCommand(const pf::Command &command) {
  switch (command.step_type()) {
  case pf::Step::Launch:
    return runLaunch(*command.step_as_Launch());
  case pf::Step::AllGather: {
    const pf::AllGather &gather = *command.step_as_AllGather();
    return machine.allGather(windows[gather.source()], windows[gather.target()],
                             getAxes(gather.communicator()));
  }
  case pf::Step::ReduceScatter: {
    const pf::ReduceScatter &reduce = *command.step_as_ReduceScatter();
    return machine.reduceScatter(windows[reduce.source()],
                                 windows[reduce.target()],
                                 getAxes(reduce.communicator()),
                                 {reduce.pre(), reduce.post()}, reduce.via());
  }
  case pf::Step::AllReduce: {
    const pf::AllReduce &reduce = *command.step_as_AllReduce();
    return machine.allReduce(windows[reduce.source()], windows[reduce.target()],
                             getAxes(reduce.communicator()),
                             {reduce.pre(), reduce.post()}, reduce.via(),
                             reduce.kind());
  }
  case pf::Step::Update:
    return runUpdate(*command.step_as_Update());
  case pf::Step::Measure:
    return runMeasure(*command.step_as_Measure());
  case pf::Step::Accumulate: {
    const pf::Accumulate &add = *command.step_as_Accumulate();
    return machine.accumulate(units[add.unit()], windows[add.source()],
                              windows[add.target()]);
  }
  case pf::Step::Zero:
    return machine.zero(windows[command.step_as_Zero()->target()]);
  case pf::Step::Copy: {
    const pf::Copy &copy = *command.step_as_Copy();
    return machine.copy(windows[copy.source()], windows[copy.target()]);
  }
  case pf::Step::Piece: {
    const pf::Piece &piece = *command.step_as_Piece();
    return machine.keepPiece(windows[piece.source()], windows[piece.target()],
                             getAxes(piece.communicator()));
  }
  case pf::Step::Record:
  case pf::Step::Wait:
  case pf::Step::NONE:
    return;
  }
}

/// `commands[3] (mm)`
static std::string at(const char *list, uint32_t index, std::string_view name) {
  std::string text = std::string(list) + "[" + std::to_string(index) + "]";
  return name.empty() ? text : text.append(" (").append(name).append(")");
}

/// Groups that share two ranks or more must not start in either order: one rank
/// might start with the one, another rank with the other.
void PlanVerifier::checkGroups(const pf::Command &command, const Clock &done,
                               Run &run) {
  uint32_t communicator = pf::getCommunicator(command);
  uint64_t axes = communicator == none ? 0 : getAxes(communicator);
  if (axes == 0)
    return;
  for (const auto &[others, latest] : run.collectives)
    if (others != axes && (others & axes) != 0)
      for (size_t stream = 0; stream != numStreams; ++stream)
        if (latest[stream] > done[stream] && message.empty())
          message = at("programs", program,
                       nameOf(plan.programs()->Get(program)->name())) +
                    "." + nameOfCommand(position) +
                    ": expected to start after " +
                    nameOfCommand(latest[stream]) +
                    ", whose groups share ranks with its own, found no order "
                    "between them";
  run.collectives[axes][static_cast<size_t>(command.stream())] = position;
}

PlanVerifier::Run PlanVerifier::begin(const pf::Program &commands) {
  setGathered(commands);
  machine.memory.beginProgram([&](uint32_t root) {
    const pf::Buffer &buffer = *plan.buffers()->Get(root);
    return pf::isPersistent(buffer.role()) ||
           buffer.role() == BufferRole::Input;
  });
  Run run{std::move(machine.memory)};
  run.events.resize(commands.events());
  return run;
}

/// Runs the commands of some roles, in file order; events order the streams.
/// Returns the run as it was before the first command of another role: with
/// more roles, it goes on from there.
PlanVerifier::Run PlanVerifier::runProgram(const pf::Program &commands,
                                           Roles roles, Run run) {
  std::optional<Run> fork;
  auto keep = [&] {
    if (fork || roles == all)
      return;
    fork = run; // without the memory, which the machine has
    fork->memory = machine.memory;
    fork->effects = machine.effects;
    fork->position = position;
  };
  machine.memory = std::move(run.memory);
  machine.effects = run.effects;
  for (position = run.position;
       position != int32_t(commands.commands()->size()); ++position) {
    const pf::Command &command = *commands.commands()->Get(uint32_t(position));
    // Events order the streams in all runs.
    bool isEvent = command.step_as_Record() || command.step_as_Wait();
    if (!isEvent && !(roles & bit(command.role()))) {
      keep();
      continue;
    }
    size_t stream = static_cast<size_t>(command.stream());
    Clock &clock = run.clocks[stream];
    clock[stream] = position;
    if (const pf::Record *record = command.step_as_Record())
      run.events[record->event()] = clock;
    else if (const pf::Wait *wait = command.step_as_Wait())
      clock.join(run.events[wait->event()]);
    // Of the collectives of a group, none is done before the others.
    if (command.group() == none || command.group() != run.group)
      run.first = position;
    run.group = command.group();
    Clock done = clock;
    done[stream] = run.first - 1;
    machine.memory.setActor({position, command.stream()}, done);
    if (machine.values.isRecording)
      machine.values.maker = nameOfCommand(position);
    checkGroups(command, done, run);
    runCommand(command);
    if (machine.memory.getProblem() || !message.empty())
      return run;
  }
  keep();
  // All streams are joined after a program.
  Clock end;
  end.fill(position);
  position = -1;
  machine.memory.setActor({}, end);
  return fork ? std::move(*fork) : std::move(run);
}

//===----------------------------------------------------------------------===//
// The end
//===----------------------------------------------------------------------===//

/// What the buffers hold that outlive the commands of `roles`.
Meanings PlanVerifier::describe(Roles roles) {
  Meanings meanings;
  pf::Part part = plan.programs()->Get(program)->part();
  bool isWhole = part == pf::Part::Whole || part == pf::Part::Last;
  auto add = [&](std::string name, const Window &window) {
    Content content = machine.memory.read(window);
    meanings[std::move(name)] =
        machine.describe(content, machine.getOperand(window, content));
  };
  for (uint32_t i = 0; i != windows.size(); ++i) {
    const pf::Buffer &buffer = *plan.buffers()->Get(i);
    const Window &window = windows[i];
    // After the forward alone, there need be no more than the loss.
    if (buffer.root() != i ||
        (roles == forward && buffer.role() != BufferRole::Loss) ||
        (pf::isOfProgram(buffer.role()) && buffer.owner() != program))
      continue;
    switch (buffer.role()) {
    case BufferRole::Loss:
      add("loss", window);
      break;
    case BufferRole::Output:
      add("output " + std::to_string(buffer.index()), window);
      break;
    case BufferRole::ModelBuffer: {
      if (!window.isEmpty() &&
          machine.values.getNumber(machine.memory.read(window)) !=
              machine.values.getNumber(getModelBuffer(buffer)))
        add("buffer " + std::string(nameOf(buffer.name())), window);
      break;
    }
    case BufferRole::Accumulator:
      // After the last micro-batch, nobody reads it.
      if (part != pf::Part::Last) {
        const Unit &unit = units[buffer.owner()];
        machine.describe(unit, nameOf(buffer.name()),
                         machine.readFlat(unit, window), /*skipsZeros=*/true,
                         meanings);
      }
      break;
    case BufferRole::Unsharded:
      if (part == pf::Part::First || part == pf::Part::Middle)
        machine.describe(units[buffer.owner()], pf::unshardedParameter,
                         machine.memory.read(window), /*skipsZeros=*/false,
                         meanings);
      break;
    case BufferRole::Gradient:
      // Of another micro-batch than the last, it is not what the step means.
      if (roles == gradients && isWhole)
        machine.describe(units[buffer.owner()], "gradient",
                         machine.readFlat(units[buffer.owner()], window),
                         /*skipsZeros=*/true, meanings);
      break;
    case BufferRole::Shard:
    case BufferRole::OptimizerState:
      if (roles == all)
        machine.describe(units[buffer.owner()],
                         buffer.role() == BufferRole::Shard
                             ? "parameter"
                             : nameOf(buffer.name()),
                         machine.readFlat(units[buffer.owner()], window),
                         /*skipsZeros=*/false, meanings);
      break;
    default:
      break;
    }
  }
  if (roles != forward)
    machine.describeEffects(meanings);
  return meanings;
}

/// That the plan is for the ranks that its meaning is of.
Proof PlanVerifier::checkMesh() const {
  std::vector<std::pair<std::string, uint64_t>> axes;
  std::string text;
  for (const pf::MeshAxis *axis : *plan.mesh()) {
    axes.emplace_back(nameOf(axis->name()), axis->size());
    text.append(text.empty() ? "" : ", ").append("\"");
    text.append(axes.back().first).append("\" = ");
    text.append(std::to_string(axis->size()));
  }
  if (means("mesh", getMeshNumber(axes)))
    return {};
  return {Proof::Refuted,
          "mesh: expected the one that the meaning of the plan is of, found [" +
              text + "]"};
}

/// That a step has as many micro-batches as its gradients are sums or means of.
Proof PlanVerifier::checkMicroBatches() const {
  uint64_t count = plan.micro_batches();
  if ((count == 1 && !hasMeaning("micro-batches")) ||
      means("micro-batches", getMicroBatchesNumber(count)))
    return {};
  return {Proof::Refuted, "micro-batches: expected as many in a step as the "
                          "meaning of the plan is of, found " +
                              std::to_string(count)};
}

/// That parameters are loaded and trained as those of the model.
Proof PlanVerifier::checkParameters() const {
  std::vector<ParameterFacts> facts;
  auto getShape = [&](uint32_t index) {
    const auto &values = *plan.shapes()->Get(index)->values();
    return std::vector<int64_t>(values.begin(), values.end());
  };
  for (const pf::Unit *unit : *plan.units())
    for (const pf::Parameter *parameter : *unit->parameters()) {
      ParameterFacts &own = facts.emplace_back();
      own.name = nameOf(parameter->name());
      if (parameter->aliases())
        for (uint32_t alias : *parameter->aliases())
          own.aliases.emplace_back(nameOf(alias));
      own.sizes = getShape(parameter->sizes());
      own.strides = getShape(parameter->strides());
      own.isTrainable = parameter->trainable();
    }
  if (means("parameters", getParametersNumber(std::move(facts))))
    return {};
  return {Proof::Refuted,
          "units: expected the parameters of the model, found other names, "
          "sizes, strides or trainable ones"};
}

bool PlanVerifier::hasMeaning(std::string_view what) const {
  return std::any_of(
      plan.meaning()->begin(), plan.meaning()->end(),
      [&](const pf::Meaning *own) { return nameOf(own->what()) == what; });
}

bool PlanVerifier::means(std::string_view what, uint64_t number) const {
  for (const pf::Meaning *meaning : *plan.meaning())
    if (nameOf(meaning->what()) == what)
      return meaning->value() == number;
  return false;
}

/// What is found is another value than the one at `index` in the plan.
Proof PlanVerifier::tellDifference(const std::string &end,
                                   const std::string &name,
                                   const Meaning &found, size_t index) const {
  const auto *texts = plan.programs()->Get(program)->meaning_texts();
  const pf::MeaningText *text = texts && index < texts->size()
                                    ? texts->Get(static_cast<uint32_t>(index))
                                    : nullptr;
  auto get = [](const flatbuffers::String *words) {
    return words ? words->str() : std::string();
  };
  std::string owner;
  for (const Unit &unit : units)
    for (const Unit::Parameter &parameter : unit.parameters)
      if (std::string_view(name).substr(
              std::min(name.find(' ') + 1, name.size())) == parameter.name)
        owner = std::string(" (unit ").append(unit.name).append(")");
  std::string expected = text ? get(text->words()) : "";
  std::string unknown = text ? get(text->unknown()) : "";
  std::string message = end + ": expected the " + name + " of the model" +
                        owner + (expected.empty() ? "" : ", " + expected) +
                        "; found " +
                        (found.words.empty() ? "another value" : found.words);
  if (!found.unknown.empty())
    return {Proof::CannotProve, message + "; " + found.unknown};
  if (!unknown.empty())
    return {Proof::CannotProve, message + "; in the model, " + unknown};
  return {Proof::Refuted, message};
}

Proof PlanVerifier::compare(Roles roles, const Meanings &found) {
  const pf::Program &own = *plan.programs()->Get(program);
  std::string end = roles == all       ? "the end of program "
                    : roles == forward ? "the end of the forward of program "
                                       : "the end of the backward of program ";
  end += nameOf(own.name());
  size_t count = 0;
  // The loss first: whatever is wrong in the forward shows there.
  for (bool isLoss : {true, false})
    for (uint32_t i = 0; i != own.meaning()->size(); ++i) {
      const pf::Meaning *meaning = own.meaning()->Get(i);
      std::string name(nameOf(meaning->what()));
      if ((name == "loss") != isLoss)
        continue;
      auto startsWith = [&](std::string_view prefix) {
        return name.compare(0, prefix.size(), prefix) == 0;
      };
      bool isGradient = startsWith("gradient ");
      if (roles == forward && !isLoss)
        continue;
      // Updates change the state of a scaler, the model its buffers.
      std::string_view buffer = "buffer ";
      bool isBuffer =
          startsWith(buffer) &&
          !pf::isGradScalerState(std::string_view(name).substr(buffer.size()));
      // What the next micro-batch goes on from is there without an update.
      bool isHandedOn = startsWith(pf::unshardedParameter) ||
                        startsWith(pf::unshardedGradient) ||
                        startsWith(pf::partialGradient) ||
                        startsWith(pf::shardedGradient);
      bool isOfAll = isLoss || startsWith("output ") || isBuffer ||
                     isHandedOn || name == "sequence of effects";
      if (!isOfAll && isGradient != (roles == gradients))
        continue;
      ++count;
      auto actual = found.find(name);
      if (actual == found.end())
        return {Proof::Refuted,
                end + ": expected the " + name + " of the model, found none"};
      if (actual->second.number != meaning->value())
        return tellDifference(end, name, actual->second, i);
    }
  if (count == found.size())
    return {};
  for (const auto &[name, value] : found) {
    bool isKnown = false;
    for (const pf::Meaning *meaning : *own.meaning())
      isKnown |= nameOf(meaning->what()) == name;
    if (!isKnown)
      return {Proof::Refuted,
              end + ": expected only what the model computes, found a " + name};
  }
  return {Proof::Refuted, end + ": expected each value once, found one twice"};
}

//===----------------------------------------------------------------------===//
// Problems
//===----------------------------------------------------------------------===//

std::string PlanVerifier::nameOfBuffer(uint32_t index) const {
  return at("buffers", index, nameOf(plan.buffers()->Get(index)->name()));
}

std::string PlanVerifier::nameOfCommand(int32_t number) const {
  if (number < 0)
    return "the end";
  const pf::Program &commands = *plan.programs()->Get(program);
  const pf::Command &command =
      *commands.commands()->Get(static_cast<uint32_t>(number));
  std::string name =
      at("commands", static_cast<uint32_t>(number), nameOf(command.node()));
  const pf::Launch *launch = command.step_as_Launch();
  name += launch ? ", " + std::string(nameOf(
                              plan.operators()->Get(launch->op())->name()))
                 : std::string(", ") + pf::EnumNameStep(command.step_type());
  return name + " on " + pf::EnumNameStream(command.stream());
}

std::string PlanVerifier::explain(const Problem &problem) const {
  std::string bytes = "bytes [" + std::to_string(problem.begin) + ", " +
                      std::to_string(problem.end) + ")";
  std::string buffer = nameOfBuffer(problem.buffer);
  std::string where =
      at("programs", program, nameOf(plan.programs()->Get(program)->name())) +
      "." + nameOfCommand(position);
  std::string other = nameOfCommand(problem.other.position);
  switch (problem.kind) {
  case Problem::Unwritten:
    return where + ": expected " + buffer +
           " to be written before it is read, found " + bytes +
           " that nothing has written";
  case Problem::Stale: {
    std::string writer = problem.other.position < 0
                             ? "that were there before"
                             : "that " + other + " wrote";
    std::string last =
        problem.lastWriter < 0
            ? ""
            : " as " + nameOfCommand(problem.lastWriter) + " left it";
    return where + ": expected to read " + buffer + last + ", found " + bytes +
           " " + writer + " for " + nameOfBuffer(problem.otherRoot);
  }
  case Problem::RaceToRead:
    return where + ": expected to read " + buffer + " after " + other +
           ", which writes " + bytes + ", found no order between them";
  case Problem::RaceToWrite:
    return where + ": expected to write " + buffer + " after " + other +
           ", which touches " + bytes + ", found no order between them";
  case Problem::Shared:
    return where + ": expected " + buffer + " to have been used for the last " +
           "time before " + other + " writes " +
           nameOfBuffer(problem.otherRoot) +
           " in its place, found another use; they share " + bytes;
  case Problem::Overlap:
    return where + ": expected a result apart from its operands, found " +
           bytes + " of both " + buffer + " and " +
           nameOfBuffer(problem.otherRoot);
  }
  return where;
}

Proof PlanVerifier::check() {
  if (message.empty() && machine.memory.getProblem())
    message = explain(*machine.memory.getProblem());
  return {message.empty() ? Proof::Proved : Proof::Refuted, message};
}

/// What the update does in a run of its own, after that of forward and
/// backward.
Proof PlanVerifier::verifyUpdate(const pf::Program &own) {
  machine.memory.beginProgram([](uint32_t) { return true; });
  Run run{std::move(machine.memory), machine.effects};
  run.events.resize(own.events());
  runProgram(own, bit(Role::Update), std::move(run));
  if (Proof proof = check(); !proof)
    return proof;
  Meanings found = describe(all);
  if (Proof proof = check(); !proof || !own.meaning())
    return proof;
  return compare(all, found);
}

/// What the current program does by itself, in parts and as a whole, to what
/// was there before it.
Proof PlanVerifier::verifyProgram() {
  const pf::Program &own = *plan.programs()->Get(program);
  const Memory before = machine.memory;
  Roles present = 0;
  for (const pf::Command *command : *own.commands())
    present |= bit(command->role());
  Run run = begin(own);
  for (Roles roles : {forward, gradients, all}) {
    // A forward is all of a program that has nothing else.
    if (roles != all && !(present & ~forward))
      continue;
    run = runProgram(own, roles, std::move(run));
    if (Proof proof = check(); !proof)
      return proof;
    Meanings found = describe(roles);
    if (Proof proof = check(); !proof)
      return proof;
    if (own.meaning())
      if (Proof proof = compare(roles, found); !proof)
        return proof;
    if (roles == gradients && (present & bit(Role::Update)))
      if (Proof proof = verifyUpdate(own); !proof)
        return proof;
  }
  machine.memory = before;
  return {};
}

Proof PlanVerifier::run() {
  readTables();
  readUnits();
  setInitialContent();
  bool isRun = false;
  std::string unknown; // what has no meaning
  for (bool isInit : {true, false})
    for (program = 0; program != plan.programs()->size(); ++program) {
      const pf::Program &own = *plan.programs()->Get(program);
      if (own.is_init() != isInit)
        continue;
      if (isInit)
        runProgram(own, bit(Role::Init), begin(own));
      if (Proof proof = isInit ? check() : verifyProgram(); !proof)
        return proof;
      isRun |= !isInit;
      if (!isInit && !own.meaning() && unknown.empty())
        unknown = at("programs", program, nameOf(own.name()));
    }
  if (!plan.meaning())
    unknown = "meaning";
  if (!isRun)
    unknown = "programs";
  if (!unknown.empty())
    return {Proof::CannotProve,
            unknown + ": expected what the model computes, without which "
                      "nothing can be proved; found none"};
  Proof proof = checkMesh();
  if (proof)
    proof = checkMicroBatches();
  return proof ? checkParameters() : proof;
}

Proof verifyPlan(const pf::Plan &plan) {
  std::vector<uint64_t> sizes;
  for (const pf::MeshAxis *axis : *plan.mesh())
    sizes.push_back(axis->size());
  std::optional<Ranks> ranks = Ranks::get(sizes);
  if (!ranks)
    return {Proof::CannotProve, "mesh: expected at most four million ranks"};
  Proof proof = PlanVerifier(plan, *ranks, /*isRecording=*/false).run();
  // What is wrong is told in words, which take time.
  return proof ? proof : PlanVerifier(plan, *ranks, true).run();
}

} // namespace fsdp::symbolic
