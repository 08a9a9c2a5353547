//===- CPU.h - Ordinary memory, one stream, inline --------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_CPU_H
#define FSDP_LIB_RUNTIME_DEVICE_CPU_H

#include "fsdp/Runtime/Device/Device.h"

#include <atomic>
#include <memory>
#include <vector>

namespace fsdp {

class CPUDevice : public Device {
public:
  /// Puts our allocator before c10's own. Before there are rank threads: c10
  /// does not lock.
  static void installAllocator();

  ~CPUDevice() override;

  c10::Device torchDevice() const override { return c10::kCPU; }
  void enter() override;
  void leave() override;
  std::byte *allocate(planfile::Space space, std::size_t bytes) override;
  void pin(std::span<std::byte>) override {}
  void select(planfile::Stream) override {}
  void copy(planfile::Stream, void *target, const void *source,
            std::size_t bytes) override;
  void fill(planfile::Stream, void *target, unsigned char value,
            std::size_t bytes) override;
  void programEvents(unsigned, unsigned) override {}
  void record(planfile::Stream, unsigned, unsigned) override {}
  void wait(planfile::Stream, unsigned, unsigned) override {}
  void synchronize() override {}
  void follow(AllocationScript *script) override;
  AllocationCounts allocationCounts() const override {
    return {planned.load(), heap.load(), heapBytes.load()};
  }

private:
  friend class CPUAllocator;
  struct Block {
    std::byte *data;
    std::size_t bytes;
  };
  bool owns(const void *address) const;

  std::vector<Block> blocks;
  // Of all the rank's threads.
  std::atomic<std::uint64_t> planned{0}, heap{0}, heapBytes{0};
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_CPU_H
