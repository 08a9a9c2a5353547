//===- Resident.h - The memory of this process ------------------*- C++ -*-===//

#ifndef FSDP_RUNTIME_TRAINING_RESIDENT_H
#define FSDP_RUNTIME_TRAINING_RESIDENT_H

#include <cstdint>

namespace fsdp {

/// Bytes, as the system and the allocator count them.
struct Resident {
  std::int64_t total = 0; ///< Rss.
  std::int64_t files = 0; ///< Of it pages of files: code, data, weights.
  std::int64_t heap = 0;  ///< In use, of what malloc hands out.
};

Resident measureResident();

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_RESIDENT_H
