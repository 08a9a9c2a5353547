//===- Device.cpp - One rank's share of a GPU -----------------------------===//
#include "Device.h"

#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

using namespace fsdp;
using planfile::Space;
using planfile::Stream;

/// Whose allocations this thread makes.
static thread_local CUDADevice *current = nullptr;

/// A GPU's own allocations may be aligned to 256 bytes only.
static constexpr std::size_t alignment = 4096;

namespace {

/// The memory of all ranks that a GPU can reach by itself: who frees or copies
/// an address knows neither the rank nor the thread that it belongs to.
class Places {
public:
  void add(std::byte *begin, std::size_t bytes) {
    std::unique_lock lock(mutex);
    ends[begin] = begin + bytes;
  }
  void remove(const void *begin) {
    std::unique_lock lock(mutex);
    ends.erase(static_cast<const std::byte *>(begin));
  }
  bool contains(const void *address) const {
    std::shared_lock lock(mutex);
    const auto *place = static_cast<const std::byte *>(address);
    auto after = ends.upper_bound(place);
    return after != ends.begin() && place < std::prev(after)->second;
  }

private:
  mutable std::shared_mutex mutex;
  std::map<const std::byte *, const std::byte *, std::less<>> ends;
};

} // namespace

static Places places;

//===----------------------------------------------------------------------===//
// The device
//===----------------------------------------------------------------------===//

CUDADevice::CUDADevice(const CudaApi &api, unsigned rank, unsigned index,
                       bool ahead)
    : api(api), rank(rank), index(index), ahead(ahead) {
  enterGPU();
  int least = 0, greatest = 0;
  check(api.deviceGetStreamPriorityRange(&least, &greatest),
        "cudaDeviceGetStreamPriorityRange");
  for (std::size_t i = 0; i != streams.size(); ++i) {
    // A collective that is ready gets the next free processors: all ranks wait
    // for the last of them.
    bool isOfPeers = Stream(i) == Stream::Gather ||
                     Stream(i) == Stream::Reduce ||
                     Stream(i) == Stream::AllReduce;
    // Non-blocking: nothing may wait for the legacy stream by itself.
    cudaStream_t made = nullptr;
    check(api.streamCreateWithPriority(&made, cudaStreamNonBlocking,
                                       isOfPeers ? greatest : least),
          "cudaStreamCreateWithPriority");
    streams[i] = CudaStream(made, CudaCloser{&api});
    if (ahead)
      borders[i] = makeEvent(api, rank);
  }
  api.useStream(stream(Stream::Compute));
  api.warmUp();
  leaveGPU();
}

CUDADevice::~CUDADevice() {
  if (current == this)
    current = nullptr;
  // Whatever is under way after a failure must not outlive its memory.
  for (const CudaStream &stream : streams)
    if (stream)
      api.streamSynchronize(stream.get());
}

void CUDADevice::abandon() {
  for (CudaStream &stream : streams)
    (void)stream.release();
  for (Block &block : blocks)
    (void)block.release();
  for (std::vector<CudaEvent> &program : events)
    for (CudaEvent &event : program)
      (void)event.release();
  for (CudaEvent &event : borders)
    (void)event.release();
  (void)handedOver.release();
  for (auto &[target, staging] : stagings)
    for (CudaEvent &event : staging.uploaded)
      (void)event.release();
  for (CudaEvent &event : marks)
    (void)event.release();
}

void CUDADevice::enterGPU() {
  check(api.getDevice(&callersDevice), "cudaGetDevice");
  check(api.setDevice(static_cast<int>(index)), "cudaSetDevice");
  callers = api.currentStream();
}

void CUDADevice::leaveGPU() {
  api.restoreStream(callers);
  api.restoreDevice(callersDevice);
}

void CUDADevice::enter() {
  enterGPU();
  current = this;
  select(Stream::Compute);
}

void CUDADevice::leave() {
  current = nullptr;
  leaveGPU();
}

void CUDADevice::awaitCaller() {
  if (!handedOver)
    handedOver = makeEvent(api, rank);
  record(callers.stream, handedOver.get());
  wait(stream(Stream::Compute), handedOver.get());
}

void CUDADevice::letCallerAwait() {
  if (!handedOver)
    handedOver = makeEvent(api, rank);
  record(stream(Stream::Compute), handedOver.get());
  wait(callers.stream, handedOver.get());
}

std::optional<Device::Room> CUDADevice::room() const {
  std::size_t free = 0, total = 0;
  check(api.memGetInfo(&free, &total), "cudaMemGetInfo");
  return Room{free, total};
}

std::byte *CUDADevice::allocate(Space space, std::size_t bytes) {
  if (bytes == 0)
    return nullptr;
  std::size_t wanted = (bytes + alignment - 1) / alignment * alignment;
  void *raw = nullptr;
  if (space == Space::Host) {
    raw = std::aligned_alloc(alignment, wanted);
    if (!raw)
      throw Error("rank " + std::to_string(rank) + ": cannot allocate " +
                  std::to_string(wanted) + " bytes of host memory");
    blocks.emplace_back(raw, std::free);
    std::memset(raw, 0, wanted);
    return static_cast<std::byte *>(raw);
  }
  if (space == Space::Pinned)
    check(api.hostAlloc(&raw, wanted + alignment, cudaHostAllocDefault),
          "cudaHostAlloc");
  else
    check(api.malloc(&raw, wanted + alignment), "cudaMalloc");
  auto address = reinterpret_cast<std::uintptr_t>(raw);
  auto *place = static_cast<std::byte *>(raw) + (-address & (alignment - 1));
  blocks.emplace_back(raw, [this, space, place](void *block) {
    places.remove(place);
    space == Space::Pinned ? api.freeHost(block) : api.free(block);
  });
  places.add(place, wanted);
  fill(Stream::Compute, place, 0, wanted);
  finish(stream(Stream::Compute));
  return place;
}

void CUDADevice::pin(std::span<std::byte> memory) {
  if (memory.empty())
    return;
  // Ranks of one process share it.
  check(
      api.hostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
      "cudaHostRegister");
  blocks.emplace_back(memory.data(),
                      [this](void *begin) { api.hostUnregister(begin); });
}

void CUDADevice::select(Stream stream) {
  selected = stream;
  api.useStream(selectedStream());
}

void CUDADevice::copy(Stream stream, void *target, const void *source,
                      std::size_t bytes) {
  cudaStream_t on = this->stream(stream);
  check(api.memcpyAsync(target, source, bytes, cudaMemcpyDefault, on),
        "cudaMemcpyAsync");
  if (!places.contains(target) || !places.contains(source))
    finish(on);
}

void CUDADevice::fill(Stream stream, void *target, unsigned char value,
                      std::size_t bytes) {
  check(api.memsetAsync(target, value, bytes, this->stream(stream)),
        "cudaMemsetAsync");
}

void CUDADevice::programEvents(unsigned program, unsigned count) {
  if (events.size() <= program)
    events.resize(program + 1);
  while (events[program].size() < count)
    events[program].push_back(makeEvent(api, rank));
}

void CUDADevice::record(Stream stream, unsigned program, unsigned event) {
  record(this->stream(stream), events[program][event].get());
}

void CUDADevice::wait(Stream stream, unsigned program, unsigned event) {
  wait(this->stream(stream), events[program][event].get());
}

void CUDADevice::record(cudaStream_t stream, cudaEvent_t event) const {
  check(api.eventRecord(event, stream), "cudaEventRecord");
}

void CUDADevice::wait(cudaStream_t stream, cudaEvent_t event) const {
  check(api.streamWaitEvent(stream, event, cudaEventWaitDefault),
        "cudaStreamWaitEvent");
}

void CUDADevice::synchronize() {
  for (const CudaStream &stream : streams)
    finish(stream.get());
}

void CUDADevice::finish(cudaStream_t stream) const {
  check(api.streamSynchronize(stream), "cudaStreamSynchronize");
}

void CUDADevice::finish(cudaEvent_t event) const {
  check(api.eventSynchronize(event), "cudaEventSynchronize");
}

//===----------------------------------------------------------------------===//
// A host that runs ahead
//===----------------------------------------------------------------------===//

void CUDADevice::beginRun() {
  marked = 0;
  if (!ahead)
    return;
  record(streams[0].get(), borders[0].get());
  for (std::size_t i = 1; i != streams.size(); ++i)
    wait(streams[i].get(), borders[0].get());
}

void CUDADevice::endRun() {
  if (!ahead)
    return synchronize();
  for (std::size_t i = 1; i != streams.size(); ++i) {
    record(streams[i].get(), borders[i].get());
    wait(streams[0].get(), borders[i].get());
  }
}

void CUDADevice::upload(void *target, std::span<const std::byte> bytes) {
  if (!ahead)
    return Device::upload(target, bytes);
  Staging &staging = stagings[target];
  if (staging.bytes < bytes.size()) {
    for (std::size_t i = 0; i != staging.copies.size(); ++i) {
      staging.copies[i] = allocate(Space::Pinned, bytes.size());
      staging.uploaded[i] = makeEvent(api, rank);
    }
    staging.bytes = bytes.size();
  }
  unsigned turn = staging.next++ % staging.copies.size();
  cudaEvent_t uploaded = staging.uploaded[turn].get();
  cudaError_t state = api.eventQuery(uploaded);
  if (state == cudaErrorNotReady)
    finish(uploaded);
  else
    check(state, "cudaEventQuery");
  std::memcpy(staging.copies[turn], bytes.data(), bytes.size());
  copy(Stream::Compute, target, staging.copies[turn], bytes.size());
  record(stream(Stream::Compute), uploaded);
}

//===----------------------------------------------------------------------===//
// Times
//===----------------------------------------------------------------------===//

std::uint64_t CUDADevice::mark(Stream stream) {
  if (marked == 0) {
    // The two clocks are compared where neither has to wait for the other.
    synchronize();
    finish(setMark(Stream::Compute));
    origin = hostTime(hostMark());
  }
  setMark(stream);
  return marked - 1;
}

cudaEvent_t CUDADevice::setMark(Stream stream) {
  if (marked == marks.size())
    marks.push_back(makeEvent(api, rank, cudaEventDefault));
  cudaEvent_t event = marks[marked++].get();
  record(this->stream(stream), event);
  return event;
}

double CUDADevice::timeOf(std::uint64_t mark) const {
  float milliseconds = 0;
  check(api.eventElapsedTime(&milliseconds, marks[0].get(), marks[mark].get()),
        "cudaEventElapsedTime");
  return origin + 1e-3 * static_cast<double>(milliseconds);
}

//===----------------------------------------------------------------------===//
// Allocations of operators
//===----------------------------------------------------------------------===//

c10::DataPtr ScriptedHeap::allocate(std::size_t bytes) {
  CUDADevice *device = current;
  if (!device || bytes == 0)
    return next->allocate(bytes);
  c10::Device where = device->torchDevice();
  if (AllocationScript *script = device->script) {
    if (script->recording) {
      script->ask(bytes);
      void *place = next->raw_allocate(bytes);
      script->entries.push_back({bytes, place});
      return {place, place, &release, where};
    }
    if (void *place = script->take(bytes)) {
      ++device->counts.planned;
      return {place, place, &release, where};
    }
  }
  ++device->counts.heap;
  device->counts.heapBytes += bytes;
  return next->allocate(bytes);
}

void ScriptedHeap::release(void *place) {
  if (places.contains(place))
    return;
  if (CUDADevice *device = current;
      device && device->script && device->script->recording)
    device->script->noteRelease(place);
  next->raw_deallocate(place);
}
