//===- TestPlan.h - Plans for tests -----------------------------*- C++ -*-===//
//
// Describes a plan in plain, public fields that a test may damage as it likes,
// and makes the bytes of the plan file from them. `makeSmallPlan` is one that
// every runtime can run: loss = sum(x w + b), averaged over the ranks.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_SUPPORT_TESTPLAN_H
#define FSDP_TEST_UNIT_SUPPORT_TESTPLAN_H

#include "fsdp/PlanFile/PlanFile.h"

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::test {

class TestPlan {
public:
  using FBB = flatbuffers::FlatBufferBuilder;
  using Numbers = std::vector<int64_t>;

  struct Buffer {
    planfile::BufferRole role = planfile::BufferRole::Transient;
    Numbers sizes = {};
    uint64_t offset = 0;
    planfile::DType dtype = planfile::DType::F32;
    planfile::Space space = planfile::Space::Device;
    std::optional<Numbers> strides = {}; // row-major if absent
    std::optional<uint32_t> root = {};   // itself if absent
    uint32_t owner = planfile::none;
    uint32_t index = planfile::none;
    std::string name = {};
    std::optional<std::string> bytes = {};

    uint64_t numBytes() const; // where it is dense
  };
  struct Parameter {
    std::string name = {};
    Numbers sizes = {};
    uint64_t offset = 0;
    std::vector<std::string> aliases = {};
    bool trainable = true;
    std::optional<Numbers> strides = {};
  };
  struct Unit {
    std::string name = {};
    uint64_t numel = 0;
    uint32_t shards = 1, shard = planfile::none, gradient = planfile::none;
    std::vector<Parameter> parameters;
    planfile::DType dtype = planfile::DType::F32;
  };
  struct Command {
    planfile::Stream stream;
    planfile::Role role;
    planfile::Step type;
    // `communicator`: of collectives.
    std::function<flatbuffers::Offset<void>(FBB &, uint8_t communicator)> make;
    std::string node;
    // Of collectives: an index of `groups`, and a line of the sequence.
    std::optional<std::pair<uint32_t, std::string>> line;
    uint32_t group = planfile::none; // issued together
  };
  struct Program {
    std::string name = {};
    std::vector<Command> commands;
    uint32_t events = 0;
    bool isInit() const { return name == "init"; }
    // time_ns, exposed_ns, flops, peak
    std::optional<std::array<uint64_t, 4>> prediction = {};
  };
  struct Constant {
    planfile::Value type;
    std::function<flatbuffers::Offset<void>(FBB &)> make;
  };

  uint32_t version = planfile::planVersion;
  std::string device = "cpu";
  std::vector<std::pair<std::string, uint32_t>> mesh;
  uint64_t deviceBytes = 0, persistentBytes = 0, hostBytes = 0, pinnedBytes = 0,
           tokenRows = 0;
  std::vector<std::pair<std::string, std::string>> operators; // name, schema
  std::vector<Constant> constants;
  std::vector<Buffer> buffers;
  std::vector<Unit> units;
  /// Names and axes. Each is a communicator, of the stream that uses it first;
  /// after these are those of other streams.
  std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;
  std::vector<Program> programs;
  std::vector<planfile::Reuse> reuse;
  std::optional<std::vector<std::string>> digest; // computed if absent

  /// The first program that is not `init`: whose inputs, outputs and loss those
  /// are that name no owner.
  uint32_t firstProgram() const {
    uint32_t index = 0;
    while (index < programs.size() && programs[index].isInit())
      ++index;
    return index < programs.size() ? index : 0;
  }

  uint32_t add(Buffer buffer) {
    buffers.push_back(std::move(buffer));
    return static_cast<uint32_t>(buffers.size() - 1);
  }

  /// Adds a constant and returns it as an argument of a launch.
  template <typename Make> int32_t constant(planfile::Value type, Make make) {
    constants.push_back({type, [make](FBB &fbb) { return make(fbb).Union(); }});
    return ~static_cast<int32_t>(constants.size() - 1);
  }
  int32_t ints(Numbers values) {
    return constant(planfile::Value::Ints, [values](FBB &fbb) {
      return planfile::CreateInts(fbb, fbb.CreateVector(values));
    });
  }
  int32_t integer(int64_t value) {
    return constant(planfile::Value::Int, [value](FBB &fbb) {
      return planfile::CreateInt(fbb, value);
    });
  }
  int32_t number(double value) {
    return constant(planfile::Value::Float, [value](FBB &fbb) {
      return planfile::CreateFloat(fbb, value);
    });
  }
  int32_t boolean(bool value) {
    return constant(planfile::Value::Bool, [value](FBB &fbb) {
      return planfile::CreateBool(fbb, value);
    });
  }
  int32_t nothing() {
    return constant(planfile::Value::None,
                    [](FBB &fbb) { return planfile::CreateNone(fbb); });
  }
  int32_t refs(std::vector<int32_t> values) {
    return constant(planfile::Value::Refs, [values](FBB &fbb) {
      return planfile::CreateRefs(fbb, fbb.CreateVector(values));
    });
  }

  /// The number of an operator, by its schema.
  uint32_t op(const std::string &schema) {
    for (uint32_t i = 0; i != operators.size(); ++i)
      if (operators[i].second == schema)
        return i;
    operators.emplace_back(schema.substr(0, schema.find('(')), schema);
    return static_cast<uint32_t>(operators.size() - 1);
  }

  /// Where commands go until the next call.
  TestPlan &on(planfile::Stream newStream, planfile::Role newRole) {
    stream = newStream;
    role = newRole;
    return *this;
  }
  template <typename Make>
  Command &command(planfile::Step type, Make make, std::string node = "") {
    programs.back().commands.push_back(
        {stream,
         role,
         type,
         [make](FBB &fbb, uint8_t) { return make(fbb).Union(); },
         std::move(node),
         {},
         planfile::none});
    return programs.back().commands.back();
  }
  void launch(const std::string &schema, std::vector<int32_t> args,
              std::string node = "", std::vector<uint32_t> results = {}) {
    uint32_t index = op(schema);
    command(
        planfile::Step::Launch,
        [=](FBB &fbb) {
          return planfile::CreateLaunch(fbb, index, fbb.CreateVector(args),
                                        fbb.CreateVector(results));
        },
        std::move(node));
  }
  void allGather(uint32_t source, uint32_t target, uint32_t unit,
                 uint8_t group = 0) {
    collective(planfile::Step::AllGather, source, unit, group,
               [=](FBB &fbb, uint8_t communicator) {
                 return planfile::CreateAllGather(fbb, communicator, source,
                                                  target, unit);
               });
  }
  void reduceScatter(uint32_t source, uint32_t target, uint32_t unit,
                     double pre, double post, uint8_t group = 0) {
    collective(planfile::Step::ReduceScatter, source, unit, group,
               [=](FBB &fbb, uint8_t communicator) {
                 return planfile::CreateReduceScatter(fbb, communicator, source,
                                                      target, unit, pre, post,
                                                      planfile::DType::F32);
               });
  }
  void allReduce(uint32_t source, uint32_t target, uint32_t unit, double pre,
                 double post, uint8_t group = 0,
                 planfile::DType via = planfile::DType::F32,
                 planfile::ReduceKind kind = planfile::ReduceKind::Sum) {
    collective(planfile::Step::AllReduce, source, unit, group,
               [=](FBB &fbb, uint8_t communicator) {
                 return planfile::CreateAllReduce(
                     fbb, communicator, source, target, unit, pre, post, via,
                     planfile::Purpose::Gradient, kind);
               });
  }
  /// What an update takes beside states.
  struct Scalars {
    uint32_t hyper, clipFactor = planfile::none, lossScale = planfile::none,
                    foundInf = planfile::none, skipped = planfile::none;
  };
  void update(planfile::UpdateRule rule, uint32_t unit,
              std::vector<uint32_t> states,
              std::vector<planfile::Interval> intervals, Scalars scalars) {
    uint32_t parameter = units[unit].shard, gradient = units[unit].gradient;
    command(planfile::Step::Update, [=](FBB &fbb) {
      return planfile::CreateUpdate(
          fbb, rule, unit, parameter, gradient, fbb.CreateVector(states),
          fbb.CreateVectorOfStructs(intervals), scalars.hyper,
          scalars.clipFactor, scalars.lossScale, scalars.foundInf,
          scalars.skipped);
    });
  }
  void measure(planfile::MeasureKind kind, uint32_t unit, uint32_t source,
               uint32_t target, std::vector<planfile::Interval> intervals,
               uint32_t initial = planfile::none) {
    command(planfile::Step::Measure, [=](FBB &fbb) {
      return planfile::CreateMeasure(fbb, kind, unit, source, target,
                                     fbb.CreateVectorOfStructs(intervals),
                                     initial);
    });
  }
  /// One f64 of the device.
  uint32_t
  addSum(planfile::BufferRole bufferRole = planfile::BufferRole::Output,
         uint32_t index = 0) {
    Buffer buffer{bufferRole, {}};
    buffer.offset = deviceBytes;
    buffer.dtype = planfile::DType::F64;
    buffer.index = index;
    deviceBytes += 64;
    return add(std::move(buffer));
  }
  /// The hyper-parameters of a decay group that is new.
  uint32_t addHyper(uint32_t group) {
    Buffer buffer{planfile::BufferRole::Hyper, {planfile::numHypers}};
    buffer.offset = hostBytes;
    buffer.dtype = planfile::DType::F64;
    buffer.space = planfile::Space::Host;
    buffer.index = group;
    hostBytes += 64;
    return add(std::move(buffer));
  }
  void zero(uint32_t target) {
    command(planfile::Step::Zero,
            [=](FBB &fbb) { return planfile::CreateZero(fbb, target); });
  }
  void copy(uint32_t source, uint32_t target) {
    command(planfile::Step::Copy, [=](FBB &fbb) {
      return planfile::CreateCopy(fbb, source, target);
    });
  }
  void piece(uint32_t source, uint32_t target, uint32_t unit,
             uint8_t communicator = 0) {
    command(planfile::Step::Piece, [=](FBB &fbb) {
      return planfile::CreatePiece(fbb, communicator, source, target, unit);
    });
  }
  void record(uint32_t event) {
    command(planfile::Step::Record,
            [=](FBB &fbb) { return planfile::CreateRecord(fbb, event); });
  }
  void wait(uint32_t event) {
    command(planfile::Step::Wait,
            [=](FBB &fbb) { return planfile::CreateWait(fbb, event); });
  }

  /// The FlatBuffer, without trailer.
  std::vector<uint8_t> flatbuffer();

  /// The checked plan, or why it is rejected; it is called `small.plan`.
  planfile::Expected<planfile::PlanFile> seal() {
    std::vector<uint8_t> data = flatbuffer();
    return planfile::PlanFile::seal("small.plan", data.data(), data.size());
  }

private:
  template <typename Make>
  void collective(planfile::Step kind, uint32_t source, uint32_t unit,
                  uint8_t group, Make make) {
    const Buffer &buffer = buffers[source];
    programs.back().commands.push_back(
        {stream,
         role,
         kind,
         [make](FBB &fbb, uint8_t communicator) {
           return make(fbb, communicator).Union();
         },
         "",
         {{group, planfile::describeCollective(
                      kind, buffer.numBytes(), buffer.dtype,
                      unit < units.size() ? units[unit].name : std::string())}},
         planfile::none});
  }

  planfile::Stream stream = planfile::Stream::Compute;
  planfile::Role role = planfile::Role::Forward;
};

/// A plan for `ranks` ranks with one unit `u` (parameters `w` of 4x4, alias
/// `tied.w`, and `b` of 4), input 0 `x` of 2x4, and the loss sum(x w + b).
TestPlan makeSmallPlan(uint32_t ranks = 2);

/// Buffers of the small plan, beside 0, the shard of its unit: its states, the
/// loss, its gradient, and the numbers that its update takes.
namespace small {
constexpr uint32_t expAvg = 1, expAvgSq = 2, loss = 7, gradient = 9, hyper = 15;
} // namespace small

/// The same with the loss reduced on a stream of its own, as the compiler has
/// it: only compute on the compute stream.
TestPlan makeOverlappingPlan(uint32_t ranks = 2);

/// The small plan with all of its unit in host memory: the shard and the
/// gradient are pinned, and copied by commands on the stream `copy`.
TestPlan makeOffloadedPlan(uint32_t ranks = 2);

/// Adds a program `eval` to the small plan: the loss of its own input 0 `x` of
/// 2x4, in the bytes of the other program's transients.
void addEvaluation(TestPlan &plan);

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_SUPPORT_TESTPLAN_H
