//===- Shuffle.cpp - The order of samples in an epoch ---------------------===//

#include "fsdp/Runtime/Data/Shuffle.h"

#include <bit>
#include <xxhash.h>

/// A Feistel network is a permutation of the numbers of an even number of bits,
/// whatever its round function. What lies outside of [0, size) is permuted on
/// until it lies inside: that is a permutation again, and takes fewer than four
/// turns on average.
std::uint64_t fsdp::shuffle(std::uint64_t place, std::uint64_t size,
                            std::uint64_t seed, std::uint64_t epoch) {
  if (size < 2)
    return place;
  constexpr std::uint64_t rounds = 8; // Fewer are seen in small sets.
  int half = (std::bit_width(size - 1) + 1) / 2;
  std::uint64_t mask = (std::uint64_t(1) << half) - 1;
  do {
    std::uint64_t left = place >> half, right = place & mask;
    for (std::uint64_t round = 0; round != rounds; ++round) {
      const std::uint64_t key[] = {epoch, round, right};
      std::uint64_t mixed = left ^ (XXH64(key, sizeof key, seed) & mask);
      left = right;
      right = mixed;
    }
    place = left << half | right;
  } while (place >= size);
  return place;
}
