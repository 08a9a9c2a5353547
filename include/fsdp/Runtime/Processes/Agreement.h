//===- Agreement.h - Ranks that run the same collectives --------*- C++ -*-===//
//
// Each rank may be given a plan of its own file. Before anything runs, ranks
// compare the collectives of their plans, communicator by communicator: ranks
// that disagree would wait for each other for ever, or train on mixed up
// numbers. Rejections are an `fsdp::Error` of the kind CheckFailed that names
// the first difference to rank 0: the place in a communicator's sequence and
// both collectives there. When one of them fails later, it tells the others.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_PROCESSES_AGREEMENT_H
#define FSDP_RUNTIME_PROCESSES_AGREEMENT_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Processes/Store.h"
#include "fsdp/Runtime/Support/Error.h"

#include <span>

namespace fsdp {

/// Plan k is rank k's. Plans with the same collectives must be the same
/// elsewhere, too.
void checkAgreement(std::span<const planfile::PlanFile> plans);

/// The collectives of a plan as text, for ranks of other processes.
std::string describeCollectives(const planfile::Plan &plan);

/// `who`: "rank 2"; `expected`: the text of rank 0's plan.
void checkCollectives(const std::string &who, const planfile::Plan &plan,
                      const std::string &expected);

/// A failure as others read it: the exit code as a digit, then the sentence.
std::string encodeFailure(const Error &error);
/// `text` is untrusted.
Error decodeFailure(const std::string &text);

/// Tells all sessions of a run that it has failed. Returns the first failure,
/// which is another one if somebody came before.
Error tellFailure(Store &store, const Error &error);

/// The first failure of the run; waits so long for one.
std::optional<Error> findFailure(Store &store,
                                 std::chrono::milliseconds timeout);

} // namespace fsdp

#endif // FSDP_RUNTIME_PROCESSES_AGREEMENT_H
