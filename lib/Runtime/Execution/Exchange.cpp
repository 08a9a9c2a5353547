//===- Exchange.cpp - Bytes from every rank to every rank -----------------===//
#include "Exchange.h"

#include "SessionImpl.h"

#include <algorithm>
#include <numeric>

using namespace fsdp;

/// What all ranks show at once, at most, as long as they show anything.
static constexpr std::size_t allBytes = std::size_t{8} << 20;
static constexpr std::size_t leastBytes = 4096;

Exchange::Exchange(Backend &backend, const RankContext &rank,
                   unsigned communicator, unsigned worldSize, Device &device,
                   bool isSmall)
    : device(device), rank(rank.rank), worldSize(worldSize) {
  std::size_t most =
      isSmall ? smallBytes : std::max(allBytes / worldSize, leastBytes);
  for (std::size_t size = most; size >= smallBytes; size /= 16)
    sizes.insert(sizes.begin(), size);
  source = device.allocate(planfile::Space::Device, most);
  target = device.allocate(planfile::Space::Device, most * worldSize);
  Group everyone;
  everyone.members.resize(worldSize);
  std::iota(everyone.members.begin(), everyone.members.end(), 0u);
  everyone.index = rank.rank;
  everyone.stream = planfile::Stream::Compute;
  comm = backend.openComm(rank, communicator, everyone, device);
  std::vector<Collective> collectives;
  for (bool toFirst : {false, true})
    for (std::size_t size : sizes)
      collectives.push_back({.kind = Collective::Kind::AllGather,
                             .sourceType = planfile::DType::U8,
                             .targetType = planfile::DType::U8,
                             .source = source,
                             .target = target,
                             .count = size,
                             .toFirst = toFirst});
  comm->prepare(collectives);
}

void Exchange::run(std::span<const std::byte> mine, std::size_t bytes,
                   bool toFirst) {
  std::size_t which = 0;
  while (sizes[which] < bytes)
    ++which;
  if (!mine.empty())
    device.copy(planfile::Stream::Compute, source, mine.data(), mine.size());
  std::size_t index = toFirst ? sizes.size() + which : which;
  comm->run(index, 1);
  if (!toFirst || rank == 0) {
    latest = sizes[which];
    received.resize(latest * worldSize);
    device.copy(planfile::Stream::Compute, received.data(), target,
                received.size());
  }
  // Peers may read this rank's memory: it is there until they have.
  comm->drain(index, 1);
  device.synchronize();
}

void Session::Impl::exchange(
    const std::string &what, std::uint64_t bytes,
    const std::function<Piece(const RankData &)> &piece,
    const std::function<void(unsigned, std::uint64_t, Piece)> &take,
    bool toFirst) {
  bool takes = !toFirst || isFirst();
  if (rendezvous.isAlone()) {
    for (const RankData &data : ranks)
      onRank(data, [&] {
        Piece mine = piece(data);
        std::vector<std::byte> host;
        if (!data.rank.device->torchDevice().is_cpu() && !mine.empty()) {
          host.resize(mine.size());
          data.rank.device->copy(planfile::Stream::Compute, host.data(),
                                 mine.data(), mine.size());
          data.rank.device->synchronize();
          mine = host;
        }
        take(data.rank.rank, 0, mine);
      });
    return;
  }
  onAllRanks(Failure::RankFailed, [&](RankData &data) {
    try {
      bool isSmall = bytes <= Exchange::smallBytes;
      std::unique_ptr<Exchange> &exchange = data.exchanges[isSmall];
      if (!exchange)
        exchange =
            std::make_unique<Exchange>(*backend, contextOf(data.rank),
                                       plan.communicators()->size() + isSmall,
                                       worldSize(), *data.rank.device, isSmall);
      Piece mine = piece(data);
      std::size_t part = exchange->capacity();
      for (std::uint64_t at = 0; at < bytes; at += part) {
        std::size_t count = std::min<std::uint64_t>(part, bytes - at);
        std::size_t begin = std::min<std::uint64_t>(at, mine.size());
        exchange->run(mine.subspan(begin, std::min(count, mine.size() - begin)),
                      count, toFirst);
        for (unsigned r = 0; takes && &data == &ranks[0] && r != worldSize();
             ++r)
          take(r, at, {exchange->of(r), count});
      }
    } catch (const Error &error) {
      throw Error("rank " + std::to_string(data.rank.rank) + ", " + what +
                      ": " + error.what(),
                  error.kind());
    }
  });
}
