//===- TorchStore.h - A store of PyTorch's, as one of ours ------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_PROCESSES_TORCHSTORE_H
#define FSDP_LIB_RUNTIME_PROCESSES_TORCHSTORE_H

#include "fsdp/Runtime/Processes/Store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>

namespace fsdp {

/// Opens a store of PyTorch's. `name`: "the store of rank 0 at one:29500", for
/// the error that says that it cannot be reached. Keys begin with `prefix`.
std::shared_ptr<Store>
openTorchStore(const std::string &name, const std::string &prefix,
               const std::function<c10::intrusive_ptr<c10d::Store>()> &open);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_PROCESSES_TORCHSTORE_H
