//===- Device.h - One rank's share of a GPU ---------------------*- C++ -*-===//
//
// Several ranks, threads of one process, share one GPU. Each has memory,
// streams and events of its own. Operators that allocate follow the rank's
// script: what it does not foresee comes from PyTorch's caching allocator, on
// the stream in use.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_CUDA_DEVICE_H
#define FSDP_LIB_RUNTIME_DEVICE_CUDA_DEVICE_H

#include "Api.h"
#include "fsdp/Runtime/Device/Device.h"

#include <c10/core/Allocator.h>

#include <array>
#include <map>

namespace fsdp {

class CUDADevice : public Device {
public:
  /// `index`: of the GPU on this machine. `ahead`: no other rank reads its
  /// memory.
  CUDADevice(const CudaApi &api, unsigned rank, unsigned index = 0,
             bool ahead = false);
  ~CUDADevice() override;

  c10::Device torchDevice() const override {
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
  }
  void enter() override;
  void leave() override;
  void awaitCaller() override;
  void letCallerAwait() override;
  std::optional<Room> room() const override;
  std::byte *allocate(planfile::Space space, std::size_t bytes) override;
  void pin(std::span<std::byte> memory) override;
  void select(planfile::Stream stream) override;
  void copy(planfile::Stream stream, void *target, const void *source,
            std::size_t bytes) override;
  void fill(planfile::Stream stream, void *target, unsigned char value,
            std::size_t bytes) override;
  void programEvents(unsigned program, unsigned count) override;
  void record(planfile::Stream stream, unsigned program,
              unsigned event) override;
  void wait(planfile::Stream stream, unsigned program, unsigned event) override;
  void synchronize() override;
  bool runsAhead() const override { return ahead; }
  void beginRun() override;
  void endRun() override;
  std::uint64_t mark(planfile::Stream stream) override;
  double timeOf(std::uint64_t mark) const override;
  void upload(void *target, std::span<const std::byte> bytes) override;
  void follow(AllocationScript *script) override { this->script = script; }
  AllocationCounts allocationCounts() const override { return counts; }

  // For the communicators of the rank.
  const CudaApi &cuda() const { return api; }
  cudaStream_t stream(planfile::Stream which) const {
    return streams[static_cast<std::size_t>(which)].get();
  }
  /// The stream of the latest `select`.
  cudaStream_t selectedStream() const { return stream(selected); }
  void check(cudaError_t result, const char *call) const {
    api.check(result, call, rank);
  }
  void record(cudaStream_t stream, cudaEvent_t event) const;
  void wait(cudaStream_t stream, cudaEvent_t event) const;

protected:
  /// Returns when all work of the stream is done, or the event has come.
  virtual void finish(cudaStream_t stream) const;
  virtual void finish(cudaEvent_t event) const;
  /// Leaves all that it has to the end of the process: work that never ends
  /// uses it, and giving anything back would wait for that.
  void abandon();

private:
  friend struct ScriptedHeap;
  cudaEvent_t setMark(planfile::Stream stream);
  using Block = std::unique_ptr<void, std::function<void(void *)>>;

  /// The thread's current GPU is the rank's, until `leaveGPU`.
  void enterGPU();
  void leaveGPU();

  /// Pinned copies of what is uploaded to one place, taken in turns.
  struct Staging {
    std::size_t bytes = 0;
    std::array<std::byte *, 2> copies = {};
    std::array<CudaEvent, 2> uploaded;
    unsigned next = 0;
  };

  const CudaApi &api;
  unsigned rank, index;
  bool ahead;
  planfile::Stream selected = planfile::Stream::Compute;
  int callersDevice = 0; ///< Of the thread that has entered, before that.
  CudaApi::CurrentStream callers;
  CudaEvent handedOver; ///< From the caller's stream, or to it.
  std::vector<Block> blocks;
  std::array<CudaStream, static_cast<std::size_t>(planfile::Stream::MAX) + 1>
      streams;
  std::vector<std::vector<CudaEvent>> events; ///< By program.
  /// Where each stream is at the border of a run.
  std::array<CudaEvent, static_cast<std::size_t>(planfile::Stream::MAX) + 1>
      borders;
  std::map<void *, Staging> stagings; ///< By target.
  /// Events that measure, used again by each run. The first one is passed when
  /// the host's clock says `origin`.
  std::vector<CudaEvent> marks;
  std::size_t marked = 0; ///< Marks of the latest run.
  double origin = 0;
  AllocationScript *script = nullptr;
  AllocationCounts counts;
};

/// What stands before PyTorch's allocator of device memory.
struct ScriptedHeap {
  /// For the rank of the thread; threads of nobody get `next`'s.
  static c10::DataPtr allocate(std::size_t bytes);
  static void release(void *place);

  static inline c10::Allocator *next = nullptr;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_CUDA_DEVICE_H
