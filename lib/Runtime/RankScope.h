//===- RankScope.h - A thread that works for a rank -------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_RANKSCOPE_H
#define FSDP_LIB_RUNTIME_RANKSCOPE_H

#include "fsdp/Runtime/Device.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

namespace fsdp {

/// Makes the thread a rank's: all of this is per thread in PyTorch.
class RankScope {
public:
  explicit RankScope(Device *device) : device(device) {
    if (at::get_num_threads() != 1)
      at::set_num_threads(1);
    if (device)
      device->enter();
  }
  ~RankScope() {
    if (device)
      device->leave();
  }
  RankScope(const RankScope &) = delete;
  RankScope &operator=(const RankScope &) = delete;

private:
  c10::InferenceMode inference;
  Device *device;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_RANKSCOPE_H
