//===- Calibration.h - Links from measured collectives ----------*- C++ -*-===//
//
// Fits the latencies and bandwidths of a hardware file to collectives that were
// measured on a machine: logs of nccl-tests, or profiles of fsdp-run.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_CALIBRATION_H
#define FSDP_PLANNER_CALIBRATION_H

#include "fsdp/Archive/Profile.h"
#include "fsdp/Planner/Hardware.h"

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::planner {

struct MeasuredCall {
  CollectiveKind kind;
  double bytes = 0; ///< Of the whole tensor.
  int64_t ranks = 2;
  int64_t nodes = 1; ///< With equally many ranks each.
  double nanoseconds = 0;
};

/// Reads what `all_gather_perf`, `reduce_scatter_perf` or `all_reduce_perf` of
/// nccl-tests prints, out of place: the ranks with their hosts, and a line for
/// each size. Sizes below 1 MiB are left out: they use other protocols, and
/// nobody shards as little. Errors name `path`.
archive::Expected<std::vector<MeasuredCall>>
readNcclTests(std::string_view text, const std::string &path,
              CollectiveKind kind);

/// The collectives of a profile. `nodeRanks`: how many ranks share a node.
std::vector<MeasuredCall> getCalls(const archive::Profile &profile,
                                   int64_t nodeRanks);

/// How one line of a link was fitted. Errors are means of |predicted /
/// measured - 1|.
struct LineFit {
  CollectiveKind kind;
  bool isNetwork = false;
  size_t calls = 0;
  double errorBefore = 0, errorAfter = 0;
};

/// Replaces the lines of `hardware` for which there are calls of at least two
/// sizes, of which the larger take longer, by least squares of relative errors;
/// no part is fitted to less than 0.
/// Calls of one group size say nothing of steps: there the parts of the latency
/// keep their proportion. An error if calls and hardware contradict each other.
archive::Expected<std::vector<LineFit>>
calibrate(Hardware &hardware, const std::vector<MeasuredCall> &calls);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_CALIBRATION_H
