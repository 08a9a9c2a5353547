//===- FakeNccl.cpp - NCCL of ordinary memory -----------------------------===//
#include "FakeNccl.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

using namespace fsdp;
using namespace fsdp::fakenccl;

static constexpr std::size_t outboxBytes = std::size_t{64} << 20; // Sparse.
static constexpr int mostRanks = 64;

namespace {

/// What a member says of an operation, and the others compare.
struct Description {
  enum class Kind : std::uint32_t {
    AllGather,
    ReduceScatter,
    AllReduce,
    Broadcast,
    Window,
    Split
  };
  Kind kind;
  std::uint32_t type = 0, root = 0;
  std::uint64_t count = 0;
  double factor = 1;

  bool operator==(const Description &) const = default;
};

/// In shared memory.
struct Member {
  std::atomic<std::uint64_t> posted, consumed; ///< Numbers of operations.
  Description description;
};
struct Meeting {
  std::atomic<std::uint32_t> size, joined, connected;
  std::array<Member, mostRanks> members;
};

std::size_t itemOf(ncclDataType_t type) {
  switch (type) {
  case ncclUint8:
    return 1;
  case ncclFloat16:
  case ncclBfloat16:
    return 2;
  case ncclFloat32:
    return 4;
  default:
    return 8;
  }
}

thread_local Setup setupHere;
thread_local std::vector<std::string> calls;
thread_local int made = 0;

class Communicator;

/// Of all threads.
std::mutex mutex;
std::set<Communicator *> living;
std::vector<std::string> endings;
/// Blocks, and whose they are.
std::map<void *, FakeCuda *> blocks;

/// What NCCL does not survive.
[[noreturn]] void die(const char *what) {
  std::fprintf(stderr, "NCCL: %s\n", what);
  std::abort();
}

void note(std::string call) { calls.push_back(std::move(call)); }

struct Operation {
  Description description;
  const std::byte *source;
  std::byte *target;
  cudaStream_t stream;
};

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

/// One communicator of a rank. Kernels keep it.
class Communicator : public std::enable_shared_from_this<Communicator> {
public:
  Communicator(int size, const std::string &name, int rank, bool isBlocking)
      : setup(setupHere), random(setup.seed * 64 + rank), size(size),
        rank(rank), name(name), isBlocking(isBlocking),
        isAbsent(made++ == setup.absentFrom) {
    int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    bytes = outboxesAt + size * outboxBytes;
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
      std::abort();
    void *place =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (place == MAP_FAILED)
      std::abort();
    memory = static_cast<std::byte *>(place);
    std::uint32_t none = 0;
    if (!meeting().size.compare_exchange_strong(none, size) &&
        none != static_cast<std::uint32_t>(size))
      state = ncclInvalidUsage;
    if (!isAbsent)
      meeting().joined.fetch_add(1);
    std::lock_guard lock(mutex);
    living.insert(this);
  }
  ~Communicator() {
    ::munmap(memory, bytes);
    ::shm_unlink(name.c_str());
    std::lock_guard lock(mutex);
    living.erase(this);
  }

  /// The rank's thread is in a call. Another one must not free what it uses.
  class Inside {
  public:
    explicit Inside(Communicator &self) : self(self) { ++self.insiders; }
    ~Inside() { --self.insiders; }
    Inside(const Inside &) = delete;
    Inside &operator=(const Inside &) = delete;

  private:
    Communicator &self;
  };

  /// All members have made it.
  bool isComplete() {
    if (meeting().joined.load() < static_cast<unsigned>(size))
      return false;
    ::shm_unlink(name.c_str());
    return true;
  }

  ncclResult_t poll() {
    if (isBlocking || state != ncclSuccess)
      return state;
    if (delay() || !isComplete())
      return ncclInProgress;
    if (!pending.empty() && pending.front()())
      pending.erase(pending.begin());
    return pending.empty() ? state.load() : ncclInProgress;
  }

  /// The latest call must be complete, and the communicator not revoked.
  ncclResult_t ready() {
    if (isRevoked)
      return ncclInvalidUsage;
    return pending.empty() ? ncclSuccess : ncclInvalidArgument;
  }

  /// Of a member that does not block: members of one color meet again.
  void split(int color, int key, ncclComm_t *to, bool isChildBlocking);

  /// The first collective connects the members, and waits for them.
  ncclResult_t connect() {
    if (std::exchange(isConnected, true))
      return ncclSuccess;
    meeting().connected.fetch_add(1);
    while (meeting().connected.load() < static_cast<unsigned>(size)) {
      if (isRevoked)
        return ncclInternalError;
      pause();
    }
    return ncclSuccess;
  }

  /// A collective: what is on a stream.
  void enqueue(const Operation &operation) {
    {
      std::lock_guard lock(own);
      streams.insert(operation.stream);
      ++inFlight;
    }
    auto kernel = [self = shared_from_this(), operation, number = ++latest,
                   isPosted = false]() mutable {
      if (!self->advance(operation, number, isPosted))
        return false;
      --self->inFlight;
      return true;
    };
    double elements = static_cast<double>(operation.description.count);
    setup.cuda->launchPolled(operation.stream, std::move(kernel),
                             /*microseconds=*/1 + elements / 256);
  }

  /// Kernels of the CPU follow at once; a GPU goes on by itself.
  ncclResult_t followUp() {
    while (setup.cuda->isDoneAtOnce() && isBusy()) {
      if (state != ncclSuccess)
        return state;
      if (isRevoked)
        return ncclInternalError;
      pause();
    }
    return state;
  }

  /// A call that all members make, and that returns when they have.
  ncclResult_t meet(const Operation &operation) {
    std::uint64_t number = ++latest;
    bool isPosted = false;
    for (;;) {
      isBusy();
      if (advance(operation, number, isPosted))
        return isRevoked ? ncclInternalError : state.load();
      if (state != ncclSuccess)
        return state;
      if (isRevoked)
        return ncclInternalError;
      pause();
    }
  }

  /// Makes kernels and calls return.
  ncclResult_t revoke() {
    if (!isBlocking)
      die("revoked while it may still connect");
    return isRevoked.exchange(true) ? ncclInvalidArgument : ncclSuccess;
  }

  void abort(bool isAlone) {
    if (insiders)
      die("aborted under a thread that uses it");
    isAborted = true;
    if (!isAlone)
      return;
    std::lock_guard lock(mutex);
    for (Communicator *other : living)
      if (other != this && other->setup.cuda == setup.cuda && other->inFlight &&
          !other->isRevoked)
        die("aborted alone, it waits for kernels of another communicator");
  }

  /// Waits for the kernels.
  void settle() {
    while (isBusy())
      pause();
  }

  int addFactor(double factor) {
    factors.push_back(factor);
    return ncclNumOps + static_cast<int>(factors.size()) - 1;
  }
  double factorOf(int op) const {
    return op < ncclNumOps ? 1 : factors[op - ncclNumOps];
  }
  int members() const { return size; }

private:
  /// What a member wants of a split.
  struct Part {
    int color, key;
  };

  static constexpr std::size_t outboxesAt = (sizeof(Meeting) + 4095) & ~4095ull;

  Meeting &meeting() { return *reinterpret_cast<Meeting *>(memory); }
  std::byte *outbox(int member) {
    return memory + outboxesAt + member * outboxBytes;
  }
  bool delay() {
    std::lock_guard lock(own);
    return random() % 3 == 0;
  }

  /// Drives the streams with its kernels.
  bool isBusy() {
    std::set<cudaStream_t> all;
    {
      std::lock_guard lock(own);
      all = streams;
    }
    for (cudaStream_t stream : all)
      setup.cuda->api.streamQuery(stream);
    return inFlight != 0;
  }

  /// True when the operation is done.
  bool advance(const Operation &operation, std::uint64_t number,
               bool &isPosted) {
    if ((isAborted || isRevoked) && !setup.isDeaf)
      return true;
    const Description &what = operation.description;
    bool isFaulty = isBlocking && number != 0;
    if (isFaulty && number == setup.failsAt)
      state = ncclRemoteError;
    if (state != ncclSuccess || (isFaulty && number == setup.hangsAt) ||
        delay())
      return false;
    Member &own = meeting().members[rank];
    auto all = [&](auto counter, std::uint64_t goal) {
      for (int member = 0; member != size; ++member)
        if ((meeting().members[member].*counter).load() < goal)
          return false;
      return true;
    };
    if (!isPosted) {
      if (own.posted.load() + 1 != number ||
          !all(&Member::consumed, number - 1))
        return false;
      own.description = what;
      std::size_t given = bytesGiven(what);
      if (given > outboxBytes)
        state = ncclInternalError;
      else if (given)
        std::memcpy(outbox(rank), operation.source, given);
      own.posted.store(number);
      isPosted = true;
    }
    if (!all(&Member::posted, number))
      return false;
    for (int member = 0; member != size; ++member)
      if (!(meeting().members[member].description == what)) {
        state = ncclInvalidUsage; // NCCL itself may do anything.
        return false;
      }
    take(operation);
    own.consumed.store(number);
    return true;
  }

  std::size_t bytesGiven(const Description &what) const {
    std::size_t piece = what.count * itemOf(ncclDataType_t(what.type));
    switch (what.kind) {
    case Description::Kind::AllGather:
    case Description::Kind::AllReduce:
      return piece;
    case Description::Kind::ReduceScatter:
      return piece * size;
    case Description::Kind::Broadcast:
      return static_cast<int>(what.root) == rank ? piece : 0;
    case Description::Kind::Split:
      return sizeof(Part);
    default:
      return 0;
    }
  }

  void take(const Operation &operation) {
    const Description &what = operation.description;
    auto type = ncclDataType_t(what.type);
    std::size_t piece = what.count * itemOf(type);
    switch (what.kind) {
    case Description::Kind::AllGather:
      for (int member = 0; member != size; ++member)
        if (piece)
          std::memcpy(operation.target + member * piece, outbox(member), piece);
      break;
    case Description::Kind::Broadcast:
      if (piece)
        std::memcpy(operation.target, outbox(static_cast<int>(what.root)),
                    piece);
      break;
    case Description::Kind::Split:
      for (int member = 0; member != size; ++member)
        std::memcpy(operation.target + member * sizeof(Part), outbox(member),
                    sizeof(Part));
      break;
    case Description::Kind::Window:
      std::memcpy(operation.target, &operation.source, sizeof operation.source);
      break;
    case Description::Kind::ReduceScatter:
      sum(type, operation, rank * what.count);
      break;
    case Description::Kind::AllReduce:
      sum(type, operation, 0);
      break;
    default:
      break;
    }
  }

  void sum(ncclDataType_t type, const Operation &operation, std::size_t begin) {
    switch (type) {
    case ncclFloat16:
      return sum<c10::Half>(operation, begin);
    case ncclBfloat16:
      return sum<c10::BFloat16>(operation, begin);
    case ncclFloat32:
      return sum<float>(operation, begin);
    case ncclFloat64:
      return sum<double>(operation, begin);
    default:
      state = ncclInvalidArgument;
    }
  }

  /// An all-reduce has the same bits on all ranks, as a tree has.
  template <typename T>
  void sum(const Operation &operation, std::size_t begin) {
    const Description &what = operation.description;
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    auto factor = static_cast<Wide>(static_cast<T>(what.factor));
    bool isScattered = what.kind == Description::Kind::ReduceScatter;
    for (std::size_t i = 0; i != what.count; ++i) {
      T total{};
      for (int step = 0; step != size; ++step) {
        int member = (step + (isScattered ? rank + 1 : 1)) % size;
        T item;
        std::memcpy(&item, outbox(member) + (begin + i) * sizeof item,
                    sizeof item);
        auto scaled = static_cast<T>(static_cast<Wide>(item) * factor);
        total = step == 0 ? scaled
                          : static_cast<T>(static_cast<Wide>(total) +
                                           static_cast<Wide>(scaled));
      }
      std::memcpy(operation.target + i * sizeof total, &total, sizeof total);
    }
  }

  const Setup setup;
  mutable std::mutex own; ///< Of the numbers and the streams.
  std::minstd_rand random;
  const int size, rank;
  const std::string name;
  const bool isBlocking, isAbsent;
  std::size_t bytes = 0;
  std::byte *memory = nullptr;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> isAborted{false}, isRevoked{false};
  std::atomic<int> insiders{0}, inFlight{0};
  bool isConnected = false;
  std::uint64_t latest = 0;
  std::vector<std::function<bool()>> pending;
  std::set<cudaStream_t> streams;
  std::vector<double> factors;
};

/// Between ncclGroupStart and ncclGroupEnd.
thread_local int depth = 0;
thread_local ncclResult_t groupError = ncclSuccess;
thread_local std::vector<std::pair<std::shared_ptr<Communicator>, Operation>>
    group;
thread_local std::vector<ncclComm_t> revoked, aborted;

} // namespace

struct ncclComm {
  std::shared_ptr<Communicator> self;
};

void Communicator::split(int color, int key, ncclComm_t *to,
                         bool isChildBlocking) {
  // What this member says, then what all have said.
  auto parts = std::make_shared<std::vector<Part>>(1, Part{color, key});
  parts->resize(1 + static_cast<std::size_t>(size));
  Operation operation{{Description::Kind::Split},
                      reinterpret_cast<const std::byte *>(parts->data()),
                      reinterpret_cast<std::byte *>(parts->data() + 1),
                      nullptr};
  pending.emplace_back([=, this, number = ++latest, isPosted = false,
                        child = std::shared_ptr<Communicator>()]() mutable {
    if (!child) {
      if (!advance(operation, number, isPosted))
        return false;
      std::set<int> keys;
      for (std::size_t member = 1; member != parts->size(); ++member)
        if ((*parts)[member].color == color)
          keys.insert((*parts)[member].key);
      child = std::make_shared<Communicator>(
          static_cast<int>(keys.size()),
          name + "-" + std::to_string(number) + "-" + std::to_string(color),
          static_cast<int>(std::distance(keys.begin(), keys.find(key))),
          isChildBlocking);
    }
    if (!child->isComplete())
      return false;
    *to = std::make_unique<ncclComm>(child).release();
    return true;
  });
}

static ncclResult_t finishGroup() {
  ncclResult_t result = std::exchange(groupError, ncclSuccess);
  auto operations = std::exchange(group, {});
  for (auto &[comm, operation] : operations) {
    Communicator::Inside inside(*comm);
    if (result == ncclSuccess)
      result = comm->connect();
    if (result == ncclSuccess)
      comm->enqueue(operation);
  }
  for (auto &[comm, operation] : operations) {
    Communicator::Inside inside(*comm);
    if (result == ncclSuccess)
      result = comm->followUp();
  }
  auto end = [](const char *how, std::vector<ncclComm_t> &comms) {
    if (comms.empty())
      return;
    for (ncclComm_t comm : comms)
      comm->self->settle();
    std::lock_guard lock(mutex);
    endings.push_back(how + (" " + std::to_string(comms.size())));
  };
  end("revoked", revoked);
  revoked.clear();
  end("aborted", aborted);
  for (ncclComm_t comm : std::exchange(aborted, {}))
    std::unique_ptr<ncclComm>{comm};
  return result;
}

static ncclResult_t launch(ncclComm_t comm, Operation operation) {
  Communicator::Inside inside(*comm->self);
  ncclResult_t result = comm->self->ready();
  if (result == ncclSuccess)
    group.emplace_back(comm->self, operation);
  else
    groupError = result;
  return depth ? result : finishGroup();
}

static void noteCounted(const char *call, std::size_t count) {
  note(std::string(call) + " " + std::to_string(count));
}

void fakenccl::setUp(Setup given) {
  goOn(std::move(given));
  made = 0;
}

void fakenccl::goOn(Setup given) { setupHere = std::move(given); }

std::vector<std::string> fakenccl::takeLog() {
  return std::exchange(calls, {});
}

std::vector<std::string> fakenccl::takeEndings() {
  std::lock_guard lock(mutex);
  return std::exchange(endings, {});
}

int fakenccl::leaks() {
  std::lock_guard lock(mutex);
  return static_cast<int>(living.size() + blocks.size());
}

extern "C" {

ncclResult_t ncclMemAlloc(void **place, std::size_t bytes) {
  if (setupHere.allocate)
    *place = setupHere.allocate(bytes);
  else if (setupHere.cuda->api.malloc(place, bytes) != cudaSuccess)
    return ncclUnhandledCudaError;
  std::lock_guard lock(mutex);
  blocks[*place] = setupHere.allocate ? nullptr : setupHere.cuda;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void *place) {
  FakeCuda *owner = nullptr;
  {
    std::lock_guard lock(mutex);
    owner = blocks[place];
    blocks.erase(place);
  }
  if (owner)
    owner->api.free(place);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  *id = {};
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal,
                "/fsdp-fake-nccl-%d-%08x%08x", static_cast<int>(::getpid()),
                random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t *config) {
  if (size > mostRanks || rank >= size)
    return ncclInvalidArgument;
  if (config->blocking != 0)
    die("a call that blocks until all have come can't be given up");
  note("init " + std::to_string(rank) + " of " + std::to_string(size));
  *comm = std::make_unique<ncclComm>(
              std::make_shared<Communicator>(size, id.internal, rank, false))
              .release();
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t *child, ncclConfig_t *config) {
  if (ncclResult_t result = comm->self->ready())
    return result;
  note("split " + std::to_string(color) + " " + std::to_string(key) +
       (config->CTAPolicy == NCCL_CTA_POLICY_ZERO ? " on copy engines" : ""));
  *child = nullptr; // Until it is there.
  comm->self->split(color, key, child, config->blocking != 0);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
  *state = comm->self->poll();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  note("destroy");
  comm->self->settle();
  std::unique_ptr<ncclComm>{comm};
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  ncclResult_t result = comm->self->revoke();
  if (result == ncclSuccess)
    revoked.push_back(comm);
  return depth ? result : finishGroup();
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  note("abort");
  comm->self->abort(depth == 0);
  aborted.push_back(comm);
  return depth ? ncclSuccess : finishGroup();
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *place,
                                    std::size_t bytes, ncclWindow_t *window,
                                    int flags) {
  note("register " + std::to_string(bytes));
  if (!setupHere.hasWindows)
    return ncclInvalidUsage;
  {
    std::lock_guard lock(mutex);
    if (!blocks.contains(place) || flags != NCCL_WIN_COLL_SYMMETRIC)
      return ncclInvalidArgument;
  }
  Communicator::Inside inside(*comm->self);
  if (ncclResult_t result = comm->self->ready())
    return result;
  return comm->self->meet({{Description::Kind::Window, 0, 0, bytes},
                           static_cast<const std::byte *>(place),
                           reinterpret_cast<std::byte *>(window),
                           nullptr});
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
  note("deregister");
  std::lock_guard lock(mutex);
  return blocks.contains(window) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                      ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  double factor = type == ncclFloat64   ? *static_cast<double *>(scalar)
                  : type == ncclFloat32 ? *static_cast<float *>(scalar)
                  : type == ncclFloat16
                      ? float(*static_cast<c10::Half *>(scalar))
                      : float(*static_cast<c10::BFloat16 *>(scalar));
  char text[64];
  std::snprintf(text, sizeof text, "factor %g", factor);
  note(text);
  *op = static_cast<ncclRedOp_t>(comm->self->addFactor(factor));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  note("groupStart");
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  note("groupEnd");
  return --depth ? ncclSuccess : finishGroup();
}

ncclResult_t ncclAllGather(const void *source, void *target, std::size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  noteCounted("allGather", count);
  return launch(comm, {{Description::Kind::AllGather, type, 0, count},
                       static_cast<const std::byte *>(source),
                       static_cast<std::byte *>(target),
                       stream});
}

ncclResult_t ncclReduceScatter(const void *source, void *target,
                               std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  noteCounted("reduceScatter", count);
  return launch(comm, {{Description::Kind::ReduceScatter, type, 0, count,
                        comm->self->factorOf(op)},
                       static_cast<const std::byte *>(source),
                       static_cast<std::byte *>(target),
                       stream});
}

ncclResult_t ncclAllReduce(const void *source, void *target, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  noteCounted("allReduce", count);
  return launch(comm, {{Description::Kind::AllReduce, type, 0, count,
                        comm->self->factorOf(op)},
                       static_cast<const std::byte *>(source),
                       static_cast<std::byte *>(target),
                       stream});
}

ncclResult_t ncclBroadcast(const void *source, void *target, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  noteCounted("broadcast", count);
  return launch(comm, {{Description::Kind::Broadcast, type,
                        static_cast<std::uint32_t>(root), count},
                       static_cast<const std::byte *>(source),
                       static_cast<std::byte *>(target),
                       stream});
}

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "it is broken";
}

const char *ncclGetLastError(ncclComm_t) { return ""; }

} // extern "C"
