//===- Shuffle.h - The order of samples in an epoch -------------*- C++ -*-===//
#ifndef FSDP_RUNTIME_DATA_SHUFFLE_H
#define FSDP_RUNTIME_DATA_SHUFFLE_H

#include <cstdint>

namespace fsdp {

/// What is at `place` of a pseudo-random permutation of [0, size), one for each
/// seed and epoch. It is computed, so that it needs no memory, and every rank
/// knows any place of it. `place` is below `size`.
std::uint64_t shuffle(std::uint64_t place, std::uint64_t size,
                      std::uint64_t seed, std::uint64_t epoch);

} // namespace fsdp

#endif // FSDP_RUNTIME_DATA_SHUFFLE_H
