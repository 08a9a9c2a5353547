//===- Price.h - What more memory would buy ---------------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_PLAN_PRICE_H
#define FSDP_TOOLS_FSDP_PLAN_PRICE_H

#include "fsdp/Planner/Explanation.h"

#include "llvm/Support/JSON.h"

namespace fsdp {

/// "1.00 GiB more buys 5.01 ms (-1.0 %): layers.30 and layers.31 are no longer
/// recomputed", for a step of `time` nanoseconds.
std::string spellPrice(const planner::Explanation::Price &price, int64_t time);

/// `more_bytes`, `more_ns`, `more_bound_ns` and `more_changes`.
void addPrice(const planner::Explanation::Price &price,
              llvm::json::Object &search);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_PRICE_H
