//===- CPU.cpp - Ordinary memory, one stream, inline ----------------------===//
#include "CPU.h"

#include "fsdp/Runtime/Support/Error.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

using namespace fsdp;

/// Whose allocations this thread makes. c10 has one CPU allocator per process
/// and passes it no context, so the way from it to the rank is the thread.
static thread_local CPUDevice *current = nullptr;
/// What the thread's allocations follow; null: nothing.
static thread_local AllocationScript *script = nullptr;

namespace fsdp {

/// Stands before c10's own CPU allocator: follows the script of the thread's
/// rank and counts; on all other threads it is not there.
class CPUAllocator : public c10::Allocator {
public:
  static void install() {
    static const bool once = [] {
      base = c10::GetCPUAllocator();
      // c10 keeps a bare pointer for ever, and so must we.
      static CPUAllocator allocator;
      c10::SetCPUAllocator(&allocator, /*priority=*/100);
      return true;
    }();
    (void)once;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    CPUDevice *device = current;
    if (!device || bytes == 0)
      return base->allocate(bytes);
    if (script) {
      if (script->recording) {
        script->ask(bytes);
        void *place = base->raw_allocate(bytes);
        script->entries.push_back({bytes, place});
        return {place, place, &release, c10::kCPU};
      }
      if (void *place = script->take(bytes)) {
        device->planned.fetch_add(1, std::memory_order_relaxed);
        return {place, place, &release, c10::kCPU};
      }
    }
    device->heap.fetch_add(1, std::memory_order_relaxed);
    device->heapBytes.fetch_add(bytes, std::memory_order_relaxed);
    return base->allocate(bytes);
  }

  /// oneDNN frees through this what it allocated through `allocate`.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void *target, const void *source,
                 std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

private:
  static void release(void *place) {
    if (CPUDevice *device = current) {
      if (device->owns(place))
        return;
      if (script && script->recording)
        script->noteRelease(place);
    }
    base->raw_deallocate(place);
  }

  static inline c10::Allocator *base = nullptr;
};

} // namespace fsdp

CPUDevice::~CPUDevice() {
  for (const Block &block : blocks)
    munmap(block.data, block.bytes);
}

void CPUDevice::enter() { current = this; }
void CPUDevice::leave() { current = nullptr; }
void CPUDevice::follow(AllocationScript *followed) { script = followed; }

std::byte *CPUDevice::allocate(planfile::Space, std::size_t bytes) {
  if (bytes == 0)
    return nullptr;
  // Huge pages need their alignment, and are worth it for more than one.
  constexpr std::size_t huge = std::size_t{2} << 20;
  std::size_t unit = bytes >= huge ? huge : 4096;
  std::size_t wanted = (bytes + unit - 1) / unit * unit;
  std::size_t mapped = unit == huge ? wanted + huge : wanted;
  void *raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED)
    throw Error("cannot map " + std::to_string(wanted) +
                " bytes for the arena: " + std::strerror(errno));
  auto *begin = static_cast<std::byte *>(raw);
  std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % unit;
  std::size_t after = mapped - before - wanted;
  if (before)
    munmap(begin, before);
  if (after)
    munmap(begin + before + wanted, after);
  blocks.push_back({begin + before, wanted});
  if (unit == huge)
    madvise(begin + before, wanted, MADV_HUGEPAGE);
  return begin + before;
}

void CPUDevice::copy(planfile::Stream, void *target, const void *source,
                     std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void CPUDevice::fill(planfile::Stream, void *target, unsigned char value,
                     std::size_t bytes) {
  std::memset(target, value, bytes);
}

bool CPUDevice::owns(const void *address) const {
  auto *place = static_cast<const std::byte *>(address);
  return std::any_of(blocks.begin(), blocks.end(), [&](const Block &block) {
    return std::less_equal<>{}(block.data, place) &&
           std::less<>{}(place, block.data + block.bytes);
  });
}

void CPUDevice::installAllocator() { CPUAllocator::install(); }
