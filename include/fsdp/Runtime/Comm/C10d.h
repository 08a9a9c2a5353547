//===- C10d.h - Ranks as processes of a process group -----------*- C++ -*-===//
//
// The backend for programs that have a process group already, as PyTorch's
// `torch.distributed` makes them.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_COMM_C10D_H
#define FSDP_RUNTIME_COMM_C10D_H

#include "fsdp/Runtime/Comm/Comm.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace fsdp {

/// The processes of a group, of any backend, as those of a run: rank r is the
/// process that has rank r in the group. Their store is the group's, with keys
/// of their own for every world.
///
/// All processes of the group call it as often, in the same order. It waits for
/// the others, and then throws when `timeout` is over; it needs nothing of
/// Python: call it without the GIL.
World joinGroup(const c10d::ProcessGroup &group,
                std::chrono::milliseconds timeout = defaultTimeout);

/// Makes the processes of a group the ranks of a run, as `joinGroup`, with
/// messages between them. The group must send and receive tensors of the
/// CPU, as gloo's does; nobody else does so with it while the backend lives.
std::shared_ptr<Backend>
makeC10dBackend(const c10::intrusive_ptr<c10d::ProcessGroup> &group,
                std::chrono::milliseconds timeout = defaultTimeout);

/// The same for what is no process group, but the backend of one.
std::shared_ptr<Backend>
makeC10dBackend(const c10::intrusive_ptr<c10d::Backend> &group,
                const c10::intrusive_ptr<c10d::Store> &store,
                std::chrono::milliseconds timeout = defaultTimeout);

} // namespace fsdp

#endif // FSDP_RUNTIME_COMM_C10D_H
