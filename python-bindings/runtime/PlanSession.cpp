//===- PlanSession.cpp - One rank of a training, for Python ---------------===//

#include "PlanSession.h"

#include "Runtime/Support/DTypes.h"
#include "fsdp/Archive/BlockSums.h"
#include "fsdp/Runtime/Checkpoints/InitialValues.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"
#include "fsdp/Runtime/Comm/C10d.h"
#include "fsdp/Runtime/Training/CheckpointFolder.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <cstring>
#include <filesystem>

using namespace fsdp;
namespace py = pybind11;

/// Throws on all ranks what `job`, which is one to do `deed`, throws on one.
template <typename Job>
static void together(const Processes &processes, const std::string &deed,
                     const Job &job) {
  std::string problem;
  try {
    job();
  } catch (const Error &error) {
    problem = error.what();
  }
  processes.consult(deed, problem,
                    [](const std::vector<std::string> &all) -> std::string {
                      for (const std::string &each : all)
                        if (!each.empty())
                          throw Error(each);
                      return {};
                    });
}

namespace {

/// A folder of checkpoints, and what it refers to.
struct Checkpoints {
  Checkpoints(const planfile::PlanFile &plan, TrainingOptions given,
              World world, std::chrono::milliseconds timeout)
      : options(std::move(given)), processes(std::move(world), timeout) {
    together(processes, "opening a folder of checkpoints",
             [&] { folder.emplace(plan, options, processes); });
  }

  TrainingOptions options;
  Processes processes;
  std::optional<CheckpointFolder> folder;
};

/// The number of threads of a thread that becomes a rank's.
class ThreadsKept {
public:
  ThreadsKept() = default;
  ThreadsKept(const ThreadsKept &) = delete;
  ThreadsKept &operator=(const ThreadsKept &) = delete;
  ~ThreadsKept() {
    if (at::get_num_threads() != before)
      at::set_num_threads(before);
  }

private:
  int before = at::get_num_threads();
};

/// What the plan does in between has its place in the caller's stream.
class InOrder {
public:
  explicit InOrder(Session &session) : session(session) {
    session.awaitCaller();
  }
  InOrder(const InOrder &) = delete;
  InOrder &operator=(const InOrder &) = delete;
  ~InOrder() {
    try {
      session.letCallerAwait();
    } catch (const Error &) {
      // The next call says so, too.
    }
  }

private:
  Session &session;
};

} // namespace

struct PlanSession::Loaded {
  explicit Loaded(planfile::PlanFile plan) : plan(std::move(plan)) {}

  planfile::PlanFile plan;
  std::unique_ptr<Checkpoints> checkpoints; ///< Of the latest save.
  std::optional<Session> session;
};

template <typename Function> auto PlanSession::call(const Function &function) {
  py::gil_scoped_release released;
  std::lock_guard lock(mutex);
  ThreadsKept threads;
  c10::InferenceMode isOff(false); // what is returned may need a gradient
  if (!loaded)
    throw Error(path + ": expected a Trainer that is open, found one after "
                       "close()");
  return function(*loaded);
}

template <typename Function>
auto PlanSession::callInOrder(const Function &function) {
  return call([&](Loaded &now) {
    InOrder inOrder(*now.session);
    return function(now);
  });
}

//===----------------------------------------------------------------------===//
// Types and sizes
//===----------------------------------------------------------------------===//

static planfile::DType typeOf(const at::Tensor &tensor,
                              const std::string &what) {
  for (planfile::DType type : planfile::EnumValuesDType())
    if (scalarType(type) == tensor.scalar_type())
      return type;
  throw Error(what + ": expected a tensor of a type that plans have, found " +
              c10::toString(tensor.scalar_type()));
}

static void checkDense(const at::Tensor &tensor, const std::string &what) {
  if (!tensor.defined() || tensor.is_meta() || !tensor.has_storage() ||
      tensor.layout() != at::kStrided)
    throw Error(what + ": expected a dense tensor with values, found " +
                (tensor.defined() && tensor.is_meta() ? "one on the device meta"
                                                      : "none"));
}

/// In host memory, row-major.
static at::Tensor toDense(const at::Tensor &tensor, const std::string &what) {
  checkDense(tensor, what);
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

static TensorView viewOf(const at::Tensor &dense, planfile::DType type) {
  return {
      type,
      dense.sizes(),
      {static_cast<const std::byte *>(dense.const_data_ptr()), dense.nbytes()}};
}

static at::Tensor toTensor(HostTensor value) {
  auto owner = std::make_shared<HostTensor>(std::move(value));
  auto options = at::dtype(scalarType(owner->type));
  if (owner->bytes.empty())
    return at::empty(owner->sizes, options);
  return at::from_blob(
      owner->bytes.data(), owner->sizes, [owner](void *) {}, options);
}

static TensorName nameOf(const std::string &kind, const std::string &name) {
  if (kind == "parameter")
    return TensorName::parameter(name);
  if (kind == "gradient")
    return TensorName::gradient(name);
  if (kind == "buffer")
    return TensorName::buffer(name);
  return TensorName::optimizerState(name, kind);
}

//===----------------------------------------------------------------------===//
// The beginning and the end
//===----------------------------------------------------------------------===//

static planfile::PlanFile openPlan(const std::string &path) {
  auto plan = planfile::PlanFile::open(path);
  if (!plan)
    throw Error(plan.error());
  return std::move(*plan);
}

/// All processes must have the same plan.
static void compare(const planfile::PlanFile &plan,
                    const Processes &processes) {
  const std::vector<std::uint8_t> &bytes = plan.bytes();
  std::string digest = archive::spellChecksum(archive::checksum(
      {reinterpret_cast<const char *>(bytes.data()), bytes.size()}));
  processes.consult(
      "the plans of the ranks", digest,
      [&](const std::vector<std::string> &all) -> std::string {
        for (std::size_t rank = 1; rank != all.size(); ++rank)
          if (all[rank] != all[0])
            throw Error("rank " + std::to_string(rank) +
                            ": expected a plan with digest " + all[0] +
                            " as on rank 0, found one with digest " + all[rank],
                        Failure::CheckFailed);
        return {};
      });
}

/// Throws if PyTorch does not see this GPU.
static void checkGPU(const std::string &path, unsigned index) {
  int count = at::detail::getCUDAHooks().deviceCount();
  std::string expected = path + ": expected ";
  if (count == 0)
    throw Error(expected +
                "a GPU for a plan for cuda, found none that PyTorch sees; make "
                "the plan for cpu, or see torch.cuda.is_available()");
  if (index >= static_cast<unsigned>(count))
    throw Error(expected + "a GPU of the " + std::to_string(count) +
                " of this machine, found number " + std::to_string(index));
}

PlanSession::PlanSession(const std::string &planPath)
    : path(planPath), loaded(std::make_shared<Loaded>(openPlan(path))) {}

std::string PlanSession::device() {
  return call([](Loaded &now) { return now.plan->device()->str(); });
}

World PlanSession::join() const {
  return group ? joinGroup(**group, timeout) : World();
}

void PlanSession::connect(Loaded &now, const Start &start) {
  unsigned wanted = planfile::getRankCount(now.plan.plan());
  std::string ranks = std::to_string(wanted);
  if (!start.group && wanted != 1)
    throw Error(path + ": expected a process group of the plan's " + ranks +
                " ranks, found none; start " + ranks +
                " processes, as by torchrun --nproc-per-node " + ranks +
                ", and call torch.distributed.init_process_group first");
  if (start.group && static_cast<unsigned>((*start.group)->getSize()) != wanted)
    throw Error(path + ": expected a process group of the plan's " + ranks +
                " ranks, found one of " +
                std::to_string((*start.group)->getSize()) +
                "; make the plan for as many ranks as there are processes");
  if (wanted != 1)
    group = start.group;
}

SessionOptions PlanSession::open(Loaded &now, const Start &start) {
  SessionOptions options;
  bool isCPU = now.plan->device()->string_view() == "cpu";
  if (isCPU && group)
    options.backend = makeC10dBackend(*group, timeout);
  World world = options.backend ? options.backend->world() : join();
  Processes processes(world, timeout);
  compare(now.plan, processes);
  options.device = start.gpu.value_or(world.local());
  std::string library =
      start.libraries + "/libfsdp_" + (group ? "nccl" : "cuda") + ".so";
  if (!isCPU)
    together(processes, "opening the GPUs", [&] {
      options.backend = loadBackend(library.c_str(), {.world = world});
      if (options.backend->deviceType() == c10::kCUDA)
        checkGPU(path, options.device);
    });
  ownRank = world.rank;
  options.store = world.store;
  options.processes = processes.onThisMachine();
  options.timeout = timeout;
  options.overlap = start.overlap;
  options.trustedOperators = start.trustedOperators;
  return options;
}

void PlanSession::setTimeout(double seconds) {
  if (!(seconds >= 0.001 && seconds < 1e9))
    throw Error("timeout: expected from 0.001 to 1e9 seconds, found " +
                std::to_string(seconds));
  timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
}

void PlanSession::start(const Start &start) {
  setTimeout(start.timeout);
  call([&](Loaded &now) {
    connect(now, start);
    SessionOptions options = open(now, start);
    now.session.emplace(now.plan.plan(), RankRange(ownRank, 1),
                        std::move(options));
    programs = getStepPrograms(now.plan, planfile::defaultProgram);
    for (const std::string &program : programs) {
      inputsOf[program] = getInputs(now.plan, planfile::defaultProgram);
      if (now.session->inputCount(program) != inputsOf[program].size())
        throw Error(path +
                    ": expected the inputs of all micro-batches to be "
                    "the same, found others in program " +
                    program);
    }
  });
}

PlanSession::~PlanSession() { close(); }

std::optional<planfile::StepPrediction> PlanSession::prediction() {
  return call([](Loaded &now) {
    return planfile::predictStep(now.plan.plan(), planfile::defaultProgram);
  });
}

/// Numbers as those of a model at its start, and batches of zeros.
static void makeUp(Session &session, const std::vector<std::string> &programs) {
  InitialValues values = InitialValues::parse("normal:0.02");
  for (const TensorName &tensor : session.tensors(TensorName::Kind::Parameter))
    values.set(session, std::string(tensor.name), 0);
  for (const std::string &program : programs)
    for (unsigned i = 0; i != session.inputCount(program); ++i) {
      at::Tensor zeros =
          at::zeros(session.inputSizes(i, program),
                    at::dtype(scalarType(session.inputType(i, program))));
      for (unsigned rank = session.ranks().first; rank != session.ranks().end();
           ++rank)
        session.setInput(rank, i, zeros, program);
    }
}

/// What the first rank of a session has run.
static void count(const planfile::Plan &plan, const Session &session,
                  Measurement &found) {
  using planfile::Step;
  for (const Span &span : session.spans()) {
    const planfile::Program &program = *plan.programs()->Get(span.program);
    Step step = program.commands()->Get(span.command)->step_type();
    if (span.rank != session.ranks().first || span.isDrain || program.is_init())
      continue;
    found.operators += step == Step::Launch;
    found.collectives += step == Step::AllGather ||
                         step == Step::ReduceScatter || step == Step::AllReduce;
  }
}

Measurement PlanSession::measure(const Start &start, bool computes,
                                 bool communicates, unsigned steps) {
  setTimeout(start.timeout);
  return call([&](Loaded &now) {
    unsigned all = planfile::getRankCount(now.plan.plan());
    bool areThreads =
        !start.group && now.plan->device()->string_view() == "cpu";
    if (!areThreads)
      connect(now, start);
    SessionOptions options = open(now, start);
    options.computes = computes;
    options.communicates = communicates;
    Session session(now.plan.plan(),
                    areThreads ? RankRange(all) : RankRange(ownRank, 1),
                    std::move(options));
    std::vector<std::string> names =
        getStepPrograms(now.plan, planfile::defaultProgram);
    makeUp(session, names);
    auto run = [&](unsigned count) {
      auto begin = std::chrono::steady_clock::now();
      double exposed = 0;
      for (unsigned step = 0; step != count; ++step)
        for (const std::string &name : names) {
          session.run(name);
          exposed += session.statistics().exposed.value_or(0);
        }
      session.loss(names.back()); // waits for the device
      std::chrono::duration<double> passed =
          std::chrono::steady_clock::now() - begin;
      return Measurement{passed.count() / count, exposed / count};
    };
    run(2); // what the first ones do alone
    Measurement found = run(steps);
    bool isKnown = session.statistics().exposed.has_value();
    session.setTimed(true);
    Measurement timed = run(1);
    if (!isKnown)
      found.exposed = timed.exposed;
    count(now.plan.plan(), session, found);
    return found;
  });
}

void PlanSession::close() {
  py::gil_scoped_release released;
  std::lock_guard lock(mutex);
  loaded.reset();
}

//===----------------------------------------------------------------------===//
// Facts
//===----------------------------------------------------------------------===//

unsigned PlanSession::worldSize() {
  return call([](Loaded &now) { return getRankCount(now.plan.plan()); });
}

std::vector<std::string> PlanSession::stepPrograms() {
  return call([&](Loaded &) { return programs; });
}

std::vector<InputSpec> PlanSession::inputs(const std::string &program) {
  return call([&](Loaded &now) { return getInputs(now.plan, program); });
}

/// Calls `function` with each update of a plan, some more than once.
template <typename Function>
static void forEachUpdate(const planfile::PlanFile &plan,
                          const Function &function) {
  for (const planfile::Program *program : *plan->programs())
    for (const planfile::Command *command : *program->commands())
      if (const planfile::Update *update = command->step_as_Update())
        function(*update);
}

std::vector<ParameterFacts> PlanSession::parameters() {
  return call([](Loaded &now) {
    const planfile::PlanFile &plan = now.plan;
    std::vector<ParameterFacts> all;
    std::vector<std::size_t> begins; ///< Of each unit in `all`.
    for (const planfile::Unit *unit : *plan->units()) {
      begins.push_back(all.size());
      for (const planfile::Parameter *each : *unit->parameters()) {
        const auto &sizes = plan.shape(each->sizes());
        ParameterFacts &facts = all.emplace_back();
        facts.name = plan.string(each->name());
        if (each->aliases())
          for (std::uint32_t alias : *each->aliases())
            facts.aliases.emplace_back(plan.string(alias));
        facts.sizes.assign(sizes.begin(), sizes.end());
        facts.dtype = scalarType(unit->storage());
        facts.trains = each->trainable();
      }
    }
    for (const planfile::Buffer *buffer : *plan->buffers())
      if (buffer->role() == planfile::BufferRole::OptimizerState)
        for (std::size_t i = begins[buffer->owner()];
             i != begins[buffer->owner()] +
                      plan->units()->Get(buffer->owner())->parameters()->size();
             ++i)
          if (all[i].trains)
            all[i].states.emplace_back(plan.string(buffer->name()));
    forEachUpdate(plan, [&](const planfile::Update &update) {
      const auto &own = *plan->units()->Get(update.unit())->parameters();
      for (std::uint32_t i = 0; i != own.size(); ++i)
        for (const planfile::Interval *interval : *update.intervals())
          if (own.Get(i)->trainable() &&
              own.Get(i)->offset() >= interval->begin() &&
              own.Get(i)->offset() < interval->end())
            all[begins[update.unit()] + i].decayGroup =
                plan->buffers()->Get(update.hyper())->index();
    });
    return all;
  });
}

std::map<unsigned, std::string> PlanSession::decayGroups() {
  return call([](Loaded &now) {
    std::map<unsigned, std::string> groups;
    for (const planfile::Buffer *buffer : *now.plan->buffers())
      if (buffer->role() == planfile::BufferRole::Hyper)
        groups.emplace(buffer->index(), now.plan.string(buffer->name()));
    return groups;
  });
}

std::vector<std::string> PlanSession::buffers() {
  return call([](Loaded &now) {
    std::vector<std::string> names;
    for (const TensorName &tensor :
         now.session->tensors(TensorName::Kind::Buffer))
      if (!planfile::isGradScalerState(tensor.name))
        names.emplace_back(tensor.name);
    return names;
  });
}

static bool holdsBuffer(const planfile::PlanFile &plan, std::string_view name) {
  for (const planfile::Buffer *buffer : *plan->buffers())
    if (buffer->role() == planfile::BufferRole::ModelBuffer &&
        buffer->name() != planfile::none && plan.string(buffer->name()) == name)
      return true;
  return false;
}

bool PlanSession::hasBuffer(const std::string &name) {
  return call([&](Loaded &now) { return holdsBuffer(now.plan, name); });
}

std::string PlanSession::updateRule() {
  return call([](Loaded &now) {
    std::string rule;
    forEachUpdate(now.plan, [&](const planfile::Update &update) {
      rule = planfile::getFacts(update.rule()).name;
    });
    return rule;
  });
}

//===----------------------------------------------------------------------===//
// Training
//===----------------------------------------------------------------------===//

void PlanSession::setHyperParameters(unsigned decayGroup,
                                     const HyperParameters &values) {
  call([&](Loaded &now) {
    now.session->setHyperParameters(decayGroup, values);
  });
}

void PlanSession::setSeed(std::uint64_t seed) {
  call([&](Loaded &now) { now.session->setSeeds({seed, false}); });
}

at::Tensor PlanSession::generatorState() {
  return call([&](Loaded &now) {
    HostTensor state{
        planfile::DType::U8, {}, now.session->generatorState(ownRank)};
    state.sizes = {static_cast<std::int64_t>(state.bytes.size())};
    return toTensor(std::move(state));
  });
}

void PlanSession::setInputs(Loaded &now, const Batch &batch,
                            const std::string &program) {
  const std::vector<InputSpec> &inputs = inputsOf[program];
  if (batch.size() != inputs.size())
    throw Error(path + ": expected the " + std::to_string(inputs.size()) +
                " inputs of program " + program + ", found " +
                std::to_string(batch.size()));
  for (unsigned i = 0; i != batch.size(); ++i) {
    checkDense(batch[i], "input " + std::to_string(i));
    at::Tensor value = batch[i].detach();
    now.session->setInput(ownRank, i,
                          now.session->device().is_cpu() ? value.cpu() : value,
                          program);
  }
}

at::Tensor PlanSession::run(Loaded &now, const std::vector<Batch> &batches,
                            const std::vector<std::string> &names,
                            Roles roles) {
  auto count = static_cast<std::int64_t>(names.size());
  auto type = scalarType(getLossType(now.plan, names.back()));
  at::Tensor losses =
      at::empty({count}, at::dtype(type).device(now.session->device()));
  {
    InOrder inOrder(*now.session);
    for (std::size_t i = 0; i != names.size(); ++i) {
      setInputs(now, batches[i], names[i]);
      now.session->run(names[i], roles);
      now.session->copyLoss(losses[static_cast<std::int64_t>(i)], names[i]);
    }
  }
  return count == 1 ? losses[0]
                    : losses.to(at::kDouble).div(count).sum().to(type);
}

at::Tensor PlanSession::step(const std::vector<Batch> &batches) {
  return call([&](Loaded &now) {
    if (batches.size() != programs.size())
      throw Error(path + ": expected " + std::to_string(programs.size()) +
                  (programs.size() == 1 ? " batch" : " micro-batches") +
                  " for a step, found " + std::to_string(batches.size()));
    at::Tensor loss = run(now, batches, programs, {});
    ++stepsDone;
    return loss;
  });
}

at::Tensor PlanSession::backward(const Batch &batch, std::size_t part) {
  return call([&](Loaded &now) {
    if (part >= programs.size())
      throw Error(
          path + ": expected one of the " + std::to_string(programs.size()) +
          " micro-batches of a step, found number " + std::to_string(part + 1));
    return run(now, {batch}, {programs[part]}, {.update = false});
  });
}

void PlanSession::observe(const py::object &observer) {
  Observer seen;
  if (!observer.is_none())
    // Freed with the GIL, wherever the session ends.
    seen = [function = std::shared_ptr<py::object>(
                new py::object(observer),
                [](py::object *each) {
                  py::gil_scoped_acquire held;
                  delete each;
                })](unsigned, std::string_view node,
                    std::span<const at::Tensor> values) {
      py::gil_scoped_acquire held;
      (*function)(std::string(node),
                  std::vector<at::Tensor>(values.begin(), values.end()));
    };
  call([&](Loaded &now) { now.session->observe(std::move(seen)); });
}

void PlanSession::update() {
  call([&](Loaded &now) {
    InOrder inOrder(*now.session);
    now.session->run(programs.back(), {.forward = false, .backward = false});
    ++stepsDone;
  });
}

at::Tensor PlanSession::evaluate(const Batch &batch,
                                 const std::string &program) {
  return call([&](Loaded &now) {
    if (!inputsOf.contains(program))
      inputsOf.emplace(program, getInputs(now.plan, program));
    return run(now, {batch}, {program}, {.backward = false, .update = false});
  });
}

long long PlanSession::steps() {
  return call([&](Loaded &) { return stepsDone; });
}

std::optional<double> PlanSession::gradientNorm() {
  return call([](Loaded &now) { return now.session->gradientNorm(); });
}

/// Updates that a grad scaler has skipped.
static std::uint64_t countSkipped(const planfile::PlanFile &plan,
                                  const Session &session) {
  if (!holdsBuffer(plan, planfile::skippedUpdates))
    return 0;
  HostTensor count = session.read(TensorName::buffer(planfile::skippedUpdates));
  return toTensor(std::move(count)).item().to<std::uint64_t>();
}

std::uint64_t PlanSession::updates() {
  return call([](Loaded &now) {
    return now.session->updates() - countSkipped(now.plan, *now.session);
  });
}

void PlanSession::setUpdates(std::uint64_t count) {
  call([&](Loaded &now) {
    now.session->setUpdates(count + countSkipped(now.plan, *now.session));
  });
}

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

std::optional<at::Tensor> PlanSession::read(const std::string &kind,
                                            const std::string &name,
                                            bool toFirst) {
  return callInOrder([&](Loaded &now) -> std::optional<at::Tensor> {
    TensorName tensor = nameOf(kind, name);
    if (!toFirst)
      return toTensor(now.session->read(tensor));
    HostTensor value = now.session->gather(tensor);
    if (ownRank != 0)
      return std::nullopt;
    return toTensor(std::move(value));
  });
}

void PlanSession::write(const std::string &kind, const std::string &name,
                        const at::Tensor &value) {
  callInOrder([&](Loaded &now) {
    at::Tensor dense = toDense(value, name);
    now.session->write(nameOf(kind, name), viewOf(dense, typeOf(dense, name)));
  });
}

std::vector<Piece> PlanSession::views(const std::string &kind,
                                      const std::string &name) {
  return callInOrder([&](Loaded &now) {
    std::vector<Piece> pieces;
    for (BoxView &view : now.session->views(nameOf(kind, name), ownRank))
      pieces.emplace_back(
          std::move(view.box.offsets),
          at::from_blob(
              view.data, view.box.sizes, view.strides,
              [owner = loaded](void *) {},
              at::dtype(scalarType(view.type)).device(view.device),
              view.device));
    return pieces;
  });
}

void PlanSession::loadWeights(const std::string &from) {
  callInOrder([&](Loaded &now) {
    Weights weights = Weights::open(from);
    weights.load(weights.match(now.plan), *now.session);
  });
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

/// What options of fsdp-run are called here.
template <typename Function> static auto spelled(const Function &function) {
  try {
    return function();
  } catch (const Error &error) {
    std::string text = error.what();
    for (auto [option, method] :
         {std::pair("--resume auto", "a load()"), std::pair("--resume", "load"),
          std::pair("--checkpoint", "save")})
      for (std::size_t at = 0;
           (at = text.find(option, at)) != std::string::npos;)
        text.replace(at, std::strlen(option), method);
    throw Error(text, error.kind());
  }
}

std::string PlanSession::save(const std::string &folder,
                              const HyperParameters &values) {
  return callInOrder([&](Loaded &now) {
    return spelled([&] {
      std::unique_ptr<Checkpoints> &open = now.checkpoints;
      if (!open || open->options.checkpoint != folder) {
        TrainingOptions options;
        options.checkpoint = folder;
        std::error_code ignored;
        if (std::filesystem::equivalent(
                std::filesystem::path(resumed).parent_path(), folder, ignored))
          options.resume = resumed;
        open.reset(); // and its lock
        open = std::make_unique<Checkpoints>(now.plan, std::move(options),
                                             join(), timeout);
        open->folder->prepare(*now.session);
      }
      open->options.hyperParameters = values;
      open->options.steps = stepsDone;
      if (!open->folder->has(stepsDone)) {
        archive::TrainingState state;
        state.step = stepsDone;
        state.ranks = planfile::getRankCount(now.plan.plan());
        // As if all had come out of a file of batches.
        state.position = static_cast<std::uint64_t>(stepsDone) * state.ranks *
                         programs.size();
        state.updates = now.session->updates();
        state.mesh = spellMesh(now.plan);
        state.facts = spellHyperParameters(open->options);
        open->folder->save(std::move(state), *now.session);
        open->folder->finish();
      }
      resumed = open->folder->newestPath();
      return resumed;
    });
  });
}

void PlanSession::load(const std::string &folder) {
  callInOrder([&](Loaded &now) {
    spelled([&] {
      now.checkpoints.reset();
      TrainingOptions options;
      options.resume = folder;
      Checkpoints source(now.plan, std::move(options), join(), timeout);
      source.folder->load(*now.session);
      stepsDone = source.folder->resumed()->step;
      resumed = source.folder->resumedPath();
    });
  });
}
