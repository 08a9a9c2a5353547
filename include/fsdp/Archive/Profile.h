//===- Profile.h - Measured times of a step ---------------------*- C++ -*-===//
//
// What the compiler reads of the JSON file that `fsdp-run --profile` writes:
//
//   {"nodes": [{"node": "mm_1", "stream": "compute", "seconds": 1e-05}, ...],
//    "collectives": [{"kind": "all_gather", "bytes": 25408, "ranks": 2,
//                     "seconds": 2e-05}, ...]}
//
// Members that are not listed here are for people, and ignored.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_PROFILE_H
#define FSDP_ARCHIVE_PROFILE_H

#include "fsdp/Archive/Expected.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// Durations are in nanoseconds, and at most a day.
struct Profile {
  /// What the compute stream did for one node of the graph, each time that it
  /// computed it.
  struct Node {
    std::string name;
    int64_t duration;
  };
  struct Collective {
    enum class Kind { AllGather, ReduceScatter, AllReduce };
    Kind kind;
    int64_t bytes; ///< Of one rank's source.
    int64_t ranks; ///< At least 1.
    int64_t duration;
  };
  std::vector<Node> nodes;             ///< By name, each once.
  std::vector<Collective> collectives; ///< By kind, bytes and ranks, each once.

  /// Reads a file; it is untrusted. Errors name `path`.
  static Expected<Profile> read(const std::string &path);
  static Expected<Profile> parse(std::string_view text,
                                 const std::string &path);
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_PROFILE_H
