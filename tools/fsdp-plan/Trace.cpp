//===- Trace.cpp - The predicted timeline of a step -----------------------===//

#include "Trace.h"
#include "Prediction.h"

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/JSON.h"

#include <map>
#include <utility>

using namespace mlir;
using namespace fsdp;
namespace scheduling = fsdp::planner::scheduling;

/// What fsdp-run calls it, and its unit.
static std::string getName(Operation *op) {
  return llvm::TypeSwitch<Operation *, std::string>(op)
      .Case([](aten::CallOp call) {
        StringRef name = call.getCallee().getName();
        return (name.contains("::") ? "" : "aten::") + name.str();
      })
      .Case([](LaunchOpInterface op) {
        auto collective = dyn_cast<CollectiveOpInterface>(op.getOperation());
        StringRef name =
            collective ? stringifyCollectiveKind(collective.getKind()) : "copy";
        FlatSymbolRefAttr unit = op.getUnitAttr();
        return unit ? (name + " " + unit.getValue()).str() : name.str();
      })
      // The wait for a copied gather, which takes time, is its copy.
      .Case([](AsyncWaitOp) {
        return std::string("aten::split_with_sizes_copy.out");
      })
      .Case([](PieceOp op) { return "piece " + op.getUnit().str(); })
      .Case([](AccumulateOp op) { return "accumulate " + op.getUnit().str(); })
      .Case([](MeasureOp op) {
        return (stringifyMeasureKind(op.getKind()) + " " + op.getUnit()).str();
      })
      .Case([](FlattenGradsOp op) { return "flatten " + op.getUnit().str(); })
      .Case([](UpdateOpInterface op) {
        return (op.getRule() + " " + op.getUnitAttr().getValue()).str();
      })
      .Default(
          [](Operation *op) { return op->getName().getStringRef().str(); });
}

namespace {

/// Writes the events of one step. Times are in microseconds from its start.
class TraceWriter {
public:
  TraceWriter(Simulation simulation, llvm::raw_ostream &os)
      : simulation(std::move(simulation)), os(os) {
    for (auto [number, ops] : llvm::enumerate(step.operations))
      for (Operation *op : ops)
        numbers[op] = uint32_t(number);
  }

  void write() {
    os << "[";
    writeRows();
    for (uint32_t number = 0; number != step.operations.size(); ++number)
      writeSlice(number);
    writeMemory();
    os << "\n]";
  }

private:
  using Object = llvm::json::Object;

  void add(Object event) {
    os << (isFirst ? "\n" : ",\n") << llvm::json::Value(std::move(event));
    isFirst = false;
  }
  static Object place(StringRef phase, uint32_t row, int64_t nanoseconds) {
    return Object{{"ph", phase},
                  {"pid", 0},
                  {"tid", row},
                  {"ts", double(nanoseconds) / 1e3}};
  }
  int64_t getEnd(uint32_t number) const { return schedule.end[number]; }

  void writeRows();
  void writeSlice(uint32_t number);
  void writeArrows(uint32_t number);
  void writeMemory();

  const Simulation simulation;
  llvm::raw_ostream &os;
  const StepProblem &step = simulation.step;
  const scheduling::Schedule &schedule = simulation.schedule;
  llvm::DenseMap<Operation *, uint32_t> numbers;
  bool isFirst = true;
  int64_t computed = 0;                  ///< When the latest computation ended.
  llvm::SmallVector<uint32_t> waitedFor; ///< Since then: launches.
  int64_t arrows = 0;
};

} // namespace

void TraceWriter::writeRows() {
  auto name = [&](StringRef what, uint32_t row, StringRef value) {
    Object event = place("M", row, 0);
    event["name"] = what;
    event["args"] = Object{{"name", value}};
    add(std::move(event));
  };
  name("process_name", 0, "every rank, predicted");
  std::vector<bool> isUsed(step.problem.numStreams);
  for (const scheduling::Operation &op : step.problem.operations)
    isUsed[op.stream] = true;
  for (uint32_t stream = 0; stream != step.problem.numStreams; ++stream)
    if (isUsed[stream])
      name("thread_name", stream, stringifyStream(fsdp::Stream(stream)));
}

void TraceWriter::writeSlice(uint32_t number) {
  const scheduling::Operation &row = step.problem.operations[number];
  Operation *op = step.operations[number].front();
  if (auto wait = dyn_cast<AsyncWaitOp>(op)) {
    if (Operation *launch = wait.getFuture().getDefiningOp())
      waitedFor.push_back(numbers.lookup(launch));
    if (int64_t stood = schedule.start[number] - computed) {
      Object event = place("X", scheduling::computeStream, computed);
      event["dur"] = double(stood) / 1e3;
      event["name"] = event["cat"] = "wait";
      event["args"] = Object{{"step", 1}};
      add(std::move(event));
    }
  }
  if (row.stream == scheduling::computeStream)
    computed = getEnd(number);
  if (row.duration == 0)
    return;
  Object event = place("X", row.stream, schedule.start[number]);
  event["dur"] = double(getEnd(number) - schedule.start[number]) / 1e3;
  std::string names;
  for (Operation *each : step.operations[number])
    names += (names.empty() ? "" : ", ") + getName(each);
  event["name"] = names;
  event["cat"] = getRole(op);
  Object args{{"step", 1}};
  if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
    int64_t bytes = 0;
    for (Operation *each : step.operations[number])
      bytes += getMemoryBytes(each->getOperand(0).getType());
    args["bytes"] = bytes;
    args["exposed"] = double(simulation.line.exposed[number]) / 1e3;
  }
  if (auto node = dyn_cast<NameLoc>(op->getLoc()))
    args["node"] = node.getName().getValue();
  if (auto call = dyn_cast<aten::CallOp>(op))
    if (std::optional<StringRef> scope = call.getScope())
      args["scope"] = *scope;
  event["args"] = std::move(args);
  add(std::move(event));
  if (row.stream == scheduling::computeStream)
    writeArrows(number);
}

/// From each collective that was waited for to what follows the wait.
void TraceWriter::writeArrows(uint32_t number) {
  for (uint32_t launch : std::exchange(waitedFor, {})) {
    auto end = [&](StringRef phase, uint32_t at) {
      Object event =
          place(phase, step.problem.operations[at].stream, schedule.start[at]);
      event["name"] = event["cat"] = "wait";
      event["id"] = arrows;
      return event;
    };
    add(end("s", launch));
    Object target = end("f", number);
    target["bp"] = "e";
    add(std::move(target));
    ++arrows;
  }
}

/// Bytes by what they are for: the names are those of `fsdp-run --trace`.
using Kinds = std::map<std::string, int64_t>;

/// What is there all the time: the arguments.
static Kinds getPersistent(Block &block, int64_t bytes) {
  Kinds kinds;
  auto step = cast<func::FuncOp>(block.getParentOp());
  for (BlockArgument argument : block.getArguments())
    if (isa<ShardType>(argument.getType())) {
      auto state = step.getArgAttrOfType<StateAttr>(
          argument.getArgNumber(), FSDPDialect::getStateAttrName());
      bool isState = state && state.getKind() != StateAttr::getParameterKind();
      int64_t size = getMemoryBytes(argument.getType());
      kinds[isState ? "optimizer" : "shards"] += size;
      bytes -= size;
    }
  kinds["other"] = bytes;
  return kinds;
}

/// What a value of the step is for.
static const char *getKind(const MemoryLife &life, Operation *last) {
  Type type = life.value.getType();
  if (auto future = dyn_cast<FutureType>(type))
    type = future.getValueType();
  if (isa<GatheredType>(type))
    return "gathered";
  Operation *first = life.value.getDefiningOp();
  bool isKept =
      first && getRole(first) == "forward" && getRole(last) != "forward";
  return isKept ? "activations" : "temporaries";
}

/// A buffer is alive from the start of the operation at which it is taken to
/// the end of that at which it is given back.
void TraceWriter::writeMemory() {
  std::map<int64_t, Kinds> changes;
  for (auto [buffer, life] :
       llvm::zip_equal(step.problem.buffers, step.buffers)) {
    const char *kind = getKind(life, step.operations[buffer.until].front());
    changes[schedule.start[buffer.from]][kind] += buffer.bytes;
    changes[getEnd(buffer.until)][kind] -= buffer.bytes;
  }
  Kinds alive = getPersistent(*step.operations.front().front()->getBlock(),
                              step.persistentBytes);
  for (const auto &[time, change] : changes) {
    for (const auto &[kind, bytes] : change)
      alive[kind] += bytes;
    Object arguments;
    int64_t total = 0;
    for (const auto &[kind, bytes] : alive) {
      arguments[kind] = bytes;
      total += bytes;
    }
    arguments["bytes alive"] = total;
    Object event = place("C", 0, time);
    event["name"] = "arena";
    event["args"] = std::move(arguments);
    add(std::move(event));
  }
}

void fsdp::writeTimeline(func::FuncOp step, llvm::raw_ostream &os) {
  TraceWriter(Simulation(step), os).write();
}
