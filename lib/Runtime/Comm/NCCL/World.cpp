//===- World.cpp - Ranks as processes that NCCL connects ------------------===//
#include "World.h"

#include "../../DTypes.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <span>

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
  NCCLComm(NCCLWorld &world, const ncclUniqueId &id, const RankContext &rank,
           const Group &group, NCCLDevice &device)
      : world(world), device(device), stream(device.stream(group.stream)),
        timeout(rank.timeout), index(group.index),
        size(static_cast<unsigned>(group.members.size())),
        ranks(group.members) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // Copy engines where memory is registered: the processors compute.
    if (size > 1)
      config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    checkNCCL(ncclCommInitRankConfig(&comm, static_cast<int>(size), id,
                                     static_cast<int>(index), &config),
              "ncclCommInitRankConfig");
    try {
      settle("ncclCommInitRankConfig");
    } catch (const Error &) {
      ncclCommAbort(comm);
      throw;
    }
    device.comms.push_back(comm);
  }

  ~NCCLComm() override {
    std::erase(device.comms, comm);
    try {
      if (world.isAborted())
        throw Error("a kernel may still wait for a peer");
      for (ncclWindow_t window : windows)
        if (window)
          checkNCCL(ncclCommWindowDeregister(comm, window),
                    "ncclCommWindowDeregister");
      checkNCCL(ncclCommFinalize(comm), "ncclCommFinalize");
      settle("ncclCommFinalize");
      ncclCommDestroy(comm);
    } catch (const Error &) {
      ncclCommAbort(comm);
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
    checkNCCL(ncclGroupStart(), "ncclGroupStart");
    for (const Planned &one : bucket)
      if (one.collective.reduce != ReduceKind::Max)
        enqueue(one);
    checkNCCL(ncclGroupEnd(), "ncclGroupEnd");
    settle("ncclGroupEnd");
    for (const Planned &one : bucket)
      if (one.collective.reduce == ReduceKind::Max)
        takeLargest(one.collective);
      else if (one.divisor != 1)
        divideSum(one);
  }

  /// Peers have read the sources of a collective that is complete.
  void drain(std::size_t, std::size_t) override {}

  void barrier() override {
    checkNCCL(
        ncclAllReduce(token, token, 1, ncclFloat32, ncclSum, comm, stream),
        "ncclAllReduce");
    settle("ncclAllReduce");
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

  void enqueue(const Planned &one) {
    const Collective &c = one.collective;
    std::size_t bytes = c.count * itemSize(c.sourceType);
    if (c.kind == Collective::Kind::AllGather)
      checkNCCL(
          ncclAllGather(c.source, c.target, bytes, ncclUint8, comm, stream),
          "ncclAllGather");
    else if (c.reduce == ReduceKind::First)
      checkNCCL(
          ncclBroadcast(c.source, c.target, bytes, ncclUint8, 0, comm, stream),
          "ncclBroadcast");
    else if (c.kind == Collective::Kind::ReduceScatter)
      checkNCCL(ncclReduceScatter(c.source, c.target, c.count,
                                  *summedType(c.via), one.op, comm, stream),
                "ncclReduceScatter");
    else
      checkNCCL(ncclAllReduce(c.source, c.target, c.count, *summedType(c.via),
                              one.op, comm, stream),
                "ncclAllReduce");
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
      checkNCCL(ncclAllGather(c.source + at * item, arrivals, count * item,
                              ncclUint8, comm, stream),
                "ncclAllGather");
      settle("ncclAllGather");
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
      // NCCL's thread writes it when it comes to it.
      ncclWindow_t &window = windows.emplace_back(nullptr);
      ncclResult_t result = ncclCommWindowRegister(
          comm, block.begin, block.bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
      // These GPUs have no symmetric memory: collectives need none.
      if (result == ncclInvalidUsage)
        return;
      checkNCCL(result, "ncclCommWindowRegister");
      settle("ncclCommWindowRegister");
    }
  }

  void settle(const char *call) {
    world.await([&] { return isSettled(comm, call); }, timeout,
                [&] {
                  std::string text = "the others of ranks";
                  for (unsigned rank : ranks)
                    text += " " + std::to_string(rank);
                  return text + " to join " + call;
                });
  }

  NCCLWorld &world;
  NCCLDevice &device;
  const cudaStream_t stream;
  const std::chrono::milliseconds timeout;
  const unsigned index, size;
  const std::vector<unsigned> ranks; ///< Of the members.
  ncclComm_t comm = nullptr;
  std::vector<Planned> planned;
  std::map<double, ncclRedOp_t> factors; ///< By the divisor, of f16.
  std::deque<ncclWindow_t> windows;      ///< Null where NCCL has made none.
  /// The workspace, and where sources arrive and sums are made in it.
  std::byte *token = nullptr, *arrivals = nullptr, *scratch = nullptr;
  std::size_t workspace = 0, chunk = 0; ///< Bytes; elements.
};

} // namespace fsdp

NCCLWorld::NCCLWorld(const CudaApi &cuda) : api(cuda) {
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

ncclUniqueId NCCLWorld::agreeOnId(const RankContext &rank,
                                  unsigned communicator, const Group &group) {
  unsigned first = group.members.front();
  std::string key = "nccl " + std::to_string(communicator) + " of rank " +
                    std::to_string(first) + ", " +
                    std::to_string(++opened[{communicator, first}]);
  ncclUniqueId id;
  if (group.index == 0) {
    checkNCCL(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (group.members.size() > 1)
      rank.store->set(key, {id.internal, sizeof id.internal});
    return id;
  }
  std::optional<std::string> text;
  await(
      [&] {
        text = rank.store->get(key, 100ms);
        return text.has_value();
      },
      rank.timeout,
      [&] { return "rank " + std::to_string(first) + " to connect"; });
  if (text->size() != sizeof id.internal)
    throw Error("expected an id of NCCL in the store, found something else");
  text->copy(id.internal, sizeof id.internal);
  return id;
}

std::unique_ptr<Comm> NCCLWorld::openComm(const RankContext &rank,
                                          unsigned communicator,
                                          const Group &group,
                                          NCCLDevice &device) {
  return std::make_unique<NCCLComm>(*this, agreeOnId(rank, communicator, group),
                                    rank, group, device);
}

void NCCLDevice::finish(cudaStream_t stream) const {
  world.await(
      [&] {
        for (ncclComm_t comm : comms)
          isSettled(comm, "a collective");
        cudaError_t state = cuda().streamQuery(stream);
        if (state != cudaErrorNotReady)
          check(state, "cudaStreamQuery");
        return state == cudaSuccess;
      },
      timeout, [] { return "the work that it has given to its GPU"; });
}
