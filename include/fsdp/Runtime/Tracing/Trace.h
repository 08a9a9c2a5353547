//===- Trace.h - What a run really did --------------------------*- C++ -*-===//
//
// Two files out of the spans of a session.
//
// A trace is in the JSON format that Perfetto and chrome://tracing read: a
// process for each rank, a row for each stream, slices named after operators
// and collectives, an arrow from each collective to what waited for it, and a
// counter of the bytes that are alive in the arena.
//
// A profile is measured time for the compiler's costs, in seconds:
//
//   {"device": "cpu", "ranks": 2, "steps": 99,
//    "ops": [{"op": "aten::mm", "signature": "aten::mm.out(32x32xf32,
//             32x64xf32, 32x64xf32)", "seconds": 1e-05, "count": 3}, ...],
//    "nodes": [{"node": "mm_1", "stream": "compute", "seconds": 1e-05}, ...],
//    "collectives": [{"kind": "all_gather", "bytes": 25408, "ranks": 2,
//                     "seconds": 2e-05, "count": 2}, ...]}
//
// `op` has no overload; `signature` has, with all tensors that a launch reads
// and writes in the order of its arguments. `count`: per step. A node's time is
// the sum over what the compiler made of it. `bytes` are those of one rank's
// source. All figures are medians over steps, the first left out if there are
// more; over ranks too, except that a collective takes as long as on the rank
// that came last, since the others wait. On a GPU, times are the GPU's.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_TRACING_TRACE_H
#define FSDP_RUNTIME_TRACING_TRACE_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

namespace fsdp {

/// Throws if the file cannot be written.
void writeTrace(const std::string &path, const planfile::PlanFile &plan,
                const std::vector<Span> &spans);
/// `program`: the one whose runs are the steps.
void writeProfile(const std::string &path, const planfile::PlanFile &plan,
                  const std::vector<Span> &spans,
                  std::string_view program = "step");

/// "step 2, program step, command 31, all_gather of unit blocks.1"
std::string describe(const planfile::PlanFile &plan, const Span &span);

/// The ranks of a collective, among which the span's is.
std::vector<unsigned> membersOf(const planfile::PlanFile &plan,
                                const Span &collective);

} // namespace fsdp

#endif // FSDP_RUNTIME_TRACING_TRACE_H
