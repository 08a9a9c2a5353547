//===- Live.cpp - A GPU itself --------------------------------------------===//
//
// The part that needs a driver and PyTorch's CUDA library: the real table, and
// the allocator before PyTorch's.
//
//===----------------------------------------------------------------------===//
#include "Device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <mutex>

using namespace fsdp;

namespace ca = c10::cuda::CUDACachingAllocator;

namespace {

/// PyTorch's allocator, except that memory may come from a rank's script.
class ScriptedAllocator final : public ca::CUDAAllocator {
public:
  explicit ScriptedAllocator(ca::CUDAAllocator &next) : next(next) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    return ScriptedHeap::allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &ScriptedHeap::release;
  }
  void copy_data(void *target, const void *source,
                 std::size_t bytes) const override {
    next.copy_data(target, source, bytes);
  }

  // The rest is the other's, unchanged.
  void *raw_alloc(std::size_t bytes) override { return next.raw_alloc(bytes); }
  void *raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return next.raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void *place) override { next.raw_delete(place); }
  void init(int devices) override { next.init(devices); }
  bool initialized() override { return next.initialized(); }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return next.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    next.setMemoryFraction(fraction, device);
  }
  std::vector<ca::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return next.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { next.enable(value); }
  bool isEnabled() const override { return next.isEnabled(); }
  void emptyCache(c10::MempoolId_t pool) override { next.emptyCache(pool); }
  void cacheInfo(c10::DeviceIndex device, std::size_t *largest) override {
    next.cacheInfo(device, largest);
  }
  void *getBaseAllocation(void *place, std::size_t *size) override {
    return next.getBaseAllocation(place, size);
  }
  void recordStream(const c10::DataPtr &data,
                    c10::cuda::CUDAStream stream) override {
    next.recordStream(data, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats
  getDeviceStats(c10::DeviceIndex device) override {
    return next.getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    next.resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    next.resetPeakStats(device);
  }
  ca::SnapshotInfo snapshot(c10::MempoolId_t pool, bool traces) override {
    return next.snapshot(pool, traces);
  }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    next.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device,
                         c10::MempoolId_t pool) override {
    next.endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    next.releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return next.getPoolUseCount(device, pool);
  }
  void
  createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                     std::shared_ptr<ca::CUDAAllocator> allocator) override {
    next.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool,
                   bool isUsed) override {
    next.setUseOnOOM(device, pool, isUsed);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    next.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      const std::unordered_set<void *> &expected) override {
    return next.checkPoolLiveAllocations(device, pool, expected);
  }
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>> &data) override {
    next.recordAnnotation(data);
  }
  void pushCompileContext(std::string &context) override {
    next.pushCompileContext(context);
  }
  void popCompileContext() override { next.popCompileContext(); }
  void setUserMetadata(const std::string &data) override {
    next.setUserMetadata(data);
  }
  std::string getUserMetadata() override { return next.getUserMetadata(); }
  ca::ShareableHandle shareIpcHandle(void *place) override {
    return next.shareIpcHandle(place);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return next.getIpcDevPtr(std::move(handle));
  }
  void recordHistory(bool enabled, ca::CreateContextFn recorder,
                     std::size_t entries, ca::RecordContext when, bool clear,
                     const std::vector<std::string> &skip) override {
    next.recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  bool isHistoryEnabled() override { return next.isHistoryEnabled(); }
  void attachOutOfMemoryObserver(ca::OutOfMemoryObserver observer) override {
    next.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(ca::AllocatorTraceTracker tracker) override {
    next.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device,
                        c10::DeviceIndex other) override {
    next.enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void *target, int targetDevice, const void *source,
                          int sourceDevice, std::size_t bytes,
                          cudaStream_t stream, bool peer) override {
    return next.memcpyAsync(target, targetDevice, source, sourceDevice, bytes,
                            stream, peer);
  }
  std::shared_ptr<ca::AllocatorState>
  getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return next.getCheckpointState(device, pool);
  }
  ca::CheckpointDelta
  setCheckpointPoolState(c10::DeviceIndex device,
                         std::shared_ptr<ca::AllocatorState> state) override {
    return next.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return next.name(); }

private:
  ca::CUDAAllocator &next;
};

/// Puts the scripted allocator before PyTorch's, which must have started: it
/// is found by `get()` in the kernels and by device type elsewhere.
void installAllocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    ca::CUDAAllocator &next = *ca::get();
    ScriptedHeap::next = &next;
    // Never destroyed: tensors may outlive the static objects of this library.
    static auto *allocator = new ScriptedAllocator(next);
    ca::allocator.store(allocator);
    c10::SetAllocator(c10::DeviceType::CUDA, allocator, /*priority=*/100);
  });
}

} // namespace

/// Of the calling thread's rank.
static c10::DeviceIndex currentGPU() { return c10::cuda::current_device(); }

/// PyTorch would take the answer "not yet" for the error of a kernel.
static cudaError_t withoutTrace(cudaError_t state) {
  if (state == cudaErrorNotReady)
    cudaGetLastError();
  return state;
}

const CudaApi &fsdp::cudaApi() {
  static const CudaApi api{
      .getDevice =
          [](int *device) {
            c10::DeviceIndex index = 0;
            cudaError_t result = c10::cuda::GetDevice(&index);
            *device = index;
            return result;
          },
      .setDevice =
          [](int device) {
            // Otherwise it throws where there is no driver.
            return c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(device),
                                        /*force=*/true);
          },
      .restoreDevice =
          [](int device) {
            c10::cuda::MaybeSetDevice(static_cast<c10::DeviceIndex>(device));
          },
      .memGetInfo = cudaMemGetInfo,
      .malloc = [](void **place,
                   std::size_t bytes) { return cudaMalloc(place, bytes); },
      .free = cudaFree,
      .hostAlloc =
          [](void **place, std::size_t bytes, unsigned flags) {
            return cudaHostAlloc(place, bytes, flags);
          },
      .freeHost = cudaFreeHost,
      .hostRegister = cudaHostRegister,
      .hostUnregister = cudaHostUnregister,
      .memsetAsync = cudaMemsetAsync,
      .memcpyAsync = cudaMemcpyAsync,
      .streamCreateWithPriority = cudaStreamCreateWithPriority,
      .deviceGetStreamPriorityRange = cudaDeviceGetStreamPriorityRange,
      .streamDestroy = cudaStreamDestroy,
      .streamSynchronize = cudaStreamSynchronize,
      .streamQuery =
          [](cudaStream_t stream) {
            return withoutTrace(cudaStreamQuery(stream));
          },
      .streamWaitEvent = cudaStreamWaitEvent,
      .eventCreateWithFlags =
          [](cudaEvent_t *event, unsigned flags) {
            return cudaEventCreateWithFlags(event, flags);
          },
      .eventDestroy = cudaEventDestroy,
      .eventRecord =
          [](cudaEvent_t event, cudaStream_t stream) {
            return cudaEventRecord(event, stream);
          },
      .eventQuery =
          [](cudaEvent_t event) { return withoutTrace(cudaEventQuery(event)); },
      .eventSynchronize = cudaEventSynchronize,
      .eventElapsedTime = cudaEventElapsedTime,
      .getErrorString = cudaGetErrorString,
      .currentStream =
          [] {
            auto stream = c10::cuda::getCurrentCUDAStream(currentGPU());
            return CudaApi::CurrentStream{stream.stream(), stream.id()};
          },
      .restoreStream =
          [](CudaApi::CurrentStream before) {
            c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(
                c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, currentGPU()},
                            before.number)));
          },
      .useStream =
          [](cudaStream_t stream) {
            c10::cuda::setCurrentCUDAStream(
                c10::cuda::getStreamFromExternal(stream, currentGPU()));
          },
      .warmUp = [] { at::cuda::getCurrentCUDABlasHandle(); },
      .sum =
          [](const Sum &sum, cudaStream_t stream) {
            c10::cuda::CUDAStreamGuard guard(
                c10::cuda::getStreamFromExternal(stream, currentGPU()));
            addInOrder(sum, {c10::kCUDA, currentGPU()});
          },
  };
  return api;
}

void fsdp::startCuda(unsigned rank, unsigned device) {
  // Ask CUDA first: its sentence is better than PyTorch's.
  const CudaApi &api = cudaApi();
  int before = 0;
  bool isKnown = api.getDevice(&before) == cudaSuccess;
  api.check(api.setDevice(static_cast<int>(device)), "cudaSetDevice", rank);
  installAllocator();
  if (isKnown)
    api.restoreDevice(before);
}
