//===- Agreement.h - Ranks that run the same collectives --------*- C++ -*-===//
//
// Each rank may be given a plan of its own file. Before anything runs, ranks
// compare the digests of their collective sequences, communicator by
// communicator: ranks that disagree would wait for each other for ever, or
// train on mixed up numbers.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_AGREEMENT_H
#define FSDP_RUNTIME_AGREEMENT_H

#include "fsdp/Archive/PlanFile.h"

#include <span>

namespace fsdp {

/// Plan k is rank k's. Throws an `fsdp::Error` of the kind CheckFailed that
/// names the first difference to rank 0: the place in a communicator's sequence
/// and both collectives there; or says that the plans differ elsewhere.
void checkAgreement(std::span<const planfile::PlanFile> plans);

} // namespace fsdp

#endif // FSDP_RUNTIME_AGREEMENT_H
