//===- Trace.h - The predicted timeline of a step ---------------*- C++ -*-===//
//
// In the JSON format that Perfetto and chrome://tracing read, like the traces
// of fsdp-run: a row for each stream, a slice for each operation that takes
// time, an arrow from each collective to what waits for it, and a counter of
// the bytes that are alive. The prediction is the same for every rank, so one
// process stands for all.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TOOLS_FSDP_PLAN_TRACE_H
#define FSDP_TOOLS_FSDP_PLAN_TRACE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/raw_ostream.h"

namespace fsdp {

/// Writes the array of events of a program of the scheduled level with costs,
/// which runs in its order.
void writeTimeline(mlir::func::FuncOp step, llvm::raw_ostream &os);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_TRACE_H
