//===- Program.cpp - One rank's prepared program --------------------------===//
#include "Program.h"

#include "../Comm/Mesh.h"
#include "../Device/Reduce.h"
#include "../Support/Caught.h"
#include "../Support/DTypes.h"
#include "../Support/Tsan.h"
#include "fsdp/PlanFile/Steps.h"

#include <algorithm>
#include <array>
#include <map>

using namespace fsdp;
using planfile::Stream;

Program::Program(Rank &rank, unsigned index)
    : rank(rank), program(*rank.plan->programs()->Get(index)), number(index) {
  rank.device->programEvents(number, program.events());
  commands.reserve(program.commands()->size());
  for (std::uint32_t i = 0; i != program.commands()->size(); ++i) {
    try {
      prepare(*program.commands()->Get(i), i);
      if (i != 0 && program.commands()->Get(i)->group() != none &&
          program.commands()->Get(i)->group() ==
              program.commands()->Get(i - 1)->group())
        joinGroup();
    } catch (...) {
      throw Error("program " +
                  std::string(stringOf(*rank.plan, program.name())) +
                  ", command " + std::to_string(i) + ": " + describeCaught());
    }
  }
  if (rank.chaosSeed)
    insertPoison();
  insertNorm();
  insertDrains();
  makeLanes();
}

/// Makes one command of the last two.
void Program::joinGroup() {
  Command last = commands.back();
  commands.pop_back();
  Command &first = commands.back();
  if (last.kind != Kind::Collective || first.kind != Kind::Collective ||
      last.communicator != first.communicator)
    throw Error("a group of commands that are not collectives of one "
                "communicator");
  ++first.count;
  std::vector<Access> touched = std::move(accesses.back());
  accesses.pop_back();
  accesses.back().insert(accesses.back().end(), touched.begin(), touched.end());
}

/// All members' runs begin and end together.
bool Program::isJoined(const Command &collective) const {
  return std::ranges::all_of(
      groupOf(*rank.plan, collective.communicator, rank.rank).members,
      [&](unsigned member) { return rank.here.contains(member); });
}

void Program::touch(std::uint32_t buffer, bool isWrite) {
  accesses.back().push_back(
      {rank.memory->range(buffer), isWrite, rank.memory->root(buffer)});
}

std::size_t Program::probeLaunches() {
  const std::byte *begin = rank.memory->transient();
  const std::byte *end = begin + rank.memory->transientBytes();
  std::size_t scratch = 0;
  for (Launch &launch : launches) {
    std::vector<std::span<std::byte>> written;
    if (!launch.isHooked())
      for (std::uint32_t buffer : launch.accesses().writes) {
        Range range = rank.memory->range(buffer);
        written.emplace_back(rank.memory->arena(range.space) + range.begin,
                             range.end - range.begin);
      }
    if (std::ranges::any_of(written, [&](std::span<std::byte> each) {
          return each.data() < begin || each.data() + each.size() > end;
        }))
      continue;
    scratch = std::max(scratch, launch.probe(*rank.device));
    for (std::uint32_t buffer : launch.accesses().writes)
      rank.memory->checkUnchanged(buffer); // or the next call goes astray
    for (std::span<std::byte> each : written)
      rank.device->fill(Stream::Compute, each.data(), 0, each.size());
  }
  for (Lane &lane : lanes)
    for (Command &command : lane.commands)
      if (command.kind == Kind::Launch &&
          launches[command.index].followsScript())
        command.kind = Kind::ScriptedLaunch;
  return scratch;
}

void Program::placeScratch(std::byte *scratch) {
  for (Launch &launch : launches)
    if (launch.stream == Stream::Compute)
      launch.placeScratch(scratch);
}

void Program::prepare(const planfile::Command &command, std::uint32_t source) {
  using planfile::Step;
  const planfile::Plan &plan = *rank.plan;
  Memory &memory = *rank.memory;
  Command prepared{
      Kind::Launch, roleBit(command.role()), command.stream(), 0, none, source};
  accesses.emplace_back();
  if (command.step_type() != Step::Launch) // whose operator says what it writes
    forEachBuffer(plan, command, [&](std::uint32_t buffer, bool isWritten) {
      touch(buffer, isWritten);
    });
  switch (command.step_type()) {
  case Step::Launch: {
    launches.emplace_back(plan, *command.step_as_Launch(), rank.trusted, memory,
                          *rank.device, rank.generator);
    Launch &launch = launches.back();
    launch.stream = command.stream();
    prepared.kind = launch.isHooked() ? Kind::ScriptedLaunch : Kind::Launch;
    prepared.index = static_cast<std::uint32_t>(launches.size() - 1);
    for (std::uint32_t buffer : launch.accesses().reads)
      touch(buffer, false);
    for (std::uint32_t buffer : launch.accesses().writes)
      touch(buffer, true);
    break;
  }
  case Step::AllGather: {
    const auto &step = *command.step_as_AllGather();
    prepared.communicator = step.communicator();
    prepareCollective(prepared, {.kind = Collective::Kind::AllGather},
                      step.source(), step.target(), step.unit());
    break;
  }
  case Step::ReduceScatter: {
    const auto &step = *command.step_as_ReduceScatter();
    prepared.communicator = step.communicator();
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
    prepared.communicator = step.communicator();
    prepareCollective(prepared,
                      {.kind = Collective::Kind::AllReduce,
                       .via = step.via(),
                       .pre = step.pre(),
                       .post = step.post(),
                       .reduce = step.kind()},
                      step.source(), step.target(), step.unit());
    break;
  }
  case Step::Update: {
    const auto &step = *command.step_as_Update();
    prepared.kind = Kind::Update;
    prepared.index = static_cast<std::uint32_t>(updates.size());
    updates.emplace_back(plan, step, rank.shards.at(step.unit()), memory,
                         rank.hyper);
    break;
  }
  case Step::Measure: {
    const auto &step = *command.step_as_Measure();
    prepared.kind = Kind::Measure;
    prepared.index = static_cast<std::uint32_t>(measures.size());
    measures.emplace_back(plan, step, rank.shards.at(step.unit()), memory);
    break;
  }
  case Step::Accumulate: {
    const auto &step = *command.step_as_Accumulate();
    prepared.kind = Kind::Accumulate;
    prepared.index = static_cast<std::uint32_t>(copies.size());
    copies.emplace_back(memory.tensor(step.target()),
                        memory.tensor(step.source()));
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
    break;
  }
  case Step::Copy:
    prepareCopy(prepared, *command.step_as_Copy());
    break;
  case Step::Piece:
    preparePiece(prepared, *command.step_as_Piece());
    break;
  case Step::Record:
    prepared.kind = Kind::Record;
    prepared.index = command.step_as_Record()->event();
    // Events order the streams in all runs: commands of one role may be
    // ordered by events of another.
    prepared.roles = allRoles;
    break;
  case Step::Wait:
    prepared.kind = Kind::Wait;
    prepared.index = command.step_as_Wait()->event();
    prepared.roles = allRoles;
    break;
  default:
    throw Error("a command of an unknown kind");
  }
  bool isComputed = prepared.kind == Kind::Update ||
                    prepared.kind == Kind::Measure ||
                    prepared.kind == Kind::Accumulate;
  prepared.isOnHost =
      isComputed &&
      std::ranges::any_of(accesses.back(), [](const Access &access) {
        return access.isWrite && access.range.space != planfile::Space::Device;
      });
  commands.push_back(prepared);
}

void Program::prepareCopy(Command &command, const planfile::Copy &copy) {
  Memory &memory = *rank.memory;
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

void Program::preparePiece(Command &command, const planfile::Piece &piece) {
  Memory &memory = *rank.memory;
  Group group = groupOf(*rank.plan, piece.communicator(), rank.rank);
  std::uint64_t whole = memory.elements(piece.source());
  std::uint64_t count = memory.elements(piece.target());
  if (whole != count * group.members.size() ||
      memory.type(piece.source()) != memory.type(piece.target()))
    throw Error("piece: " + std::to_string(count) + " of " +
                std::to_string(whole) + " elements among " +
                std::to_string(group.members.size()) + " ranks");
  if (!memory.isContiguous(piece.source()) ||
      !memory.isContiguous(piece.target()))
    throw Error("piece: a buffer is not contiguous");
  std::size_t bytes = count * itemSize(memory.type(piece.target()));
  command.kind = Kind::CopyBytes;
  command.index = static_cast<std::uint32_t>(blocks.size());
  blocks.push_back({memory.data(piece.target()),
                    memory.data(piece.source()) + group.index * bytes, bytes});
}

void Program::prepareCollective(Command &command, Collective collective,
                                std::uint32_t source, std::uint32_t target,
                                std::uint32_t unit) {
  Memory &memory = *rank.memory;
  bool isGather = collective.kind == Collective::Kind::AllGather;
  auto size = planfile::getGroupSize(*rank.plan, command.communicator);
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
      : collective.reduce == planfile::ReduceKind::First
          ? memory.type(source) != memory.type(target)
          : !isReducible(memory.type(source)) ||
                !isReducible(memory.type(target)) ||
                !isReducible(collective.via))
    throw Error(what + ": element types that do not go together");

  collective.sourceType = memory.type(source);
  collective.targetType = memory.type(target);
  collective.source = memory.data(source);
  collective.target = memory.data(target);
  collective.count =
      collective.kind == Collective::Kind::ReduceScatter ? to : from;
  // If runs are joined, what no earlier command of this one writes is the same
  // as at its start, on every rank.
  Range read = memory.range(source);
  collective.sourceStable = isJoined(command);
  for (std::size_t i = 0; i + 1 != accesses.size(); ++i)
    for (const Access &access : accesses[i])
      collective.sourceStable &=
          !(access.isWrite && access.range.overlaps(read));

  command.kind = Kind::Collective;
  std::vector<Collective> &list = rank.collectives[command.communicator];
  command.index = static_cast<std::uint32_t>(list.size());
  list.push_back(collective);
}

/// Puts each of the commands before the one of that number.
void Program::insert(Insertions insertions) {
  std::vector<Command> with;
  std::vector<std::vector<Access>> withAccesses;
  for (std::size_t i = 0; i != insertions.size(); ++i) {
    for (auto &[command, touched] : insertions[i]) {
      with.push_back(command);
      withAccesses.push_back(std::move(touched));
    }
    if (i == commands.size())
      break;
    with.push_back(commands[i]);
    withAccesses.push_back(std::move(accesses[i]));
  }
  commands = std::move(with);
  accesses = std::move(withAccesses);
}

void Program::insertDrains() {
  Insertions drains(commands.size() + 1);
  for (std::size_t i = 0; i != commands.size(); ++i) {
    const Command &exposed = commands[i];
    if (exposed.kind != Kind::Collective)
      continue;
    bool readsTarget =
        rank.collectives[exposed.communicator][exposed.index].kind ==
        Collective::Kind::AllReduce;
    auto insertDrain = [&](std::size_t before, Stream stream) {
      Command drain = exposed;
      drain.kind = Kind::Drain;
      drain.roles = allRoles;
      drain.stream = stream;
      drains[before].push_back({drain, {}});
    };
    // The first one on each stream: others of its stream come after it.
    std::array<bool, static_cast<std::size_t>(Stream::MAX) + 1> isDrained{};
    for (std::size_t j = i + 1; j != commands.size(); ++j) {
      Stream stream = commands[j].stream;
      bool &drained = isDrained[static_cast<std::size_t>(stream)];
      if (drained)
        continue;
      for (const Access &write : accesses[j])
        for (const Access &read : accesses[i])
          drained |= write.isWrite && (!read.isWrite || readsTarget) &&
                     write.range.overlaps(read.range);
      if (drained)
        insertDrain(j, stream);
    }
    // Before the next run, which may write anything.
    if (!isJoined(exposed))
      insertDrain(commands.size(), exposed.stream);
  }
  insert(std::move(drains));
}

/// Keeps the norm by which gradients are clipped, whose place other numbers
/// take: what `norm + eps` reads, of which the clip factor is made as
/// torch.nn.utils.clip_grad_norm_ makes it.
void Program::insertNorm() {
  const auto &planned = *program.commands();
  std::uint32_t wanted = none;
  std::size_t at = 0;
  for (; at != commands.size() && wanted == none; ++at)
    if (const auto *update = planned.Get(commands[at].source)->step_as_Update())
      wanted = update->clip_factor();
  // Back from there: copy, clamp_max, mul, reciprocal, add.
  bool isFound = false;
  while (!isFound && wanted != none && at != 0) {
    --at;
    Range range = rank.memory->range(wanted);
    if (std::ranges::none_of(accesses[at], [&](const Access &access) {
          return access.isWrite && access.range.overlaps(range);
        }))
      continue;
    const planfile::Command &writer = *planned.Get(commands[at].source);
    if (const planfile::Copy *copy = writer.step_as_Copy()) {
      wanted = copy->source();
      continue;
    }
    const planfile::Launch *launch = writer.step_as_Launch();
    if (!launch || launch->args()->size() == 0 || launch->args()->Get(0) < 0)
      return;
    wanted = static_cast<std::uint32_t>(launch->args()->Get(0));
    const auto *called = rank.plan->operators()->Get(launch->op());
    isFound = stringOf(*rank.plan, called->name()).ends_with("add.out");
  }
  if (!isFound || rank.memory->type(wanted) != planfile::DType::F64)
    return;
  if (!rank.gradientNorm)
    rank.gradientNorm =
        rank.device->allocate(planfile::Space::Device, sizeof(double));
  Command keep = commands[at];
  keep.kind = Kind::KeepNorm;
  keep.index = static_cast<std::uint32_t>(blocks.size());
  blocks.push_back(
      {rank.gradientNorm, rank.memory->data(wanted), sizeof(double)});
  Insertions insertions(commands.size() + 1);
  insertions[at].push_back(
      {keep, {{rank.memory->range(wanted), false, rank.memory->root(wanted)}}});
  insert(std::move(insertions));
}

void Program::poison(Insertions &insertions, std::size_t at,
                     const Command &like, std::uint32_t root, Range range) {
  if (range.begin >= range.end)
    return;
  Command command = like;
  command.kind = Kind::Poison;
  command.index = static_cast<std::uint32_t>(blocks.size());
  blocks.push_back({rank.memory->arena(range.space) + range.begin, nullptr,
                    range.end - range.begin});
  insertions[at].push_back({command, {{range, true, root}}});
}

/// No old values where a gather writes, none after the last use of what lives
/// inside a run: whoever reads too early or too late reads NaN. What no command
/// touches of a buffer may be another's.
void Program::insertPoison() {
  Insertions insertions(commands.size() + 1);
  std::vector<std::vector<std::size_t>> uses(rank.plan->buffers()->size());
  for (std::size_t i = 0; i != commands.size(); ++i) {
    for (const Access &access : accesses[i])
      if (uses[access.root].empty() || uses[access.root].back() != i)
        uses[access.root].push_back(i);
    const Command &command = commands[i];
    if (command.kind != Kind::Collective ||
        rank.collectives[command.communicator][command.index].kind !=
            Collective::Kind::AllGather)
      continue;
    for (std::uint32_t member = 0; member != command.count; ++member) {
      const Access &source = accesses[i][2 * member];
      const Access &target = accesses[i][2 * member + 1];
      Range before = target.range, after = target.range;
      if (source.range.overlaps(target.range)) {
        before.end = source.range.begin;
        after.begin = source.range.end;
        poison(insertions, i, command, target.root, after);
      }
      poison(insertions, i, command, target.root, before);
    }
  }
  for (std::uint32_t root = 0; root != uses.size(); ++root) {
    if (uses[root].empty() || rank.plan->buffers()->Get(root)->role() !=
                                  planfile::BufferRole::Transient)
      continue;
    // Uses on another stream must have ended: known of those before the first
    // use on the last one's stream, if one of both writes.
    std::size_t last = uses[root].back();
    Stream stream = commands[last].stream;
    auto writes = [&](std::size_t i) {
      return std::ranges::any_of(accesses[i], [&](const Access &access) {
        return access.isWrite && access.root == root;
      });
    };
    auto first = std::ranges::find_if(uses[root], [&](std::size_t i) {
      return commands[i].stream == stream;
    });
    bool isKnown = std::ranges::all_of(uses[root], [&](std::size_t i) {
      return commands[i].stream == stream ||
             (i < *first && (writes(i) || writes(*first)));
    });
    if (!isKnown)
      continue;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> touched;
    for (std::size_t i : uses[root])
      for (const Access &access : accesses[i])
        if (access.root == root)
          touched[{access.range.begin, access.range.end}] = i;
    for (auto [bytes, touch] : touched) {
      Range range{rank.memory->range(root).space, bytes.first, bytes.second};
      auto takes = [&](const Access &access) {
        return access.isWrite && access.root != root &&
               access.range.overlaps(range);
      };
      // The last use may already write what takes the place.
      bool isTaken = false;
      for (std::size_t i = touch; i <= last && !isTaken; ++i)
        isTaken = std::ranges::any_of(accesses[i], takes);
      if (!isTaken)
        poison(insertions, last + 1, commands[last], root, range);
    }
  }
  insert(std::move(insertions));
}

/// By `SessionOptions`; what orders streams stays.
bool Program::isLeftOut(const Command &command) const {
  if (program.is_init() || command.kind == Kind::Record ||
      command.kind == Kind::Wait)
    return false;
  bool isComputed = command.stream == Stream::Compute && !command.isSent();
  return isComputed ? !rank.computes : !rank.communicates;
}

void Program::makeLanes() {
  lanes.resize(rank.team ? 2 : 1);
  if (rank.team)
    events = std::vector<Counter>(program.events());
  for (std::uint32_t i = 0; i != commands.size(); ++i) {
    Command &command = commands[i];
    command.place = i;
    if (isLeftOut(command))
      continue;
    int lane = rank.team && command.stream != Stream::Compute;
    lanes[static_cast<unsigned>(lane)].commands.push_back(command);
  }
  for (unsigned l = 0; l != lanes.size(); ++l)
    lanes[l].chaos.seed(static_cast<unsigned>(
        rank.chaosSeed * 7919 + rank.rank * lanes.size() + l + 1));
  commands.clear();
#ifndef FSDP_TSAN
  accesses.clear();
#endif
}

std::string Program::describe(const Command &command) const {
  const planfile::Plan &plan = *rank.plan;
  const planfile::Command &source = *program.commands()->Get(command.source);
  std::string text =
      "program " + std::string(stringOf(plan, program.name())) + ", ";
  std::uint32_t unit = getUnit(source);
  if (const auto *launch = source.step_as_Launch())
    text += stringOf(plan, plan.operators()->Get(launch->op())->name());
  else
    text += EnumNameStep(source.step_type());
  if (command.count != 1)
    text += " and " + std::to_string(command.count - 1) + " more in one call";
  if (source.node() != none)
    text += ", node " + std::string(stringOf(plan, source.node()));
  if (source.scope() != none)
    text += ", scope " + std::string(stringOf(plan, source.scope()));
  if (unit != none)
    text += ", unit " +
            std::string(stringOf(plan, plan.units()->Get(unit)->name()));
  return text;
}
