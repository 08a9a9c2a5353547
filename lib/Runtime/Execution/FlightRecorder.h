//===- FlightRecorder.h - The latest collectives of a rank ------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_FLIGHTRECORDER_H
#define FSDP_LIB_RUNTIME_EXECUTION_FLIGHTRECORDER_H

#include "fsdp/Runtime/Execution/Session.h"

#include <algorithm>
#include <array>
#include <mutex>

namespace fsdp {

/// Written by the rank's threads, read by any.
class FlightRecorder {
public:
  /// Returns the number of the collective, for `end`.
  std::uint64_t begin(const Span &collective) {
    std::lock_guard lock(mutex);
    latest[count % latest.size()] = collective;
    return count++;
  }

  void end(std::uint64_t which, double time) {
    std::lock_guard lock(mutex);
    if (count - which <= latest.size())
      latest[which % latest.size()].end = time;
  }

  /// The oldest first. What has not ended is under way, and ends at 0.
  void append(std::vector<Span> &spans) const {
    std::lock_guard lock(mutex);
    for (std::uint64_t which = count - std::min(count, size()); which != count;
         ++which)
      spans.push_back(latest[which % latest.size()]);
  }

private:
  std::uint64_t size() const { return latest.size(); }

  mutable std::mutex mutex;
  std::array<Span, 64> latest = {};
  std::uint64_t count = 0;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_FLIGHTRECORDER_H
