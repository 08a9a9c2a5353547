//===- Costs.h - How long the operations of a step take ---------*- C++ -*-===//
//
// The amount of work in operations of the aten and the scheduled level, from
// the op-fact table and from types. `--fsdp-annotate-costs` makes durations of
// it; `getCost` reads them back.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_COSTS_H
#define FSDP_ANALYSIS_COSTS_H

#include "fsdp/Planner/Hardware.h"

#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/SymbolTable.h"

#include <variant>

namespace fsdp {

/// Nothing, or what takes time on the compute stream, on the network, or on the
/// way between host and device.
using Work = std::variant<std::monostate, planner::Computation,
                          planner::Communication, planner::Transfer>;

} // namespace fsdp

#include "fsdp/Analysis/CostOpInterface.h.inc"

namespace fsdp {

/// Gives calls, launches and updates their `CostOpInterface`.
void registerCostModels(mlir::DialectRegistry &registry);

/// The duration that was annotated, in nanoseconds; 0 if there is none.
int64_t getCost(mlir::Operation *op);

/// What a launch takes of links by its `fsdp.links`; nothing, if it has none.
planner::LinkUse getLinks(mlir::Operation *op);

} // namespace fsdp

#endif // FSDP_ANALYSIS_COSTS_H
