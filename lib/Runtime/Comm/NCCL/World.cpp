//===- World.cpp - Ranks as processes that NCCL connects ------------------===//
#include "World.h"

#include "../../Support/DTypes.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

using namespace fsdp;
using namespace std::chrono_literals;
using planfile::DType;
using planfile::ReduceKind;

/// What sums of this device that are not NCCL's need at once, at most.
static constexpr std::size_t mostChunk = std::size_t{1} << 20; // Elements.

void fsdp::checkNCCL(ncclResult_t result, const char *call) {
  if (result == ncclSuccess || result == ncclInProgress)
    return;
  std::string text = std::string(call) + ": " + ncclGetErrorString(result);
  if (const char *reason = ncclGetLastError(nullptr); reason && *reason)
    text += std::string(" (") + reason + ")";
  throw Error(text, Failure::RankFailed);
}

bool fsdp::isSettled(ncclComm_t comm, const char *call) {
  ncclResult_t state = ncclSuccess;
  checkNCCL(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  checkNCCL(state, call);
  return state != ncclInProgress;
}

/// As NCCL knows it; nothing if it does not sum this type.
static std::optional<ncclDataType_t> summedType(DType type) {
  switch (type) {
  case DType::F16:
    return ncclFloat16;
  case DType::BF16:
    return ncclBfloat16;
  case DType::F32:
    return ncclFloat32;
  case DType::F64:
    return ncclFloat64;
  default:
    return std::nullopt;
  }
}

namespace fsdp {

class NCCLComm : public Comm {
public:
  NCCLComm(NCCLWorld &world, const RankContext &rank, const Group &group,
           NCCLDevice &device)
      : world(world), device(device), stream(device.stream(group.stream)),
        size(static_cast<unsigned>(group.members.size())),
        place(device.split(rank, static_cast<int>(group.members.front()),
                           static_cast<int>(group.index), group.members)),
        comm(place->comm) {}

  ~NCCLComm() override {
    try {
      world.watch().check();
      device.synchronize();
      call("ncclCommWindowDeregister", [&] {
        ncclResult_t result = ncclSuccess;
        for (ncclWindow_t window : windows)
          if (window && result == ncclSuccess)
            result = ncclCommWindowDeregister(comm, window);
        return result;
      });
      device.close(place);
    } catch (const Error &) {
      world.abort(); // The device aborts all that are left.
    }
  }

  void prepare(std::span<const Collective> given) override {
    std::size_t gathered = 0;
    for (const Collective &c : given) {
      planned.push_back({c});
      if (c.kind == Collective::Kind::AllGather ||
          c.reduce == ReduceKind::First)
        continue;
      if (c.sourceType != c.targetType || c.via != c.targetType ||
          !summedType(c.via))
        throw Error(std::string("NCCL: expected a sum of one type, f16, bf16, "
                                "f32 or f64; found ") +
                    EnumNameDType(c.sourceType) + " to " +
                    EnumNameDType(c.targetType));
      if (c.reduce == ReduceKind::Sum)
        divide(planned.back());
      if (c.reduce != ReduceKind::Max)
        continue;
      chunk = std::max(chunk, std::min(c.count, mostChunk));
      gathered = std::max(gathered, std::min(c.count, mostChunk) * size *
                                        itemSize(c.sourceType));
    }
    std::size_t head = sizeof(float); // The token of the barrier.
    head = (head + gathered + Sum::scratchItem) / Sum::scratchItem *
           Sum::scratchItem;
    workspace = head + chunk * Sum::scratchItem;
    token = device.allocate(planfile::Space::Device, workspace);
    arrivals = token + sizeof(double);
    scratch = token + head;
    registerMemory();
  }

  void run(std::size_t first, std::size_t count) override {
    std::span<const Planned> bucket(planned.data() + first, count);
    call("ncclGroupEnd", [&] {
      ncclResult_t result = ncclGroupStart();
      for (const Planned &one : bucket)
        if (one.collective.reduce != ReduceKind::Max && result == ncclSuccess)
          result = enqueue(one);
      // Also after a failure: whatever follows would be in the group.
      ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
    for (const Planned &one : bucket)
      if (one.collective.reduce == ReduceKind::Max)
        takeLargest(one.collective);
      else if (one.divisor != 1)
        divideSum(one);
  }

  /// Peers have read the sources of a collective that is complete.
  void drain(std::size_t, std::size_t) override {}

  void barrier() override {
    call("ncclAllReduce", [&] {
      return ncclAllReduce(token, token, 1, ncclFloat32, ncclSum, comm, stream);
    });
    device.synchronize();
  }

  std::size_t workspaceBytes() const override { return workspace; }

private:
  struct Planned {
    Collective collective;
    ncclRedOp_t op = ncclSum;
    double divisor = 1; ///< Of the sum, when it is there.
  };

  /// Sums are divided when they are there, in one kernel over a shard: NCCL has
  /// no symmetric kernels, nor sums in the switch, for factors of the sources.
  /// Only sums of f16, which may be too large, need what FSDP divides by ahead
  /// of them (FSDP1 `_get_gradient_predivide_factor`), a power of two.
  void divide(Planned &one) {
    const Collective &c = one.collective;
    int exponent = 0;
    one.divisor = c.pre * c.post;
    if (c.via != DType::F16 || c.pre == 1 ||
        std::frexp(c.pre, &exponent) != 0.5)
      return;
    one.divisor = c.post;
    c10::Half factor = static_cast<float>(1 / c.pre);
    auto [known, isNew] = factors.try_emplace(c.pre, ncclSum);
    if (isNew)
      checkNCCL(ncclRedOpCreatePreMulSum(&known->second, &factor, ncclFloat16,
                                         ncclScalarHostImmediate, comm),
                "ncclRedOpCreatePreMulSum");
    one.op = known->second;
  }

  /// Makes a call of NCCL, which may block, and marks its end in the stream.
  template <typename Job> void call(const char *name, const Job &job) {
    ncclResult_t result = ncclSuccess;
    {
      NCCLWatch::Call inside(world.watch(), place);
      result = job();
      if (result == ncclSuccess)
        device.record(stream, place->done.get());
    }
    if (result == ncclSuccess)
      return;
    world.watch().check(); // Why it has failed.
    checkNCCL(result, name);
  }

  ncclResult_t enqueue(const Planned &one) {
    const Collective &c = one.collective;
    std::size_t bytes = c.count * itemSize(c.sourceType);
    if (c.kind == Collective::Kind::AllGather)
      return ncclAllGather(c.source, c.target, bytes, ncclUint8, comm, stream);
    if (c.reduce == ReduceKind::First)
      return ncclBroadcast(c.source, c.target, bytes, ncclUint8, 0, comm,
                           stream);
    if (c.kind == Collective::Kind::ReduceScatter)
      return ncclReduceScatter(c.source, c.target, c.count, *summedType(c.via),
                               one.op, comm, stream);
    return ncclAllReduce(c.source, c.target, c.count, *summedType(c.via),
                         one.op, comm, stream);
  }

  void divideSum(const Planned &one) {
    const Collective &c = one.collective;
    const std::byte *sum = c.target;
    if (c.count != 0)
      device.cuda().sum({{c.via, c.via, c.via, 1, one.divisor},
                         {&sum, 1},
                         0,
                         c.target,
                         c.count,
                         nullptr,
                         0},
                        stream);
  }

  /// NCCL's maximum leaves out what is no number.
  void takeLargest(const Collective &c) {
    std::size_t item = itemSize(c.sourceType);
    std::vector<const std::byte *> sources(size);
    for (std::size_t at = 0; at < c.count; at += chunk) {
      std::size_t count = std::min(chunk, c.count - at);
      call("ncclAllGather", [&] {
        return ncclAllGather(c.source + at * item, arrivals, count * item,
                             ncclUint8, comm, stream);
      });
      for (unsigned member = 0; member != size; ++member)
        sources[member] = arrivals + member * count * item;
      device.cuda().sum({{c.via, c.via, c.via, 1, 1, ReduceKind::Max},
                         sources,
                         0,
                         c.target + at * item,
                         count,
                         scratch,
                         chunk},
                        stream);
    }
  }

  /// All members have the same blocks in the same order, and use the same.
  void registerMemory() {
    if (size == 1)
      return;
    for (const NCCLWorld::Block &block : world.blocks()) {
      auto contains = [&](const std::byte *place) {
        const auto *begin = static_cast<const std::byte *>(block.begin);
        return place >= begin && place < begin + block.bytes;
      };
      if (std::ranges::none_of(planned, [&](const Planned &one) {
            return contains(one.collective.source) ||
                   contains(one.collective.target);
          }))
        continue;
      ncclWindow_t &window = windows.emplace_back(nullptr);
      bool isKnown = true;
      call("ncclCommWindowRegister", [&] {
        ncclResult_t result = ncclCommWindowRegister(
            comm, block.begin, block.bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
        // These GPUs have no symmetric memory: collectives need none.
        isKnown = result != ncclInvalidUsage || world.watch().isAborted();
        return isKnown ? result : ncclSuccess;
      });
      if (!isKnown)
        return;
    }
  }

  NCCLWorld &world;
  NCCLDevice &device;
  const cudaStream_t stream;
  const unsigned size;
  const NCCLWatch::Place place;
  const ncclComm_t comm;
  std::vector<Planned> planned;
  std::map<double, ncclRedOp_t> factors; ///< By the divisor, of f16.
  std::vector<ncclWindow_t> windows;     ///< Null where NCCL has made none.
  /// The workspace, and where sources arrive and sums are made in it.
  std::byte *token = nullptr, *arrivals = nullptr, *scratch = nullptr;
  std::size_t workspace = 0, chunk = 0; ///< Bytes; elements.
};

} // namespace fsdp

NCCLWorld::NCCLWorld(const CudaApi &cuda, unsigned size)
    : api(cuda), size(size), watching(std::make_shared<NCCLWatch>(api)) {
  api.malloc = [this](void **place, std::size_t bytes) {
    checkNCCL(ncclMemAlloc(place, bytes), "ncclMemAlloc");
    allocated.push_back({*place, bytes});
    return cudaSuccess;
  };
  api.free = [this](void *place) {
    std::erase_if(allocated, [&](Block block) { return block.begin == place; });
    ncclMemFree(place);
    return cudaSuccess;
  };
}

ncclUniqueId NCCLWorld::agreeOnId(const RankContext &rank) {
  std::string key = "nccl, " + std::to_string(++connected);
  ncclUniqueId id;
  if (rank.rank == 0) {
    checkNCCL(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (size > 1)
      rank.store->set(key, {id.internal, sizeof id.internal});
    return id;
  }
  std::optional<std::string> text;
  await(
      [&] {
        text = rank.store->get(key, 100ms);
        return text.has_value();
      },
      rank.timeout, [] { return "rank 0 to connect"; });
  if (text->size() != sizeof id.internal)
    throw Error("expected an id of NCCL in the store, found something else");
  text->copy(id.internal, sizeof id.internal);
  return id;
}

std::unique_ptr<Comm> NCCLWorld::openComm(const RankContext &rank,
                                          const Group &group,
                                          NCCLDevice &device) {
  return std::make_unique<NCCLComm>(*this, rank, group, device);
}

//===----------------------------------------------------------------------===//
// The communicators of a rank
//===----------------------------------------------------------------------===//

/// How long communicators may take to be revoked: a wait of a copy engine for a
/// peer does not end before its process does.
static constexpr std::chrono::milliseconds grace = 5s;

static std::string spellRanks(const std::vector<unsigned> &ranks) {
  std::string text = "ranks";
  for (unsigned rank : ranks)
    text += " " + std::to_string(rank);
  return text;
}

void NCCLDevice::connect(const RankContext &rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  // No collective is ever run here.
  config.minCTAs = config.maxCTAs = 1;
  ncclUniqueId id = world.agreeOnId(rank);
  checkNCCL(ncclCommInitRankConfig(&everyone, static_cast<int>(world.size), id,
                                   static_cast<int>(rank.rank), &config),
            "ncclCommInitRankConfig");
  settle("ncclCommInitRankConfig");
}

void NCCLDevice::settle(const char *call) const {
  world.await([&] { return isSettled(everyone, call); }, timeout,
              [&] {
                std::vector<unsigned> ranks(world.size);
                std::iota(ranks.begin(), ranks.end(), 0U);
                return "the others of " + spellRanks(ranks) + " to join " +
                       call;
              });
}

NCCLWatch::Place NCCLDevice::split(const RankContext &rank, int color, int key,
                                   const std::vector<unsigned> &members) {
  if (!everyone)
    connect(rank);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  // Copy engines where memory is registered: the processors compute.
  if (members.size() > 1)
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  CudaEvent done = makeEvent(cuda(), rank.rank);
  checkNCCL(ncclCommSplit(everyone, color, key, &coming, &config),
            "ncclCommSplit");
  settle("ncclCommSplit");
  comms.push_back(std::exchange(coming, nullptr));
  return world.watch().add({comms.back(), static_cast<int>(index), timeout,
                            spellRanks(members), std::move(done)});
}

void NCCLDevice::close(NCCLWatch::Place place) {
  ncclComm_t comm = place->comm;
  if (!world.watch().remove(place))
    return;
  std::erase(comms, comm);
  checkNCCL(ncclCommDestroy(comm), "ncclCommDestroy");
}

void NCCLDevice::abortAll() {
  std::optional<std::vector<ncclComm_t>> revoked = world.watch().takeRevoked(
      std::min<NCCLWatch::Clock::duration>(timeout, grace));
  if (!revoked)
    return abandon();
  ncclGroupStart();
  // First: that joins NCCL's thread, which may be about to write `coming`.
  if (everyone)
    ncclCommAbort(everyone);
  if (coming)
    ncclCommAbort(coming);
  for (ncclComm_t comm : *revoked)
    ncclCommAbort(comm);
  ncclGroupEnd();
}

NCCLDevice::~NCCLDevice() {
  if (world.watch().isAborted())
    abortAll();
  else if (everyone)
    ncclCommDestroy(everyone);
}

void NCCLDevice::awaitWork(const std::function<cudaError_t()> &query) const {
  world.await(
      [&] {
        for (ncclComm_t comm : comms)
          isSettled(comm, "a collective");
        cudaError_t state = query();
        if (state != cudaErrorNotReady)
          check(state, "waiting for its GPU");
        return state == cudaSuccess;
      },
      timeout,
      [&] {
        return world.watch().describeLatest().value_or(
            "the work that it has given to its GPU");
      });
}

void NCCLDevice::finish(cudaStream_t stream) const {
  awaitWork([&] { return cuda().streamQuery(stream); });
}

void NCCLDevice::finish(cudaEvent_t event) const {
  awaitWork([&] { return cuda().eventQuery(event); });
}
