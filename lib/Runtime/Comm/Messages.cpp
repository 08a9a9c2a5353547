//===- Messages.cpp - Collectives out of messages -------------------------===//
#include "Messages.h"

#include "../Device/Reduce.h"
#include "../Support/DTypes.h"
#include "Slices.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;

void MessageComm::prepare(std::span<const Collective> given) {
  collectives.assign(given.begin(), given.end());
  std::size_t wanted = 0, item = 1;
  for (const Collective &c : collectives) {
    if (c.kind == Collective::Kind::AllGather)
      continue;
    item = std::max(item, itemSize(c.sourceType));
    std::size_t count = c.kind == Collective::Kind::AllReduce
                            ? Slices{size}.most(c.count)
                            : c.count;
    wanted = std::max(wanted, count * itemSize(c.sourceType));
  }
  if (size == 1)
    return;
  std::size_t places = flightCount * (size - 1);
  std::size_t most = limits.workspaceBytes / places;
  place = std::min(wanted, std::max(most / item, std::size_t{1}) * item);
  workspace.resize(place * places);
}

void MessageComm::run(std::size_t first, std::size_t count) {
  check();
  for (std::size_t which = first; which != first + count; ++which)
    run(collectives[which]);
}

/// In each round, everybody hears of twice as many members.
void MessageComm::barrier() {
  check();
  std::byte token{}, answer{};
  for (unsigned distance = 1; distance < size; distance *= 2) {
    receive(0, (index + size - distance) % size, &answer, 1);
    send(0, (index + distance) % size, &token, 1);
    finish(0, "join it");
  }
}

void MessageComm::run(const Collective &mine) {
  switch (mine.kind) {
  case Collective::Kind::AllGather:
    return allGather(mine);
  case Collective::Kind::ReduceScatter:
    return reduce(mine, mine.target, [&](unsigned member) {
      return std::pair(member * mine.count, mine.count);
    });
  case Collective::Kind::AllReduce:
    return allReduce(mine);
  }
}

/// Both ends cut alike. Nothing is not sent.
template <typename Visit>
static void cut(std::size_t bytes, std::size_t most, const Visit &visit) {
  for (std::size_t at = 0; at < bytes; at += most)
    visit(at, std::min(bytes - at, most));
}

void MessageComm::receiveParts(unsigned flight, unsigned member, std::byte *to,
                               std::size_t bytes) {
  cut(bytes, limits.messageBytes, [&](std::size_t at, std::size_t count) {
    receive(flight, member, to + at, count);
  });
}

void MessageComm::sendParts(unsigned flight, unsigned member,
                            const std::byte *from, std::size_t bytes) {
  cut(bytes, limits.messageBytes, [&](std::size_t at, std::size_t count) {
    send(flight, member, from + at, count);
  });
}

/// The other members, each starting with the next one, so that not all send to
/// the same one first.
template <typename Visit>
static void forPeers(unsigned index, unsigned size, const Visit &visit) {
  for (unsigned i = 1; i < size; ++i)
    visit((index + i) % size);
}

void MessageComm::allGather(const Collective &mine) {
  std::size_t bytes = mine.count * itemSize(mine.sourceType);
  forPeers(index, size, [&](unsigned peer) {
    if (!mine.toFirst || index == 0)
      receiveParts(0, peer, mine.target + peer * bytes, bytes);
  });
  forPeers(index, size, [&](unsigned peer) {
    if (!mine.toFirst || peer == 0)
      sendParts(0, peer, mine.source, bytes);
  });
  // The own piece may already be in place.
  if (std::byte *own = mine.target + index * bytes; own != mine.source)
    std::memcpy(own, mine.source, bytes);
  finish(0, "join it");
}

/// Where a member's part of a chunk arrives.
std::byte *MessageComm::arrival(std::size_t chunk, unsigned member) {
  std::size_t other = member < index ? member : member - 1;
  return workspace.data() + (chunk % flightCount * (size - 1) + other) * place;
}

/// Sums this member's slice of all sources. `sliceOf`: where the elements of a
/// member's slice begin, and how many they are. While one chunk is summed, the
/// next one is on its way.
template <typename SliceOf>
void MessageComm::reduce(const Collective &mine, std::byte *target,
                         const SliceOf &sliceOf) {
  std::size_t item = itemSize(mine.sourceType);
  std::size_t chunk = size == 1 ? mine.count : place / item;
  std::size_t most = 0;
  for (unsigned member = 0; member != size; ++member)
    most = std::max(most, sliceOf(member).second);
  std::size_t chunks = chunk == 0 ? 0 : (most + chunk - 1) / chunk;
  auto part = [&](unsigned member, std::size_t number) {
    auto [begin, count] = sliceOf(member);
    std::size_t at = std::min(number * chunk, count);
    return std::pair(begin + at, std::min(chunk, count - at));
  };
  auto start = [&](std::size_t number) {
    unsigned flight = number % flightCount;
    std::size_t bytes = part(index, number).second * item;
    forPeers(index, size, [&](unsigned peer) {
      receiveParts(flight, peer, arrival(number, peer), bytes);
    });
    forPeers(index, size, [&](unsigned peer) {
      auto [begin, count] = part(peer, number);
      sendParts(flight, peer, mine.source + begin * item, count * item);
    });
  };
  if (chunks != 0)
    start(0);
  for (std::size_t number = 0; number != chunks; ++number) {
    if (number + 1 != chunks)
      start(number + 1);
    finish(number % flightCount, "join it");
    auto [begin, count] = part(index, number);
    for (unsigned member = 0; member != size; ++member)
      sources[member] = member == index ? mine.source + begin * item
                                        : arrival(number, member);
    fsdp::reduce({mine.sourceType, mine.targetType, mine.via, mine.pre,
                  mine.post, mine.reduce},
                 sources, 0, target, count);
    target += count * itemSize(mine.targetType);
  }
}

/// Each rank sums one slice, then fetches the others' sums. In place is safe:
/// all has been sent that the sums of others overwrite, and nobody else needs
/// the slice that this rank overwrites with its own.
void MessageComm::allReduce(const Collective &mine) {
  Slices slices{size};
  auto sliceOf = [&](unsigned member) {
    std::size_t begin = slices.begin(member, mine.count);
    return std::pair(begin, slices.begin(member + 1, mine.count) - begin);
  };
  std::size_t item = itemSize(mine.targetType);
  auto [own, count] = sliceOf(index);
  std::byte *sum = mine.target + own * item;
  reduce(mine, sum, sliceOf);
  forPeers(index, size, [&](unsigned peer) {
    auto [begin, elements] = sliceOf(peer);
    receiveParts(0, peer, mine.target + begin * item, elements * item);
  });
  std::size_t bytes = count * item;
  forPeers(index, size, [&](unsigned peer) { sendParts(0, peer, sum, bytes); });
  finish(0, "sum its part");
}
