//===- GatherSpans.h - What all processes did, and when ---------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_TRAINING_GATHERSPANS_H
#define FSDP_LIB_RUNTIME_TRAINING_GATHERSPANS_H

#include "fsdp/Runtime/Training/Processes.h"

namespace fsdp {

/// The spans of all ranks in seconds of rank 0's clock, for rank 0; nothing for
/// the others. All processes call it. Those of one machine have one clock; for
/// others, the time of day says how far theirs is away.
std::vector<Span> gatherSpans(const planfile::Plan &plan,
                              const Processes &processes,
                              const std::vector<Span> &own);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_GATHERSPANS_H
