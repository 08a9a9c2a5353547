//===- ReductionPlace.h - Where reductions leave their results --*- C++ -*-===//
//
// The lowering lays them there, and the memory of a schedule is counted by it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_REDUCTIONPLACE_H
#define FSDP_ANALYSIS_REDUCTIONPLACE_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

namespace fsdp {

struct ReductionPlace {
  enum Kind {
    Own,      ///< Memory of its own.
    Kept,     ///< That of `state`, where the next micro-batch finds it.
    Gradient, ///< The unit's gradient, which is read after the program.
    ToHost,   ///< The unit's gradient, on its way to the host.
  };
  Kind kind = Own;
  StateAttr state = {}; ///< Of what is kept.
};

/// Where a reduction of the scheduled level leaves its result: the last one in
/// the gradient of the unit, if that is on the device, or where the next
/// micro-batch finds it; others in memory of their own. Only the last one is in
/// the storage type, unless the two are the same; then the next reduces in
/// place.
ReductionPlace getReductionPlace(CollectiveOpInterface reduction, UnitOp unit);

} // namespace fsdp

#endif // FSDP_ANALYSIS_REDUCTIONPLACE_H
