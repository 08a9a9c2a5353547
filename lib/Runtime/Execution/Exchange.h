//===- Exchange.h - Bytes from every rank to every rank ---------*- C++ -*-===//
//
// What sessions of one run show one another between their runs, or the first
// one alone: parts of tensors, to put them together. Through a communicator of
// its own, over all ranks, in parts of a fixed size.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_EXCHANGE_H
#define FSDP_LIB_RUNTIME_EXECUTION_EXCHANGE_H

#include "fsdp/Runtime/Comm/Comm.h"

#include <vector>

namespace fsdp {

/// One rank's end.
class Exchange {
public:
  /// All ranks make theirs at once. `communicator`: none of the plan's.
  /// `isSmall`: for a few numbers, and hardly any memory.
  Exchange(Backend &backend, const RankContext &rank, unsigned communicator,
           unsigned worldSize, Device &device, bool isSmall);

  /// What a small one can show at once.
  static constexpr std::size_t smallBytes = 64;

  /// The most bytes that a rank can show at once.
  std::size_t capacity() const { return sizes.back(); }

  /// Shows the others `mine`, on the host or the device, and waits for what
  /// they show: up to `bytes` each, the same number on all ranks. `toFirst`:
  /// rank 0 alone is shown it.
  void run(std::span<const std::byte> mine, std::size_t bytes, bool toFirst);

  /// What that rank has shown last, on the host.
  const std::byte *of(unsigned rank) const {
    return received.data() + rank * latest;
  }

private:
  Device &device;
  unsigned rank, worldSize;
  /// Of a rank's part: what is small need not travel as much.
  std::vector<std::size_t> sizes;
  std::byte *source, *target;
  std::unique_ptr<Comm> comm;
  std::vector<std::byte> received;
  std::size_t latest = 0; ///< The size that was used last.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_EXCHANGE_H
