//===- Issue.h - What an order hands to streams -----------------*- C++ -*-===//

#ifndef FSDP_LIB_PLANNER_ISSUE_H
#define FSDP_LIB_PLANNER_ISSUE_H

#include "Streams.h"

#include "fsdp/Planner/Scheduling.h"

namespace fsdp::planner::scheduling {

using OwnStreams = Streams<copyStream>; ///< All but that of computations.

/// The operations of an order, by what drives them.
struct Issue {
  struct Item {
    uint32_t operation;
    uint32_t place;           ///< How many computations end before it starts.
    OwnStreams::Counts needs; ///< How many of each other stream do.
  };
  std::vector<Item> computations, launches; ///< In the order of issue.

  Issue(const Problem &problem, const std::vector<uint32_t> &order);
};

} // namespace fsdp::planner::scheduling

#endif // FSDP_LIB_PLANNER_ISSUE_H
