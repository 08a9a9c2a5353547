//===- TestPlan.cpp - Plans for tests -------------------------------------===//

#include "TestPlan.h"

#include <algorithm>
#include <optional>

using namespace fsdp;
using namespace fsdp::planfile;
using test::TestPlan;

namespace {

template <typename T, typename Make>
auto makeTables(flatbuffers::FlatBufferBuilder &fbb,
                const std::vector<T> &items, Make make) {
  std::vector<decltype(make(items[0]))> offsets;
  for (const T &item : items)
    offsets.push_back(make(item));
  return fbb.CreateVector(offsets);
}

TestPlan::Numbers rowMajor(const TestPlan::Numbers &sizes) {
  TestPlan::Numbers strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- != 0; stride *= sizes[i])
    strides[i] = stride;
  return strides;
}

} // namespace

std::vector<uint8_t> TestPlan::flatbuffer() {
  FBB fbb;
  std::vector<std::string> strings;
  auto text = [&](const std::string &value) {
    if (value.empty())
      return none;
    auto it = std::find(strings.begin(), strings.end(), value);
    if (it == strings.end())
      it = strings.insert(it, value);
    return static_cast<uint32_t>(it - strings.begin());
  };
  std::vector<Numbers> shapes;
  auto shape = [&](const Numbers &values) {
    shapes.push_back(values);
    return static_cast<uint32_t>(shapes.size() - 1);
  };
  auto strides = [&](const auto &item) {
    return shape(item.strides ? *item.strides : rowMajor(item.sizes));
  };

  auto meshOffset = makeTables(fbb, mesh, [&](const auto &axis) {
    return CreateMeshAxis(fbb, text(axis.first), axis.second);
  });
  auto operatorsOffset = makeTables(fbb, operators, [&](const auto &op) {
    return CreateOperator(fbb, text(op.first), text(op.second));
  });
  auto constantsOffset = makeTables(fbb, constants, [&](const auto &constant) {
    auto value = constant.make(fbb);
    return CreateConstant(fbb, constant.type, value);
  });
  uint32_t index = 0;
  auto buffersOffset = makeTables(fbb, buffers, [&](const Buffer &buffer) {
    flatbuffers::Offset<flatbuffers::Vector<uint8_t>> bytes;
    if (buffer.bytes)
      bytes = fbb.CreateVector(
          reinterpret_cast<const uint8_t *>(buffer.bytes->data()),
          buffer.bytes->size());
    uint32_t root = buffer.root.value_or(index);
    ++index;
    uint32_t sizes = shape(buffer.sizes), stridesShape = strides(buffer);
    uint32_t owner = buffer.owner;
    if (owner == none && isOfProgram(buffer.role))
      owner = firstProgram();
    return CreateBuffer(fbb, buffer.space, buffer.dtype, buffer.role,
                        buffer.offset, sizes, stridesShape, root, owner,
                        buffer.index, text(buffer.name), bytes);
  });
  auto unitsOffset = makeTables(fbb, units, [&](const Unit &unit) {
    auto parameters =
        makeTables(fbb, unit.parameters, [&](const Parameter &parameter) {
          std::vector<uint32_t> aliases;
          for (const std::string &alias : parameter.aliases)
            aliases.push_back(text(alias));
          return CreateParameter(fbb, text(parameter.name),
                                 fbb.CreateVector(aliases),
                                 shape(parameter.sizes), strides(parameter),
                                 parameter.offset, parameter.trainable);
        });
    // Sharded over the innermost axes, replicated over the others.
    std::vector<uint32_t> axes[2];
    uint32_t sharded = 1;
    for (uint32_t axis = static_cast<uint32_t>(mesh.size()); axis-- > 0;) {
      std::vector<uint32_t> &own = axes[sharded < unit.shards ? 0 : 1];
      if (sharded < unit.shards)
        sharded *= mesh[axis].second;
      own.insert(own.begin(), axis);
    }
    return CreateUnit(fbb, text(unit.name), unit.dtype, unit.dtype, unit.numel,
                      unit.shards, parameters, unit.shard, unit.gradient,
                      fbb.CreateVector(axes[0]), fbb.CreateVector(axes[1]));
  });
  struct Communicator {
    uint32_t group;
    std::optional<Stream> stream;
  };
  std::vector<Communicator> communicators;
  for (uint32_t i = 0; i != groups.size(); ++i)
    communicators.push_back({i, {}});
  // Of no group: what nobody has.
  auto getCommunicator = [&](uint32_t group, Stream stream) {
    if (group >= groups.size())
      return group;
    for (uint32_t i = 0; i != communicators.size(); ++i)
      if (communicators[i].group == group &&
          communicators[i].stream.value_or(stream) == stream) {
        communicators[i].stream = stream;
        return i;
      }
    communicators.push_back({group, stream});
    return static_cast<uint32_t>(communicators.size() - 1);
  };
  for (const Program &program : programs)
    for (const Command &command : program.commands)
      if (command.line)
        getCommunicator(command.line->first, command.stream);
  uint32_t place = 0;
  auto communicatorsOffset =
      makeTables(fbb, communicators, [&](const Communicator &communicator) {
        const auto &[name, axes] = groups[communicator.group];
        Stream stream = communicator.stream.value_or(Stream::Gather);
        bool isFirst = place++ < groups.size();
        return CreateCommunicator(
            fbb, text(isFirst ? name : name + "_" + EnumNameStream(stream)),
            fbb.CreateVector(axes), stream);
      });
  std::vector<std::vector<std::string>> sequences(communicators.size());
  auto programsOffset = makeTables(fbb, programs, [&](const Program &program) {
    auto commands =
        makeTables(fbb, program.commands, [&](const Command &command) {
          uint32_t communicator = 0;
          if (command.line) {
            communicator = getCommunicator(command.line->first, command.stream);
            if (communicator < sequences.size())
              sequences[communicator].push_back(command.line->second);
          }
          auto step = command.make(fbb, static_cast<uint8_t>(communicator));
          return CreateCommand(fbb, command.stream, command.role, command.type,
                               step, text(command.node), none, command.group);
        });
    flatbuffers::Offset<Prediction> prediction;
    if (program.prediction) {
      auto [time, exposed, flops, peak] = *program.prediction;
      prediction = CreatePrediction(fbb, time, exposed, flops, peak);
    }
    return CreateProgram(fbb, text(program.name), commands, program.events,
                         program.isInit(), 0, 0, Part::Whole, prediction);
  });
  std::vector<std::string> digests;
  for (const auto &sequence : sequences)
    digests.push_back(digestCollectives(sequence));
  auto shapesOffset = makeTables(fbb, shapes, [&](const Numbers &values) {
    return CreateShape(fbb, fbb.CreateVector(values));
  });
  auto deviceOffset = fbb.CreateString(device);
  auto stringsOffset = fbb.CreateVectorOfStrings(strings);
  auto reuseOffset = fbb.CreateVectorOfStructs(reuse);
  auto digestOffset = fbb.CreateVectorOfStrings(digest.value_or(digests));
  FinishPlanBuffer(fbb, CreatePlan(fbb, version, 0, deviceOffset, 0, meshOffset,
                                   deviceBytes, persistentBytes, hostBytes,
                                   stringsOffset, shapesOffset, operatorsOffset,
                                   constantsOffset, buffersOffset, unitsOffset,
                                   communicatorsOffset, programsOffset,
                                   reuseOffset, digestOffset, tokenRows, 0, 0,
                                   0, /*micro_batches=*/1, pinnedBytes));
  return {fbb.GetBufferPointer(), fbb.GetBufferPointer() + fbb.GetSize()};
}

uint64_t TestPlan::Buffer::numBytes() const {
  uint64_t bytes = getItemSize(dtype);
  for (int64_t size : sizes)
    bytes *= static_cast<uint64_t>(size);
  return bytes;
}

static const char *const sum =
    "aten::sum.IntList_out(Tensor self, int[1]? dim, bool keepdim=False, *, "
    "ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)";

namespace {
/// Unit 0 as it is gathered: all of it, and its parameters.
struct Gathered {
  uint32_t full, w, b;
};
} // namespace

/// Adds the gather of unit 0, y = x w + b, and the loss sum(y), a mean over the
/// ranks.
static void addForward(TestPlan &plan, Gathered unit, uint32_t x, uint32_t y,
                       uint32_t loss) {
  int32_t one = plan.integer(1);
  plan.on(Stream::Gather, Role::Forward)
      .allGather(plan.units[0].shard, unit.full, 0);
  plan.record(0);
  plan.on(Stream::Compute, Role::Forward).wait(0);
  plan.launch(
      "aten::addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, "
      "Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
      {int32_t(unit.b), int32_t(x), int32_t(unit.w), one, one, int32_t(y)},
      "addmm");
  plan.launch(sum,
              {int32_t(y), plan.ints({0, 1}), plan.boolean(false),
               plan.nothing(), int32_t(loss)},
              "sum_1");
  plan.allReduce(loss, loss, none, 1, plan.units[0].shards);
}

TestPlan test::makeSmallPlan(uint32_t ranks) {
  TestPlan plan;
  plan.mesh = {{"shard", ranks}};
  plan.groups = {{"shard", {0}}};

  uint64_t used = 0;
  auto place = [&](TestPlan::Buffer buffer) {
    buffer.offset = used;
    used += (buffer.numBytes() + 63) / 64 * 64;
    return plan.add(std::move(buffer));
  };
  auto view = [&](uint32_t root, uint64_t offset, TestPlan::Numbers sizes,
                  std::optional<TestPlan::Numbers> strides = {}) {
    TestPlan::Buffer buffer;
    buffer.sizes = std::move(sizes);
    buffer.strides = std::move(strides);
    buffer.offset = plan.buffers[root].offset + offset;
    buffer.root = root;
    return plan.add(std::move(buffer));
  };
  auto owned = [](BufferRole role, TestPlan::Numbers sizes,
                  const char *name = "") {
    TestPlan::Buffer buffer;
    buffer.role = role;
    buffer.sizes = std::move(sizes);
    buffer.owner = 0;
    buffer.name = name;
    return buffer;
  };

  int64_t piece = ranks < 3 ? 32 / ranks : 16, numel = piece * ranks;
  uint32_t shard = place(owned(BufferRole::Shard, {piece}));
  uint32_t expAvg =
      place(owned(BufferRole::OptimizerState, {piece}, "exp_avg"));
  uint32_t expAvgSq =
      place(owned(BufferRole::OptimizerState, {piece}, "exp_avg_sq"));
  uint32_t ones = place({BufferRole::Result, {2, 4}});
  plan.persistentBytes = used;
  TestPlan::Buffer input{BufferRole::Input, {2, 4}};
  input.index = 0;
  uint32_t x = place(input);
  uint32_t full = place({BufferRole::Transient, {numel}});
  uint32_t y = place({BufferRole::Transient, {2, 4}});
  uint32_t loss = place({BufferRole::Loss, {}});
  uint32_t flat = place({BufferRole::Transient, {numel}});
  uint32_t gradient = place(owned(BufferRole::Gradient, {piece}));
  plan.deviceBytes = used;
  uint32_t w = view(full, 0, {4, 4}), b = view(full, 64, {4});
  uint32_t gw = view(flat, 0, {4, 4}), gb = view(flat, 64, {4});
  uint32_t xT = view(x, 0, {4, 2}, TestPlan::Numbers{1, 4});
  uint32_t hyper = plan.addHyper(0);

  TestPlan::Unit unit;
  unit.name = "u";
  unit.numel = static_cast<uint64_t>(numel);
  unit.shards = ranks;
  unit.shard = shard;
  unit.gradient = gradient;
  unit.parameters = {{"w", {4, 4}, 0, {"tied.w"}}, {"b", {4}, 16, {}}};
  plan.units = {unit};

  plan.programs = {{"init", {}, 0}};
  plan.on(Stream::Compute, Role::Init)
      .launch("aten::full.out(SymInt[] size, Scalar fill_value, *, "
              "Tensor(a!) out) -> Tensor(a!)",
              {plan.ints({2, 4}), plan.integer(1), int32_t(ones)}, "ones");

  plan.programs.push_back({"step", {}, 3});
  addForward(plan, {full, w, b}, x, y, loss);
  plan.on(Stream::Compute, Role::Backward).zero(flat);
  plan.launch("aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> "
              "Tensor(a!)",
              {int32_t(xT), int32_t(ones), int32_t(gw)}, "mm");
  plan.launch(sum,
              {int32_t(ones), plan.ints({0}), plan.boolean(false),
               plan.nothing(), int32_t(gb)},
              "sum_2");
  plan.record(1);
  plan.on(Stream::Reduce, Role::Backward).wait(1);
  plan.reduceScatter(flat, gradient, 0, 1, ranks);
  plan.record(2);
  plan.on(Stream::Compute, Role::Update).wait(2);
  plan.update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{0, 20}}, {hyper});
  return plan;
}

TestPlan test::makeOverlappingPlan(uint32_t ranks) {
  TestPlan plan = makeSmallPlan(ranks);
  TestPlan::Program &step = plan.programs.back();
  auto reduce = std::ranges::find(step.commands, planfile::Step::AllReduce,
                                  &TestPlan::Command::type);
  auto place = reduce - step.commands.begin();
  reduce->stream = Stream::AllReduce;
  uint32_t event = step.events++;
  plan.on(Stream::Compute, Role::Forward).record(event);
  plan.on(Stream::AllReduce, Role::Forward).wait(event);
  std::rotate(step.commands.begin() + place, step.commands.end() - 2,
              step.commands.end());
  return plan;
}

TestPlan test::makeOffloadedPlan(uint32_t ranks) {
  TestPlan plan = makeSmallPlan(ranks);
  TestPlan::Program &step = plan.programs.back();
  TestPlan::Unit &unit = plan.units[0];
  auto move = [&](TestPlan::Buffer &buffer, Space space, uint64_t &used) {
    buffer.space = space;
    buffer.offset = used;
    used += (buffer.numBytes() + 63) / 64 * 64;
  };
  // On the device, there is a place for each, which the step does not keep.
  auto addPlace = [&](uint32_t original) {
    TestPlan::Buffer buffer{BufferRole::Transient,
                            plan.buffers[original].sizes};
    buffer.offset = plan.deviceBytes;
    plan.deviceBytes += (buffer.numBytes() + 63) / 64 * 64;
    return plan.add(std::move(buffer));
  };
  uint32_t shard = addPlace(unit.shard), reduced = addPlace(unit.gradient);
  move(plan.buffers[unit.shard], Space::Pinned, plan.pinnedBytes);
  move(plan.buffers[unit.gradient], Space::Pinned, plan.pinnedBytes);
  for (TestPlan::Buffer &buffer : plan.buffers)
    if (buffer.role == BufferRole::OptimizerState)
      move(buffer, Space::Host, plan.hostBytes);

  // What `add` appends takes the place of the command of that kind.
  auto replace = [&](Step kind, auto add) {
    auto command =
        std::ranges::find(step.commands, kind, &TestPlan::Command::type);
    auto place = command - step.commands.begin();
    step.commands.erase(command);
    size_t size = step.commands.size();
    add();
    std::rotate(step.commands.begin() + place,
                step.commands.begin() + static_cast<ptrdiff_t>(size),
                step.commands.end());
  };
  auto find = [&](BufferRole role, int64_t elements) {
    for (uint32_t i = 0; i != plan.buffers.size(); ++i)
      if (plan.buffers[i].role == role && !plan.buffers[i].root &&
          plan.buffers[i].sizes == TestPlan::Numbers{elements})
        return i;
    return none;
  };
  auto numel = static_cast<int64_t>(unit.numel);
  uint32_t full = find(BufferRole::Transient, numel), flat = full + 3;
  uint32_t here = step.events++, there = step.events++;
  replace(Step::AllGather, [&] {
    plan.on(Stream::Copy, Role::Forward).copy(unit.shard, shard);
    plan.record(here);
    plan.on(Stream::Gather, Role::Forward).wait(here);
    plan.allGather(shard, full, 0);
  });
  replace(Step::ReduceScatter, [&] {
    plan.on(Stream::Reduce, Role::Backward)
        .reduceScatter(flat, reduced, 0, 1, ranks);
    plan.record(there);
    // The event after it is that of the copy.
    plan.on(Stream::Copy, Role::Backward).wait(there);
    plan.copy(reduced, unit.gradient);
  });
  auto last = std::ranges::find_if(step.commands.rbegin(), step.commands.rend(),
                                   [](const TestPlan::Command &command) {
                                     return command.type == Step::Record &&
                                            command.stream == Stream::Reduce;
                                   });
  last->stream = Stream::Copy;
  return plan;
}

void test::addEvaluation(TestPlan &plan) {
  TestPlan::Unit &unit = plan.units[0];
  uint64_t used = plan.persistentBytes;
  auto program = static_cast<uint32_t>(plan.programs.size());
  auto place = [&](BufferRole role, TestPlan::Numbers sizes) {
    TestPlan::Buffer buffer{role, std::move(sizes)};
    buffer.offset = used;
    used += (buffer.numBytes() + 63) / 64 * 64;
    if (isOfProgram(role))
      buffer.owner = program;
    if (role == BufferRole::Input)
      buffer.index = 0;
    return plan.add(std::move(buffer));
  };
  uint32_t full =
      place(BufferRole::Transient, {static_cast<int64_t>(unit.numel)});
  uint32_t y = place(BufferRole::Transient, {2, 4});
  uint32_t loss = place(BufferRole::Loss, {});
  uint32_t x = place(BufferRole::Input, {2, 4});
  auto view = [&](uint64_t offset, TestPlan::Numbers sizes) {
    TestPlan::Buffer buffer;
    buffer.sizes = std::move(sizes);
    buffer.offset = plan.buffers[full].offset + offset;
    buffer.root = full;
    return plan.add(std::move(buffer));
  };
  uint32_t w = view(0, {4, 4}), b = view(64, {4});
  plan.deviceBytes = std::max(plan.deviceBytes, used);

  plan.programs.push_back({"eval", {}, 1});
  addForward(plan, {full, w, b}, x, y, loss);
}
