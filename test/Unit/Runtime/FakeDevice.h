//===- FakeDevice.h - A device whose kernels are the CPU's ------*- C++ -*-===//
//
// For libraries of backends without GPUs, which whole processes load.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TEST_UNIT_RUNTIME_FAKEDEVICE_H
#define FSDP_TEST_UNIT_RUNTIME_FAKEDEVICE_H

#include "fsdp/Runtime/Device/Device.h"

#include <memory>

namespace fsdp {

/// `Base`, a CUDADevice, but operators allocate on the CPU, as the plan says.
template <typename Base> class FakeDevice : public Base {
public:
  template <typename... Arguments>
  explicit FakeDevice(std::unique_ptr<Device> cpu, Arguments &&...arguments)
      : Base(std::forward<Arguments>(arguments)...), cpu(std::move(cpu)) {}

  c10::Device torchDevice() const override { return c10::kCPU; }
  void enter() override {
    cpu->enter();
    Base::enter();
  }
  void leave() override {
    Base::leave();
    cpu->leave();
  }
  void follow(AllocationScript *script) override { cpu->follow(script); }
  AllocationCounts allocationCounts() const override {
    return cpu->allocationCounts();
  }

private:
  std::unique_ptr<Device> cpu;
};

} // namespace fsdp

#endif // FSDP_TEST_UNIT_RUNTIME_FAKEDEVICE_H
