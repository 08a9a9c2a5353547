//===- Program.cpp - One rank's prepared program --------------------------===//
#include "Program.h"

#include "Comm/Reduce.h"
#include "DTypes.h"
#include "Mesh.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <thread>

using namespace fsdp;
using planfile::Stream;

#if defined(__SANITIZE_THREAD__)
#define FSDP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FSDP_TSAN 1
#endif
#endif
#ifdef FSDP_TSAN
extern "C" void __tsan_read_range(void *address, unsigned long size);
extern "C" void __tsan_write_range(void *address, unsigned long size);
#endif

static constexpr RoleSet allRoles = 0xff;

static double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Program::Program(Rank &rank, unsigned index)
    : rank(rank), program(*rank.plan->programs()->Get(index)), number(index),
      chaos(static_cast<unsigned>(rank.chaosSeed * 7919 + rank.rank + 1)) {
  rank.device->programEvents(number, program.events());
  commands.reserve(program.commands()->size());
  for (std::uint32_t i = 0; i != program.commands()->size(); ++i) {
    try {
      prepare(*program.commands()->Get(i), i);
    } catch (const std::exception &error) {
      throw Error("program " +
                  std::string(stringOf(*rank.plan, program.name())) +
                  ", command " + std::to_string(i) + ": " + error.what());
    }
  }
  insertDrains();
}

void Program::touch(std::uint32_t buffer, bool isWrite) {
  accesses.back().push_back({rank.memory->range(buffer), isWrite});
}

void Program::prepare(const planfile::Command &command, std::uint32_t source) {
  using planfile::Step;
  const planfile::Plan &plan = *rank.plan;
  Memory &memory = *rank.memory;
  Command prepared{
      Kind::Launch, roleBit(command.role()), command.stream(), 0, none, source};
  accesses.emplace_back();
  switch (command.step_type()) {
  case Step::Launch: {
    launches.emplace_back(plan, *command.step_as_Launch(), rank.trusted, memory,
                          *rank.device);
    const Launch &launch = launches.back();
    prepared.kind = launch.isHooked() ? Kind::HookedLaunch : Kind::Launch;
    prepared.index = static_cast<std::uint32_t>(launches.size() - 1);
    for (std::uint32_t buffer : launch.accesses().reads)
      touch(buffer, false);
    for (std::uint32_t buffer : launch.accesses().writes)
      touch(buffer, true);
    break;
  }
  case Step::AllGather: {
    const auto &step = *command.step_as_AllGather();
    prepared.group = step.communicator();
    prepareCollective(prepared, {.kind = Collective::Kind::AllGather},
                      step.source(), step.target(), step.unit());
    break;
  }
  case Step::ReduceScatter: {
    const auto &step = *command.step_as_ReduceScatter();
    prepared.group = step.communicator();
    prepareCollective(prepared,
                      {.kind = Collective::Kind::ReduceScatter,
                       .via = step.via(),
                       .pre = step.pre(),
                       .post = step.post()},
                      step.source(), step.target(), step.unit());
    break;
  }
  case Step::AllReduce: {
    const auto &step = *command.step_as_AllReduce();
    prepared.group = step.communicator();
    prepareCollective(prepared,
                      {.kind = Collective::Kind::AllReduce,
                       .via = step.via(),
                       .pre = step.pre(),
                       .post = step.post()},
                      step.source(), step.target(), step.unit());
    break;
  }
  case Step::AdamW: {
    const auto &step = *command.step_as_AdamW();
    prepared.kind = Kind::AdamW;
    prepared.index = static_cast<std::uint32_t>(adamws.size());
    adamws.emplace_back(plan, step, rank.shards.at(step.unit()), memory,
                        rank.step);
    touch(step.gradient(), false);
    for (std::uint32_t buffer :
         {step.parameter(), step.exp_avg(), step.exp_avg_sq()})
      touch(buffer, true);
    break;
  }
  case Step::SGD: {
    const auto &step = *command.step_as_SGD();
    prepared.kind = Kind::SGD;
    prepared.index = static_cast<std::uint32_t>(sgds.size());
    sgds.emplace_back(plan, step, rank.shards.at(step.unit()), memory);
    touch(step.gradient(), false);
    touch(step.parameter(), true);
    if (step.momentum() != none)
      touch(step.momentum(), true);
    break;
  }
  case Step::Zero: {
    std::uint32_t target = command.step_as_Zero()->target();
    if (!memory.tensor(target).is_non_overlapping_and_dense())
      throw Error("zero: buffer " + std::to_string(target) + " has gaps");
    prepared.kind = Kind::Zero;
    prepared.index = static_cast<std::uint32_t>(blocks.size());
    blocks.push_back({memory.data(target), nullptr,
                      memory.elements(target) * itemSize(memory.type(target))});
    touch(target, true);
    break;
  }
  case Step::Copy:
    prepareCopy(prepared, *command.step_as_Copy());
    break;
  case Step::Record:
    prepared.kind = Kind::Record;
    prepared.index = command.step_as_Record()->event();
    break;
  case Step::Wait:
    prepared.kind = Kind::Wait;
    prepared.index = command.step_as_Wait()->event();
    break;
  default:
    throw Error("a command of an unknown kind");
  }
  commands.push_back(prepared);
}

void Program::prepareCopy(Command &command, const planfile::Copy &copy) {
  Memory &memory = *rank.memory;
  touch(copy.source(), false);
  touch(copy.target(), true);
  if (memory.elements(copy.source()) != memory.elements(copy.target()))
    throw Error("copy: the buffers have different numbers of elements");
  at::Tensor source = memory.tensor(copy.source());
  at::Tensor target = memory.tensor(copy.target());
  bool sameOrder = (source.is_contiguous() && target.is_contiguous()) ||
                   (source.sizes() == target.sizes() &&
                    source.strides() == target.strides() &&
                    source.is_non_overlapping_and_dense());
  if (sameOrder && source.scalar_type() == target.scalar_type()) {
    command.kind = Kind::CopyBytes;
    command.index = static_cast<std::uint32_t>(blocks.size());
    blocks.push_back({memory.data(copy.target()), memory.data(copy.source()),
                      target.nbytes()});
    return;
  }
  if (source.sizes() != target.sizes()) {
    if (source.is_contiguous())
      source = source.view(target.sizes());
    else if (target.is_contiguous())
      target = target.view(source.sizes());
    else
      throw Error("copy: neither of two buffers of different sizes is "
                  "contiguous");
  }
  command.kind = Kind::Copy;
  command.index = static_cast<std::uint32_t>(copies.size());
  copies.emplace_back(std::move(target), std::move(source));
}

void Program::prepareCollective(Command &command, Collective collective,
                                std::uint32_t source, std::uint32_t target,
                                std::uint32_t unit) {
  Memory &memory = *rank.memory;
  bool isGather = collective.kind == Collective::Kind::AllGather;
  auto size = groupOf(*rank.plan, command.group, rank.rank).members.size();
  std::uint64_t from = memory.elements(source), to = memory.elements(target);
  bool fits = collective.kind == Collective::Kind::AllReduce ? from == to
              : isGather ? to == from * size
                         : from == to * size;
  std::string what = "collective";
  if (unit != none)
    what += " of unit " +
            std::string(
                stringOf(*rank.plan, rank.plan->units()->Get(unit)->name()));
  if (!fits)
    throw Error(what + ": " + std::to_string(from) + " elements to " +
                std::to_string(to) + " over " + std::to_string(size) +
                " ranks");
  if (!memory.isContiguous(source) || !memory.isContiguous(target))
    throw Error(what + ": a buffer is not contiguous");
  if (isGather ? memory.type(source) != memory.type(target)
               : !isReducible(memory.type(source)) ||
                     !isReducible(memory.type(target)) ||
                     !isReducible(collective.via))
    throw Error(what + ": element types that do not go together");
  touch(source, false);
  touch(target, true);

  collective.stream = command.stream;
  collective.sourceType = memory.type(source);
  collective.targetType = memory.type(target);
  collective.source = memory.data(source);
  collective.target = memory.data(target);
  collective.count =
      collective.kind == Collective::Kind::ReduceScatter ? to : from;
  // Runs are joined: what no earlier command of this one writes is the same
  // as at its start, on every rank.
  Range read = memory.range(source);
  collective.sourceStable = true;
  for (std::size_t i = 0; i + 1 != accesses.size(); ++i)
    for (const Access &access : accesses[i])
      collective.sourceStable &=
          !(access.isWrite && access.range.overlaps(read));

  command.kind = Kind::Collective;
  std::vector<Collective> &list = rank.collectives[command.group];
  command.index = static_cast<std::uint32_t>(list.size());
  list.push_back(collective);
}

void Program::insertDrains() {
  std::vector<std::vector<Command>> drains(commands.size());
  for (std::size_t i = 0; i != commands.size(); ++i) {
    const Command &exposed = commands[i];
    if (exposed.kind != Kind::Collective)
      continue;
    bool readsTarget = rank.collectives[exposed.group][exposed.index].kind ==
                       Collective::Kind::AllReduce;
    for (std::size_t j = i + 1; j != commands.size(); ++j) {
      bool overwrites = false;
      for (const Access &write : accesses[j])
        for (const Access &read : accesses[i])
          overwrites |= write.isWrite && (!read.isWrite || readsTarget) &&
                        write.range.overlaps(read.range);
      if (!overwrites)
        continue;
      Command drain = exposed;
      drain.kind = Kind::Drain;
      drain.roles = allRoles;
      drain.stream = commands[j].stream;
      drains[j].push_back(drain);
      break;
    }
  }
  std::vector<Command> with;
  std::vector<std::vector<Access>> withAccesses;
  for (std::size_t i = 0; i != commands.size(); ++i) {
    for (const Command &drain : drains[i]) {
      with.push_back(drain);
      withAccesses.emplace_back();
    }
    with.push_back(commands[i]);
    withAccesses.push_back(std::move(accesses[i]));
  }
  commands = std::move(with);
  accesses = std::move(withAccesses);
#ifndef FSDP_TSAN
  accesses.clear();
#endif
}

void Program::run(RoleSet roles) {
  std::size_t position = 0;
  selected = Stream::Compute; // as whoever enters a device finds it
  try {
    loop(roles, position);
    rank.device->synchronize();
    if (!isChecked)
      rank.memory->checkUnchanged();
    isChecked = true;
  } catch (const std::exception &error) {
    rank.device->follow(nullptr);
    const auto *torch = dynamic_cast<const c10::Error *>(&error);
    throw Error(
        "rank " + std::to_string(rank.rank) + ", step " +
            std::to_string(rank.updates + 1) + ", " +
            describe(commands[std::min(position, commands.size() - 1)]) + ": " +
            (torch ? torch->what_without_backtrace() : error.what()),
        Failure::RankFailed);
  }
}

void Program::loop(RoleSet roles, std::size_t &position) {
  Statistics &statistics = rank.statistics;
  double seconds[8] = {};
  RoleSet timed = 0;
  double since = now();
  selected = Stream::Compute;
  rank.device->select(selected);
  auto account = [&](RoleSet next) {
    double time = now();
    seconds[std::countr_zero(timed) & 7] += time - since;
    since = time;
    timed = next;
  };
  for (; position != commands.size(); ++position) {
    const Command &command = commands[position];
    if (!(command.roles & roles))
      continue;
    if (command.roles != timed && command.roles != allRoles) {
      if (timed)
        account(command.roles);
      timed = command.roles;
    }
    if (rank.stop->load(std::memory_order_relaxed))
      throw Error("stopped because another rank failed", Failure::RankFailed);
    if (rank.chaosSeed)
      disturb(command);
#ifdef FSDP_TSAN
    // ATen is not instrumented: say what it touches.
    for (const Access &access : accesses[position]) {
      std::byte *base = rank.memory->arena(access.range.space);
      (access.isWrite ? __tsan_write_range : __tsan_read_range)(
          base + access.range.begin, access.range.end - access.range.begin);
    }
#endif
    execute(command);
  }
  if (timed)
    account(0);
  using planfile::Role;
  statistics.forward = seconds[static_cast<unsigned>(Role::Forward)];
  statistics.backward = seconds[static_cast<unsigned>(Role::Backward)];
  statistics.update = seconds[static_cast<unsigned>(Role::Update)];
}

inline void Program::execute(const Command &command) {
  Device &device = *rank.device;
  if (command.stream != selected) {
    selected = command.stream;
    device.select(selected);
  }
  switch (command.kind) {
  case Kind::Launch:
    launches[command.index].call(stack);
    break;
  case Kind::HookedLaunch:
    rank.statistics.hookMisses +=
        launches[command.index].callHooked(stack, device);
    break;
  case Kind::Collective: {
    double begin = now();
    rank.comms[command.group]->run(command.index);
    rank.statistics.collectives += now() - begin;
    break;
  }
  case Kind::Drain: {
    double begin = now();
    rank.comms[command.group]->drain(command.index);
    rank.statistics.collectives += now() - begin;
    break;
  }
  case Kind::AdamW:
    adamws[command.index].run(rank.hyper);
    break;
  case Kind::SGD:
    sgds[command.index].run(rank.hyper, rank.updates == 0);
    break;
  case Kind::Zero: {
    const Block &block = blocks[command.index];
    device.fill(command.stream, block.target, 0, block.bytes);
    break;
  }
  case Kind::CopyBytes: {
    const Block &block = blocks[command.index];
    device.copy(command.stream, block.target, block.source, block.bytes);
    break;
  }
  case Kind::Copy:
    copies[command.index].first.copy_(copies[command.index].second);
    break;
  case Kind::Record:
    device.record(command.stream, number, command.index);
    break;
  case Kind::Wait:
    device.wait(command.stream, number, command.index);
    break;
  }
}

/// Chaos: a delay now and then, and no old values where a gather writes.
void Program::disturb(const Command &command) {
  if (chaos() % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(chaos() % 300));
  if (command.kind != Kind::Collective)
    return;
  const Collective &c = rank.collectives[command.group][command.index];
  if (c.kind != Collective::Kind::AllGather)
    return;
  std::size_t piece = c.count * itemSize(c.sourceType);
  std::size_t bytes =
      piece * groupOf(*rank.plan, command.group, rank.rank).members.size();
  if (c.source >= c.target + bytes || c.source + piece <= c.target)
    rank.device->fill(command.stream, c.target, 0xff, bytes);
}

std::string Program::describe(const Command &command) const {
  const planfile::Plan &plan = *rank.plan;
  const planfile::Command &source = *program.commands()->Get(command.source);
  std::string text =
      "program " + std::string(stringOf(plan, program.name())) + ", ";
  std::uint32_t unit = none;
  if (const auto *launch = source.step_as_Launch())
    text += stringOf(plan, plan.operators()->Get(launch->op())->name());
  else
    text += EnumNameStep(source.step_type());
  if (const auto *gather = source.step_as_AllGather())
    unit = gather->unit();
  else if (const auto *scatter = source.step_as_ReduceScatter())
    unit = scatter->unit();
  else if (const auto *reduce = source.step_as_AllReduce())
    unit = reduce->unit();
  else if (const auto *adamw = source.step_as_AdamW())
    unit = adamw->unit();
  else if (const auto *sgd = source.step_as_SGD())
    unit = sgd->unit();
  if (source.node() != none)
    text += ", node " + std::string(stringOf(plan, source.node()));
  if (source.scope() != none)
    text += ", scope " + std::string(stringOf(plan, source.scope()));
  if (unit != none)
    text += ", unit " +
            std::string(stringOf(plan, plan.units()->Get(unit)->name()));
  return text;
}
