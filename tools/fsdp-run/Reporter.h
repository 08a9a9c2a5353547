//===- Reporter.h - What fsdp-run says of a training ------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_REPORTER_H
#define FSDP_TOOLS_FSDP_RUN_REPORTER_H

#include "fsdp/Runtime/Training/Training.h"

namespace fsdp {

class TensorBoard;

/// Says on stdout, in the log of the process and to `tensorBoard`, which may be
/// null, how the training goes, while it goes and at the end.
std::unique_ptr<TrainingObserver> makeReporter(const Training &training,
                                               TensorBoard *tensorBoard);

/// Throws if something that was printed is lost.
void flushOutput();

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_REPORTER_H
