//===- RankScope.h - A thread that works for a rank -------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_RANKSCOPE_H
#define FSDP_LIB_RUNTIME_DEVICE_RANKSCOPE_H

#include "fsdp/Runtime/Device/Device.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace fsdp {

/// Enters a device, and leaves it whatever is thrown.
class DeviceScope {
public:
  explicit DeviceScope(Device &device) : device(device) { device.enter(); }
  ~DeviceScope() { device.leave(); }
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

private:
  Device &device;
};

/// Makes the thread a rank's: all of this is per thread in PyTorch. Without a
/// device, one that has none yet.
class RankScope {
public:
  explicit RankScope(Device *device) {
    if (at::get_num_threads() != 1)
      at::set_num_threads(1);
    if (device)
      entered.emplace(*device);
  }

private:
  c10::InferenceMode inference;
  std::optional<DeviceScope> entered;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_RANKSCOPE_H
