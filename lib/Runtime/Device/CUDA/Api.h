//===- Api.h - All that is asked of CUDA ------------------------*- C++ -*-===//
//
// Every call into the CUDA runtime, and the few into ATen that need a GPU, go
// through this table, so that a test can put a recording one with ordinary
// memory in its place. The entries are named like the calls, and mean the same.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_CUDA_API_H
#define FSDP_LIB_RUNTIME_DEVICE_CUDA_API_H

#include "../Reduce.h"

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

namespace fsdp {

/// A sum over ranks, to be enqueued on a stream.
struct Sum {
  Reduction reduction;
  std::span<const std::byte *const> sources;
  std::size_t begin; ///< Element of each source.
  std::byte *target;
  std::size_t count;
  /// Of this stream alone: for `chunk` elements, scratchItem bytes each. Sums
  /// are kept here, so that the target may be one of the sources. None is
  /// needed where the only source is the target, of the type of the sum.
  std::byte *scratch;
  std::size_t chunk;

  static constexpr std::size_t scratchItem = 16;
};

struct CudaApi {
  std::function<cudaError_t(int *device)> getDevice;
  std::function<cudaError_t(int device)> setDevice;
  /// Back to where a thread was: a GPU that nobody has used gets no context.
  std::function<void(int device)> restoreDevice;
  std::function<cudaError_t(std::size_t *free, std::size_t *total)> memGetInfo;
  std::function<cudaError_t(void **, std::size_t)> malloc;
  std::function<cudaError_t(void *)> free;
  std::function<cudaError_t(void **, std::size_t, unsigned flags)> hostAlloc;
  std::function<cudaError_t(void *)> freeHost;
  std::function<cudaError_t(void *, std::size_t, unsigned flags)> hostRegister;
  std::function<cudaError_t(void *)> hostUnregister;
  std::function<cudaError_t(void *, int value, std::size_t, cudaStream_t)>
      memsetAsync;
  std::function<cudaError_t(void *target, const void *source, std::size_t,
                            cudaMemcpyKind, cudaStream_t)>
      memcpyAsync;
  std::function<cudaError_t(cudaStream_t *, unsigned flags, int priority)>
      streamCreateWithPriority;
  std::function<cudaError_t(int *least, int *greatest)>
      deviceGetStreamPriorityRange;
  std::function<cudaError_t(cudaStream_t)> streamDestroy;
  std::function<cudaError_t(cudaStream_t)> streamSynchronize;
  std::function<cudaError_t(cudaStream_t)> streamQuery;
  std::function<cudaError_t(cudaStream_t, cudaEvent_t, unsigned flags)>
      streamWaitEvent;
  std::function<cudaError_t(cudaEvent_t *, unsigned flags)>
      eventCreateWithFlags;
  std::function<cudaError_t(cudaEvent_t)> eventDestroy;
  std::function<cudaError_t(cudaEvent_t, cudaStream_t)> eventRecord;
  std::function<cudaError_t(cudaEvent_t)> eventQuery, eventSynchronize;
  std::function<cudaError_t(float *milliseconds, cudaEvent_t, cudaEvent_t)>
      eventElapsedTime;
  std::function<const char *(cudaError_t)> getErrorString;

  /// Where the thread's operators go on its GPU: CUDA's stream, and the number
  /// that PyTorch has for it.
  struct CurrentStream {
    cudaStream_t stream = nullptr;
    std::int64_t number = 0;
  };
  std::function<CurrentStream()> currentStream;
  std::function<void(CurrentStream)> restoreStream;
  /// They go to this stream.
  std::function<void(cudaStream_t)> useStream;
  /// Makes what libraries allocate once per thread, of the stream in use.
  std::function<void()> warmUp;
  std::function<void(const Sum &, cudaStream_t)> sum;

  /// Throws `Error` with the rank and the name of the call if it failed.
  void check(cudaError_t result, const char *call, unsigned rank) const;
};

/// The calls themselves.
const CudaApi &cudaApi();

/// Throws if this GPU of the machine does not work. Puts the allocator of the
/// ranks before PyTorch's.
void startCuda(unsigned rank, unsigned device);

/// What `CudaApi::sum` enqueues, in ATen's operators on the current stream.
void addInOrder(const Sum &sum, c10::Device device);

/// Destroys what the table has made.
struct CudaCloser {
  const CudaApi *api;
  void operator()(cudaStream_t stream) const { api->streamDestroy(stream); }
  void operator()(cudaEvent_t event) const { api->eventDestroy(event); }
};
using CudaStream = std::unique_ptr<CUstream_st, CudaCloser>;
using CudaEvent = std::unique_ptr<CUevent_st, CudaCloser>;

/// By default one that orders and does not measure.
CudaEvent makeEvent(const CudaApi &api, unsigned rank,
                    unsigned flags = cudaEventDisableTiming);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_CUDA_API_H
