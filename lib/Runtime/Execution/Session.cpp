//===- Session.cpp - A loaded plan, ready to step -------------------------===//
#include "../Comm/Mesh.h"
#include "../Device/FreeMemory.h"
#include "../Device/RankScope.h"
#include "../Support/Caught.h"
#include "../Support/Text.h"
#include "SessionImpl.h"

#include "fsdp/Archive/BlockSums.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

using namespace fsdp;
using planfile::Space;
using planfile::Stream;

static constexpr unsigned char canaryByte = 0xa5;

/// That wait for one another on this machine: ranks have a second one each if
/// they overlap.
static unsigned countThreads(unsigned ranks, const SessionOptions &options) {
  return options.processes * (options.overlap ? 2 * ranks : ranks);
}

Session::Impl::Impl(const planfile::Plan &plan, RankRange here,
                    SessionOptions given)
    : plan(plan), options(std::move(given)),
      backend(options.backend
                  ? options.backend
                  : makeLocalBackend(countThreads(here.count, options))),
      here(here), ranks(here.count), waits(countThreads(here.count, options)),
      threads(here.count, countThreads(here.count, options)),
      rendezvous(options.store, here, planfile::getRankCount(plan),
                 options.timeout) {
  for (std::uint32_t u = 0; u != plan.units()->size(); ++u)
    for (const planfile::Parameter *p : *plan.units()->Get(u)->parameters()) {
      places[std::string(stringOf(plan, p->name()))] = {u, p};
      if (p->aliases())
        for (std::uint32_t alias : *p->aliases())
          places[std::string(stringOf(plan, alias))] = {u, p};
    }
  for (bool views : {false, true})
    for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
      const planfile::Buffer &buffer = *plan.buffers()->Get(i);
      bool isLoss = buffer.role() == planfile::BufferRole::Loss;
      if ((buffer.root() != i) == views)
        named.emplace(std::tuple(buffer.owner(), buffer.role(),
                                 isLoss ? none : buffer.index()),
                      i);
    }
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i)
    if (plan.buffers()->Get(i)->role() == planfile::BufferRole::Hyper)
      groups[i] = {};
  for (unsigned r = 0; r != here.count; ++r)
    ranks[r].rank.rank = here.first + r;
  rendezvous.watch(options.lifeline,
                   [this](const Error &error) { fail(error); });
  onCaller(Failure::CheckFailed, [&] {
    if (rendezvous.isAlone())
      return;
    // The text, which may be long, is for who has another one.
    const std::string key = "collectives";
    std::string text = describeCollectives(plan);
    std::string digest = archive::spellChecksum(archive::checksum(text));
    if (here.first == 0)
      rendezvous.share(key, text);
    if (rendezvous.share("digest of " + key, digest) != digest)
      checkCollectives("rank " + std::to_string(here.first), plan,
                       rendezvous.share(key, text));
    rendezvous.meet("agree on the plan");
  });
  onAllRanks(Failure::Rejected, [this](RankData &data) { open(data); });
  onAllRanks(Failure::Rejected, [this](RankData &data) { initialise(data); });
  onCaller(Failure::Rejected, [this] { rendezvous.meet("load the plan"); });
}

void Session::Impl::fail(const Error &error) {
  waits.abort();
  std::lock_guard lock(mutex);
  if (failure)
    return;
  // The others are told why before they are stopped.
  failure.emplace(rendezvous.fail(error));
  backend->abort();
}

void Session::Impl::fail(const std::string &sentence) {
  Failure kind = Failure::Rejected;
  {
    std::lock_guard lock(mutex);
    kind = phase;
  }
  fail(Error(sentence, kind));
}

void Session::Impl::checkFailure() const {
  std::lock_guard lock(mutex);
  if (failure)
    throw *failure;
}

void Session::Impl::onCaller(Failure kind, const std::function<void()> &job) {
  {
    std::lock_guard lock(mutex);
    phase = kind;
  }
  try {
    job();
  } catch (const Error &error) {
    fail(error);
  } catch (...) {
    fail(describeCaught());
  }
  checkFailure();
}

void Session::Impl::onAllRanks(Failure kind, const RankJob &job) {
  checkFailure();
  {
    std::lock_guard lock(mutex);
    phase = kind;
  }
  threads.run([&](unsigned r) {
    try {
      RankScope scope(ranks[r].rank.device.get());
      job(ranks[r]);
    } catch (...) {
      fail(describeCaught());
    }
  });
  checkFailure();
}

void Session::Impl::settle() {
  if (std::exchange(isSettled, true))
    return;
  onAllRanks(Failure::RankFailed, [&](RankData &data) {
    try {
      data.rank.device->synchronize();
    } catch (const Error &error) {
      throw Error("rank " + std::to_string(data.rank.rank) + ", step " +
                      std::to_string(data.rank.updates + 1) + ": " +
                      error.what(),
                  error.kind());
    }
  });
}

void Session::Impl::onRank(const RankData &data,
                           const std::function<void()> &job) {
  settle();
  checkFailure();
  try {
    RankScope scope(data.rank.device.get());
    job();
    data.rank.device->synchronize();
  } catch (const Error &) {
    throw;
  } catch (...) {
    throw Error(describeCaught());
  }
}

static at::Generator makeGenerator(c10::Device device) {
  if (device.is_cpu())
    return at::make_generator<at::CPUGeneratorImpl>();
  return at::globalContext()
      .getAcceleratorHooksInterface(device.type())
      .getNewGenerator(device.index());
}

RankContext Session::Impl::contextOf(const Rank &rank) const {
  return {rank.rank, rank.rank - here.first, options.device, options.store,
          options.timeout};
}

/// What the plan and the libraries need must fit into what a GPU has.
void Session::Impl::checkRoom(const RankData &data) {
  std::optional<Device::Room> room = data.rank.device->room();
  if (!room)
    return;
  std::uint64_t libraries = 0;
  for (std::uint32_t c = 0; c != plan.communicators()->size(); ++c)
    libraries +=
        backend->libraryBytes(groupOf(plan, c, data.rank.rank).members.size());
  if (!rendezvous.isAlone()) // What it exchanges, much and little.
    libraries += data.exchanges.size() * backend->libraryBytes(worldSize());
  std::uint64_t taken = room->total - room->free, needed = 0;
  if (__builtin_add_overflow(plan.device_bytes(), libraries, &needed) ||
      needed > room->free)
    throw Error("rank " + std::to_string(data.rank.rank) +
                ": expected a plan that fits into the " +
                spellBytes(room->free) + " that are free of the " +
                spellBytes(room->total) + " of its GPU, found one that needs " +
                spellBytes(plan.device_bytes()) + ", and " +
                spellBytes(libraries) +
                " for buffers of its communicators (an estimate); " +
                spellBytes(taken) +
                " are taken by CUDA's context, cuBLAS and other processes");
  if (&data != &ranks[0])
    return;
  report.libraryBytes = libraries;
  report.takenBytes = taken;
}

void Session::Impl::open(RankData &data) {
  Rank &rank = data.rank;
  RankContext context = contextOf(rank);
  rank.here = here;
  rank.plan = &plan;
  rank.trusted = options.trustedOperators;
  rank.waits = &waits;
  rank.timeout = options.timeout;
  rank.chaosSeed = options.chaosSeed;
  rank.timed = options.timed;
  rank.overlaps = backend->overlaps();
  rank.computes = options.computes;
  rank.communicates = options.communicates;
  rank.fail = [this](const Error &error) { fail(error.what()); };
  if (options.overlap)
    rank.team =
        std::make_unique<ThreadTeam>(2, countThreads(here.count, options));
  rank.shards = shardIndices(plan, rank.rank);
  rank.device = backend->openDevice(context);
  DeviceScope entered(*rank.device);
  checkRoom(data);
  rank.memory = std::make_unique<Memory>(plan, *rank.device);
  if (rank.device->runsAhead())
    rank.hyper = DeviceHyper(plan, *rank.device);
  rank.generator = makeGenerator(rank.device->torchDevice());
  for (std::uint32_t c = 0; c != plan.communicators()->size(); ++c)
    rank.comms.push_back(backend->openComm(
        context, c, groupOf(plan, c, rank.rank), *rank.device));
  rank.collectives.resize(plan.communicators()->size());
  for (unsigned p = 0; p != plan.programs()->size(); ++p)
    data.programs.push_back(std::make_unique<Program>(rank, p));
  for (std::size_t c = 0; c != rank.comms.size(); ++c)
    rank.comms[c]->prepare(rank.collectives[c]);
}

static bool isInit(const planfile::Plan &plan, std::size_t program) {
  return plan.programs()->Get(static_cast<std::uint32_t>(program))->is_init();
}

/// False if the plan has none.
bool Session::Impl::runInit(RankData &data) {
  for (std::size_t p = 0; p != data.programs.size(); ++p)
    if (isInit(plan, p)) {
      data.programs[p]->run(roleBit(planfile::Role::Init));
      return true;
    }
  return false;
}

static void setSeed(Rank &rank, Seeds seeds) {
  std::lock_guard lock(rank.generator.mutex());
  rank.generator.set_current_seed(seeds.first +
                                  (seeds.areShared ? 0 : rank.rank));
}

/// Runs `init`, and probes what operators of the other programs allocate.
/// Transient memory is zero by then: all indices are in range.
void Session::Impl::initialise(RankData &data) {
  Rank &rank = data.rank;
  std::byte *transient = rank.memory->transient();
  std::uint64_t bytes = rank.memory->transientBytes();
  if (runInit(data) && bytes)
    rank.device->fill(Stream::Compute, transient, 0, bytes);

  std::size_t scratch = 0;
  std::vector<std::string> hooked;
  for (std::size_t p = 0; p != data.programs.size(); ++p) {
    if (isInit(plan, p))
      continue;
    scratch = std::max(scratch, data.programs[p]->probeLaunches());
    for (const Launch &launch : data.programs[p]->launches)
      if (launch.isHooked() &&
          std::ranges::find(hooked, launch.name()) == hooked.end())
        hooked.push_back(launch.name());
  }
  if (scratch) {
    std::byte *place = rank.device->allocate(Space::Device, scratch);
    for (std::unique_ptr<Program> &program : data.programs)
      program->placeScratch(place);
  }
  if (options.canary && bytes)
    rank.device->fill(Stream::Compute, transient, canaryByte,
                      bytes + Memory::guardBytes);
  rank.device->synchronize();
  setSeed(rank, {}); // probes have drawn, too
  if (&data != &ranks[0])
    return;
  report.arenaBytes = rank.memory->arenaBytes(Space::Device);
  report.hostBytes = rank.memory->arenaBytes(Space::Host) +
                     rank.memory->arenaBytes(Space::Pinned);
  report.scratchBytes = scratch;
  for (const std::unique_ptr<Comm> &comm : rank.comms)
    report.workspaceBytes += comm->workspaceBytes();
  report.hookedOperators = std::move(hooked);
}

void Session::Impl::run(std::string_view name, Roles roles) {
  std::uint32_t p = findProgram(name);
  using planfile::Role;
  RoleSet set = roleBit(Role::Init);
  set |= roles.forward ? roleBit(Role::Forward) : 0;
  set |= roles.backward ? roleBit(Role::Backward) : 0;
  set |= roles.update ? roleBit(Role::Update) : 0;
  bool initFirst = std::exchange(buffersChanged, false);
  onAllRanks(Failure::RankFailed, [&](RankData &data) {
    if (initFirst)
      runInit(data);
    Rank &rank = data.rank;
    writeHyperParameters(rank);
    rank.updates = updates;
    rank.statistics = {};
    AllocationCounts before = rank.device->allocationCounts();
    Program &program = *data.programs[p];
    program.run(set);
    AllocationCounts &counts = rank.statistics.allocations;
    counts = rank.device->allocationCounts();
    counts.planned -= before.planned;
    counts.heap -= before.heap;
    counts.heapBytes -= before.heapBytes;
  });
  isSettled = !ranks[0].rank.device->runsAhead();
  statistics = ranks[0].rank.statistics;
  for (std::size_t r = 1; r != ranks.size(); ++r) {
    const Statistics &other = ranks[r].rank.statistics;
    statistics.allocations.planned += other.allocations.planned;
    statistics.allocations.heap += other.allocations.heap;
    statistics.allocations.heapBytes += other.allocations.heapBytes;
    statistics.hookMisses += other.hookMisses;
  }
  const Program &program = *ranks[0].programs[p];
  if (roles.update && program.hasUpdate())
    ++updates;
}

/// Ranks on this machine's memory: what is sensible for it to hold. That of a
/// GPU is looked at when it is open.
static void checkMemory(const planfile::Plan &plan, unsigned ranks) {
  std::uint64_t host = 0, bytes = 0, memory = freeMemory();
  bool isCPU = plan.device()->string_view() == "cpu";
  if (__builtin_add_overflow(plan.host_bytes(), plan.pinned_bytes(), &host) ||
      __builtin_add_overflow(isCPU ? plan.device_bytes() : 0, host, &bytes) ||
      bytes > memory / ranks)
    throw Error(
        "expected a plan that fits into the " + spellBytes(memory) +
        " that are free here, found one that needs " + spellBytes(bytes) +
        (plan.pinned_bytes() ? ", " + spellBytes(host) + " of it on the host,"
                             : "") +
        " for each of " + std::to_string(ranks) + " ranks");
}

Session::Session(const planfile::Plan &plan, RankRange ranks,
                 SessionOptions options) {
  unsigned worldSize = planfile::getRankCount(plan);
  // Without a backend, ranks are threads of this process.
  if (!options.backend && ranks.count != worldSize)
    throw Error("the plan is for " + std::to_string(worldSize) +
                " ranks, not for " + std::to_string(ranks.count));
  if (ranks.count == 0 || ranks.first >= worldSize ||
      ranks.count > worldSize - ranks.first)
    throw Error("expected some of the plan's " + std::to_string(worldSize) +
                " ranks, found " + std::to_string(ranks.count) + " from " +
                std::to_string(ranks.first) + " on");
  if (options.timeout < std::chrono::milliseconds(1))
    throw Error("expected a time-out of at least 0.001 s, found " +
                spellSeconds(options.timeout));
  if (!options.store && ranks.count == worldSize)
    options.store = makeLocalStore();
  constexpr unsigned mostRanks = 1024; // as threads
  if (ranks.count > mostRanks)
    throw Error("expected at most " + std::to_string(mostRanks) +
                " ranks in one process, found a plan for " +
                std::to_string(ranks.count));
  checkMemory(plan, ranks.count * options.processes);
  if (options.backend && options.backend->overlaps())
    options.overlap = false;
  impl = std::make_unique<Impl>(plan, ranks, std::move(options));
}

Session::~Session() = default;

RankRange Session::ranks() const { return impl->here; }
const LoadReport &Session::report() const { return impl->report; }
const Statistics &Session::statistics() const { return impl->statistics; }
std::uint64_t Session::updates() const { return impl->updates; }
void Session::setUpdates(std::uint64_t count) { impl->updates = count; }

void HyperParameters::check() const {
  struct {
    const char *name;
    double value, end;
  } limits[] = {{"learning rate", lr, INFINITY},
                {"beta1", beta1, 1},
                {"beta2", beta2, 1},
                {"eps", eps, INFINITY},
                {"weight decay", weightDecay, INFINITY},
                {"momentum", momentum, INFINITY}};
  for (auto [name, value, end] : limits)
    if (!(value >= 0 && value < end))
      throw Error("expected a " + std::string(name) + " of at least 0" +
                  (end == 1 ? " and below 1" : "") + ", found " +
                  std::to_string(value));
}

void Session::setHyperParameters(const HyperParameters &values) {
  values.check();
  for (auto &[buffer, group] : impl->groups)
    group = values;
}

void Session::setHyperParameters(unsigned decayGroup,
                                 const HyperParameters &values) {
  values.check();
  for (auto &[buffer, group] : impl->groups)
    if (impl->plan.buffers()->Get(buffer)->index() == decayGroup) {
      group = values;
      return;
    }
  throw Error("expected one of the " + std::to_string(impl->groups.size()) +
              " decay groups of the plan, found " + std::to_string(decayGroup));
}

/// What the updates of the next run read.
void Session::Impl::writeHyperParameters(Rank &rank) const {
  for (const auto &[buffer, values] : groups) {
    using planfile::Hyper;
    auto *numbers = reinterpret_cast<double *>(rank.memory->data(buffer));
    auto set = [&](Hyper number, double value) {
      numbers[static_cast<std::size_t>(number)] = value;
    };
    set(Hyper::LearningRate, values.lr);
    set(Hyper::Beta1, values.beta1);
    set(Hyper::Beta2, values.beta2);
    set(Hyper::Epsilon, values.eps);
    bool decays = stringOf(plan, plan.buffers()->Get(buffer)->name()) !=
                  planfile::noDecay;
    set(Hyper::WeightDecay, decays ? values.weightDecay : 0);
    set(Hyper::Momentum, values.momentum);
    set(Hyper::Update, static_cast<double>(updates + 1));
  }
  rank.hyper.upload(*rank.memory, *rank.device);
}

Seeds Seeds::parse(std::string_view text) {
  constexpr std::string_view shared = ":shared";
  Seeds seeds;
  std::string_view digits = text;
  seeds.areShared = digits.ends_with(shared);
  if (seeds.areShared)
    digits.remove_suffix(shared.size());
  const char *end = digits.data() + digits.size();
  auto [last, error] = std::from_chars(digits.data(), end, seeds.first);
  // A rank's number is added.
  if (digits.empty() || error != std::errc() || last != end ||
      seeds.first > INT64_MAX)
    throw Error("expected a seed from 0 to " + std::to_string(INT64_MAX) +
                ", or one and :shared, found " + std::string(text));
  return seeds;
}

void Session::setSeeds(Seeds seeds) {
  for (Impl::RankData &data : impl->ranks)
    impl->onRank(data, [&] { setSeed(data.rank, seeds); });
}

void Session::observe(Observer observer) {
  for (Impl::RankData &data : impl->ranks)
    data.rank.observer = observer;
}

std::vector<std::byte> Session::generatorState(unsigned rank) const {
  std::vector<std::byte> bytes;
  const Impl::RankData &data = impl->local(rank);
  impl->onRank(data, [&] {
    at::Generator generator = data.rank.generator;
    std::lock_guard lock(generator.mutex());
    at::Tensor state = generator.get_state();
    std::span found(static_cast<const std::byte *>(state.const_data_ptr()),
                    state.nbytes());
    bytes.assign(found.begin(), found.end());
  });
  return bytes;
}

void Session::setGeneratorState(unsigned rank,
                                std::span<const std::byte> state) {
  const Impl::RankData &data = impl->local(rank);
  impl->onRank(data, [&] {
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(state.size())},
                                 at::TensorOptions(c10::kByte));
    std::ranges::copy(state, static_cast<std::byte *>(bytes.data_ptr()));
    at::Generator generator = data.rank.generator;
    std::lock_guard lock(generator.mutex());
    generator.set_state(bytes);
  });
}

void Session::run(std::string_view program, Roles roles) {
  impl->run(program, roles);
}

void Session::setTimed(bool isTimed) {
  impl->settle();
  for (Impl::RankData &data : impl->ranks)
    data.rank.timed = isTimed;
}

std::vector<Span> Session::spans() const {
  std::vector<Span> spans;
  for (const Impl::RankData &data : impl->ranks)
    for (const std::unique_ptr<Program> &program : data.programs)
      program->appendSpans(spans);
  return spans;
}

std::vector<Span> Session::latestCollectives() const {
  std::vector<Span> spans;
  for (const Impl::RankData &data : impl->ranks)
    data.rank.flights.append(spans);
  return spans;
}

std::uint64_t Session::highestByte() const {
  if (!impl->options.canary)
    throw Error("the canary is off");
  std::uint64_t highest = 0;
  std::vector<unsigned char> chunk(std::size_t{1} << 20);
  for (const Impl::RankData &data : impl->ranks)
    impl->onRank(data, [&] {
      const Memory &memory = *data.rank.memory;
      std::uint64_t end = memory.transientBytes(), found = 0;
      end += end ? Memory::guardBytes : 0;
      while (end != 0 && found == 0) {
        std::uint64_t bytes = std::min<std::uint64_t>(chunk.size(), end);
        end -= bytes;
        data.rank.device->copy(Stream::Compute, chunk.data(),
                               memory.transient() + end, bytes);
        data.rank.device->synchronize();
        for (std::uint64_t i = bytes; i-- > 0 && found == 0;)
          if (chunk[i] != canaryByte)
            found = end + i + 1;
      }
      std::uint64_t persistent =
          memory.arenaBytes(Space::Device) - memory.transientBytes();
      highest = std::max(highest, persistent + found);
    });
  return highest;
}
