//===- CUDADeviceTest.cpp - What a device asks of CUDA, in order ----------===//
#include "FakeCuda.h"

#include "fsdp/Runtime/Support/Error.h"

#include <c10/core/CPUAllocator.h>

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

using namespace fsdp;
using namespace testing;
using planfile::Space;
using planfile::Stream;

namespace {

class CUDADeviceTest : public Test {
protected:
  CUDADeviceTest() {
    fake.enter('a');
    device = std::make_unique<CUDADevice>(fake.api, 3);
    made = fake.takeLog('a');
    ScriptedHeap::next = c10::GetCPUAllocator();
  }

  FakeCuda::Log log() { return fake.takeLog('a'); }

  template <typename Call> std::string errorOf(Call call) {
    try {
      call();
    } catch (const Error &error) {
      return error.what();
    }
    return "no error";
  }

  FakeCuda fake;
  std::unique_ptr<CUDADevice> device;
  FakeCuda::Log made;
};

TEST_F(CUDADeviceTest, MakesItsStreamsAndWarmsUpOnCompute) {
  EXPECT_THAT(made, ElementsAre("setDevice 0",
                                "streamCreate a.compute flags 1 priority 0",
                                "streamCreate a.gather flags 1 priority -5",
                                "streamCreate a.reduce flags 1 priority -5",
                                "streamCreate a.all_reduce flags 1 priority -5",
                                "streamCreate a.copy flags 1 priority 0",
                                "useStream a.compute", "useStream default"));
  EXPECT_EQ(fake.warmUps, 1u);
  EXPECT_EQ(device->torchDevice(), c10::Device(c10::kCUDA, 0));
}

TEST_F(CUDADeviceTest, EntersLeavesAndSelects) {
  device->enter();
  device->select(Stream::Reduce);
  EXPECT_EQ(device->selectedStream(), device->stream(Stream::Reduce));
  device->leave();
  device->enter();
  EXPECT_EQ(device->selectedStream(), device->stream(Stream::Compute));
  device->leave();
  EXPECT_THAT(log(), ElementsAre("setDevice 0", "useStream a.compute",
                                 "useStream a.reduce", "useStream default",
                                 "setDevice 0", "useStream a.compute",
                                 "useStream default"));
}

// The thread is as it was, whatever its GPU and its stream are.
TEST_F(CUDADeviceTest, LeavesTheCallersGPUAndStream) {
  CUDADevice other(fake.api, 4, /*index=*/2);
  device->enter(); // GPU 0
  cudaStream_t own = device->selectedStream();
  other.enter();
  int gpu = -1;
  fake.api.getDevice(&gpu);
  EXPECT_EQ(gpu, 2);
  EXPECT_EQ(fake.api.currentStream().stream, other.stream(Stream::Compute));
  other.leave();
  fake.api.getDevice(&gpu);
  EXPECT_EQ(gpu, 0);
  EXPECT_EQ(fake.api.currentStream().stream, own);
  device->leave();
  EXPECT_EQ(fake.api.currentStream().stream, nullptr);
}

// Streams take turns at random: a wait that is missing shows as an old value.
TEST_F(CUDADeviceTest, HasItsPlaceInTheCallersStream) {
  std::byte *batch = device->allocate(Space::Device, 4096);
  std::byte *input = device->allocate(Space::Device, 4096);
  device->enter();
  for (int step = 1; step != 200; ++step) {
    fake.api.memsetAsync(batch, step, 4096, nullptr); // the caller's
    device->awaitCaller();
    device->copy(Stream::Compute, input, batch, 4096);
    device->letCallerAwait();
    fake.api.memsetAsync(batch, 0, 4096, nullptr);
    device->synchronize();
    ASSERT_EQ(input[17], static_cast<std::byte>(step));
  }
  device->leave();
}

TEST_F(CUDADeviceTest, AllocatesZeroedAlignedMemoryInEverySpace) {
  EXPECT_EQ(device->allocate(Space::Device, 0), nullptr);
  for (Space space : {Space::Device, Space::Pinned, Space::Host}) {
    std::byte *place = device->allocate(space, 5000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 4096, 0u);
    for (unsigned i = 0; i != 5000; ++i)
      ASSERT_EQ(place[i], std::byte{0}) << EnumNameSpace(space) << " " << i;
  }
  EXPECT_THAT(log(), ElementsAre("malloc 12288",
                                 "memsetAsync a.m0+0 = 0 x 8192 on a.compute",
                                 "streamSynchronize a.compute",
                                 "hostAlloc 12288 flags 0",
                                 "memsetAsync a.m1+0 = 0 x 8192 on a.compute",
                                 "streamSynchronize a.compute"));
}

TEST_F(CUDADeviceTest, FreesEverythingWithTheDevice) {
  device->allocate(Space::Device, 1);
  device->allocate(Space::Pinned, 1);
  device->allocate(Space::Host, 1);
  device->programEvents(0, 2);
  device->fill(Stream::Copy, device->allocate(Space::Device, 8), 1, 8);
  log();
  device.reset();
  EXPECT_THAT(log(), ElementsAre("streamSynchronize a.compute",
                                 "streamSynchronize a.gather",
                                 "streamSynchronize a.reduce",
                                 "streamSynchronize a.all_reduce",
                                 "streamSynchronize a.copy", "free a.m0",
                                 "freeHost a.m1", "free a.m2"));
  EXPECT_TRUE(fake.isEmpty());
}

// The memory is somebody else's, who may use it after the device.
TEST_F(CUDADeviceTest, PinsMemoryAsLongAsItLives) {
  std::vector<std::byte> memory(5000);
  device->pin(memory);
  device->pin({});
  EXPECT_THAT(log(), ElementsAre("hostRegister 5000 flags 1"));
  device.reset();
  EXPECT_THAT(log(), Contains("hostUnregister "));
  EXPECT_TRUE(fake.isEmpty());
}

TEST_F(CUDADeviceTest, CopiesWithinItsMemoryWithoutWaiting) {
  std::byte *here = device->allocate(Space::Device, 64);
  std::byte *there = device->allocate(Space::Pinned, 64);
  log();
  device->fill(Stream::Gather, here, 7, 64);
  device->copy(Stream::Gather, there + 8, here, 16);
  EXPECT_EQ(there[8], std::byte{0});
  EXPECT_THAT(log(),
              ElementsAre("memsetAsync a.m0+0 = 7 x 64 on a.gather",
                          "memcpyAsync a.m1+8 = a.m0+0 x 16 on a.gather"));
  device->synchronize();
  EXPECT_EQ(there[7], std::byte{0});
  EXPECT_EQ(there[8], std::byte{7});
  EXPECT_EQ(there[23], std::byte{7});
  EXPECT_EQ(there[24], std::byte{0});
}

// As CUDA itself does: a fake that did not would hide it.
TEST_F(CUDADeviceTest, CopiesFromAndToUnpinnedMemoryAtOnce) {
  std::byte *here = device->allocate(Space::Device, 64);
  log();
  int value = 42, back = 0;
  device->copy(Stream::Compute, here, &value, sizeof value);
  device->copy(Stream::Compute, &back, here, sizeof back);
  EXPECT_EQ(back, 42);
  EXPECT_THAT(log(), ElementsAre("memcpyAsync a.m0+0 = host x 4 on a.compute",
                                 "streamSynchronize a.compute",
                                 "memcpyAsync host = a.m0+0 x 4 on a.compute",
                                 "streamSynchronize a.compute"));
  int pinned = 0;
  device->pin(std::as_writable_bytes(std::span(&pinned, 1)));
  fake.takeBlocking('a');
  fake.api.memcpyAsync(&pinned, here, 4, cudaMemcpyDefault,
                       device->stream(Stream::Compute));
  EXPECT_THAT(fake.takeBlocking('a'), IsEmpty());
  fake.api.memcpyAsync(&back, here, 4, cudaMemcpyDefault,
                       device->stream(Stream::Compute));
  EXPECT_THAT(fake.takeBlocking('a'),
              ElementsAre("memcpyAsync host = a.m0+0 x 4 on a.compute"));
}

//===----------------------------------------------------------------------===//
// A host that runs ahead
//===----------------------------------------------------------------------===//

// Streams run in any order; each missing wait shows as a wrong number.
TEST_F(CUDADeviceTest, RunsFollowOneAnotherOnTheGPU) {
  for (unsigned seed = 0; seed != 50; ++seed) {
    FakeCuda shuffled(seed);
    shuffled.enter('a');
    CUDADevice ahead(shuffled.api, 0, 0, /*ahead=*/true);
    ahead.enter();
    std::vector<int> numbers(static_cast<std::size_t>(Stream::MAX) + 1);
    shuffled.takeBlocking('a');
    for (int run = 1; run != 4; ++run) {
      // What is uploaded is there for all streams.
      shuffled.launch(ahead.stream(Stream::Compute), [&] { ++numbers[0]; });
      ahead.beginRun();
      for (std::size_t i = 1; i != numbers.size(); ++i)
        shuffled.launch(ahead.stream(Stream(i)),
                        [&, i] { numbers[i] = numbers[0]; });
      ahead.endRun();
      shuffled.launch(ahead.stream(Stream::Compute), [&, run] {
        EXPECT_THAT(numbers, Each(run)) << "seed " << seed;
      });
    }
    EXPECT_THAT(shuffled.takeBlocking('a'), IsEmpty());
    ahead.synchronize();
    ahead.leave();
  }
}

TEST_F(CUDADeviceTest, UploadsTakeTheirBytesAtOnce) {
  CUDADevice ahead(fake.api, 0, 0, /*ahead=*/true);
  std::byte *place = ahead.allocate(Space::Device, 4);
  int value = 0;
  auto upload = [&] {
    ahead.upload(place, std::as_bytes(std::span(&value, 1)));
  };
  std::vector<int> seen;
  auto look = [&] {
    fake.launch(ahead.stream(Stream::Compute),
                [&] { seen.push_back(*reinterpret_cast<int *>(place)); });
  };
  upload();
  ahead.synchronize();
  fake.takeBlocking('a');
  for (value = 1; value != 3; ++value) {
    upload();
    look();
  }
  EXPECT_THAT(seen, IsEmpty());
  EXPECT_THAT(fake.takeBlocking('a'), IsEmpty());
  ahead.synchronize();
  EXPECT_THAT(seen, ElementsAre(1, 2));
}

TEST_F(CUDADeviceTest, EventsBelongToProgramsAndOrderStreams) {
  device->programEvents(0, 1);
  device->programEvents(2, 2);
  EXPECT_THAT(log(), ElementsAre("eventCreate a.e0 flags 2",
                                 "eventCreate a.e1 flags 2",
                                 "eventCreate a.e2 flags 2"));
  device->record(Stream::Compute, 2, 1);
  device->wait(Stream::Gather, 2, 1);
  device->record(Stream::Gather, 0, 0);
  EXPECT_THAT(log(), ElementsAre("eventRecord a.e2 on a.compute",
                                 "streamWaitEvent a.e2 by a.gather",
                                 "eventRecord a.e0 on a.gather"));
}

//===----------------------------------------------------------------------===//
// Times
//===----------------------------------------------------------------------===//

// Kernels of 50 and 20 microseconds, of which the second waits for the first;
// every other call takes one.
TEST_F(CUDADeviceTest, MarksAreTimesOfTheGPU) {
  for (bool isAhead : {false, true})
    for (unsigned seed = 0; seed != 20; ++seed) {
      FakeCuda shuffled(seed);
      shuffled.enter('a');
      CUDADevice timed(shuffled.api, 0, 0, isAhead);
      timed.programEvents(0, 1);
      cudaStream_t compute = timed.stream(Stream::Compute),
                   gather = timed.stream(Stream::Gather);
      for (int run = 0; run != 3; ++run) {
        shuffled.launch(compute, [] {}, /*microseconds=*/1e3);
        timed.beginRun();
        double before = Device::hostTime(Device::hostMark());
        std::uint64_t begin = timed.mark(Stream::Compute);
        double after = Device::hostTime(Device::hostMark());
        shuffled.launch(compute, [] {}, 50);
        std::uint64_t end = timed.mark(Stream::Compute);
        timed.record(Stream::Compute, 0, 0);
        std::uint64_t waits = timed.mark(Stream::Gather);
        timed.wait(Stream::Gather, 0, 0);
        std::uint64_t waited = timed.mark(Stream::Gather);
        shuffled.launch(gather, [] {}, 20);
        std::uint64_t ended = timed.mark(Stream::Gather);
        timed.endRun();
        timed.synchronize();
        auto since = [&](std::uint64_t mark) {
          return std::round(1e6 * (timed.timeOf(mark) - timed.timeOf(begin)));
        };
        // What was queued before the run is not part of it.
        EXPECT_GE(timed.timeOf(begin), before);
        EXPECT_LE(timed.timeOf(begin), after + 1e-5);
        EXPECT_EQ(since(end), 51);
        EXPECT_LE(since(waits), 1);
        EXPECT_EQ(since(waited), 53);
        EXPECT_EQ(since(ended), 74);
      }
    }
}

// Only who marks pays: with a wait, and an event for each mark and one more,
// which are made once.
TEST_F(CUDADeviceTest, MarksUseTheirEventsAgain) {
  device->beginRun();
  EXPECT_THAT(log(), IsEmpty());
  for (const char *made : {"eventCreate a.e0 flags 0", ""}) {
    device->beginRun();
    std::uint64_t mark = device->mark(Stream::Reduce);
    EXPECT_GT(device->mark(Stream::Reduce), mark);
    device->synchronize();
    double begin = device->timeOf(mark);
    EXPECT_LT(begin, device->timeOf(mark + 1));
    FakeCuda::Log calls = log();
    EXPECT_EQ(std::ranges::count_if(
                  calls, [](auto &call) { return call.starts_with("eventC"); }),
              *made ? 3 : 0);
    std::erase_if(calls, [](const std::string &call) {
      return call.starts_with("streamS") || call.starts_with("eventC");
    });
    EXPECT_THAT(calls, ElementsAre("eventRecord a.e0 on a.compute",
                                   "eventSynchronize a.e0",
                                   "eventRecord a.e1 on a.reduce",
                                   "eventRecord a.e2 on a.reduce",
                                   "eventElapsedTime a.e1 since a.e0",
                                   "eventElapsedTime a.e2 since a.e0"));
  }
}

TEST_F(CUDADeviceTest, ErrorsNameRankCallAndReason) {
  fake.failures["malloc"] = cudaErrorMemoryAllocation;
  EXPECT_EQ(errorOf([&] { device->allocate(Space::Device, 8); }),
            "rank 3: cudaMalloc: out of memory");
  fake.failures["hostAlloc"] = cudaErrorUnknown;
  EXPECT_EQ(errorOf([&] { device->allocate(Space::Pinned, 8); }),
            "rank 3: cudaHostAlloc: it is broken");
  EXPECT_EQ(errorOf([&] {
              std::uint64_t mark = device->mark(Stream::Compute);
              fake.failures["eventElapsedTime"] = cudaErrorUnknown;
              device->synchronize();
              device->timeOf(mark);
            }),
            "rank 3: cudaEventElapsedTime: it is broken");
  fake.failures["eventCreate"] = cudaErrorUnknown;
  EXPECT_EQ(errorOf([&] { device->programEvents(0, 1); }),
            "rank 3: cudaEventCreateWithFlags: it is broken");
  fake.failures["streamCreate"] = cudaErrorUnknown;
  fake.failures["setDevice"] = cudaErrorInsufficientDriver;
  EXPECT_EQ(errorOf([&] { device->enter(); }),
            "rank 3: cudaSetDevice: it is broken");
  EXPECT_EQ(errorOf([&] { CUDADevice(fake.api, 1); }),
            "rank 1: cudaSetDevice: it is broken");
}

//===----------------------------------------------------------------------===//
// Allocations of operators
//===----------------------------------------------------------------------===//

TEST_F(CUDADeviceTest, ThreadsOfNobodyGetTheOrdinaryHeap) {
  c10::DataPtr data = ScriptedHeap::allocate(100);
  EXPECT_EQ(data.device(), c10::Device(c10::kCPU)); // next's own, untouched
  EXPECT_EQ(device->allocationCounts().heap, 0u);
}

// A tensor of the caller may be freed by any thread, the rank's too, and one
// that an operator has made there by the caller's.
TEST_F(CUDADeviceTest, WhatOthersHaveAllocatedIsFreedByTheirHeap) {
  std::byte *arena = device->allocate(Space::Device, 4096);
  c10::DataPtr callers = ScriptedHeap::allocate(100);
  AllocationScript recorded;
  recorded.recording = true;
  AllocationScript replayed;
  replayed.entries = {{.bytes = 64, .place = arena}};
  device->enter();
  device->follow(&recorded);
  c10::DataPtr made = ScriptedHeap::allocate(64);
  std::thread([&] { // while the rank records
    c10::DataPtr elsewhere = ScriptedHeap::allocate(200);
    EXPECT_EQ(elsewhere.device(), c10::Device(c10::kCPU));
  })
      .join();
  callers.clear();
  device->follow(&replayed);
  c10::DataPtr planned = ScriptedHeap::allocate(64);
  device->leave();
  EXPECT_EQ(planned.get(), arena);
  std::thread([&] {
    made.clear(); // its memory, which leak checks look for
    planned.clear();
  }).join();
  ASSERT_EQ(recorded.entries.size(), 1u);
  EXPECT_FALSE(recorded.entries[0].released);
  EXPECT_EQ(device->allocationCounts().heap, 0u);
  EXPECT_EQ(ScriptedHeap::allocate(64).device(), c10::Device(c10::kCPU));
}

// A kernel that knows a way with less memory, as cuDNN's do, takes that.
TEST_F(CUDADeviceTest, AnOperatorMayBeRefusedMemoryAndGoOn) {
  AllocationScript script;
  script.recording = true;
  script.most = 128;
  device->enter();
  device->follow(&script);
  EXPECT_THROW(ScriptedHeap::allocate(129), c10::OutOfMemoryError);
  ScriptedHeap::allocate(128).clear();
  device->follow(nullptr);
  device->leave();
  ASSERT_EQ(script.entries.size(), 1u);
  EXPECT_EQ(script.entries[0].bytes, 128u);
}

TEST_F(CUDADeviceTest, RecordsWhatAnOperatorAllocates) {
  device->enter();
  AllocationScript script;
  script.recording = true;
  device->follow(&script);
  c10::DataPtr result = ScriptedHeap::allocate(100);
  EXPECT_EQ(result.device(), device->torchDevice());
  ScriptedHeap::allocate(200).clear();
  device->follow(nullptr);
  device->leave();

  ASSERT_EQ(script.entries.size(), 2u);
  EXPECT_EQ(script.entries[0].bytes, 100u);
  EXPECT_EQ(script.entries[0].place, result.get());
  EXPECT_FALSE(script.entries[0].released);
  EXPECT_EQ(script.entries[1].bytes, 200u);
  EXPECT_TRUE(script.entries[1].released);
  EXPECT_EQ(device->allocationCounts().planned, 0u);
  EXPECT_EQ(device->allocationCounts().heap, 0u);
}

TEST_F(CUDADeviceTest, ReplaysAScriptWithPlannedPlaces) {
  std::byte *arena = device->allocate(Space::Device, 4096);
  AllocationScript script;
  script.entries = {{.bytes = 64, .place = arena},
                    {.bytes = 128, .place = arena + 512}};
  device->enter();
  device->follow(&script);
  c10::DataPtr first = ScriptedHeap::allocate(64);
  c10::DataPtr second = ScriptedHeap::allocate(128);
  EXPECT_EQ(first.get(), arena);
  EXPECT_EQ(first.get_context(), arena); // what raw_allocate insists on
  EXPECT_EQ(second.get(), arena + 512);
  EXPECT_EQ(second.device(), device->torchDevice());
  c10::DataPtr third = ScriptedHeap::allocate(32);
  device->follow(nullptr);
  c10::DataPtr fourth = ScriptedHeap::allocate(16);
  device->leave();
  AllocationCounts counts = device->allocationCounts();
  EXPECT_EQ(counts.planned, 2u);
  EXPECT_EQ(counts.heap, 2u);
  EXPECT_EQ(counts.heapBytes, 48u);
  first.clear(); // also on a thread that is no rank's: the place stays
  ScriptedHeap::release(second.release_context());
}

TEST_F(CUDADeviceTest, SkipsWhatALibraryAllocatedOnlyOnce) {
  std::byte *arena = device->allocate(Space::Device, 4096);
  AllocationScript script;
  script.entries = {{.bytes = 32, .place = nullptr},
                    {.bytes = 64, .place = arena}};
  device->enter();
  device->follow(&script);
  EXPECT_EQ(ScriptedHeap::allocate(64).get(), arena);
  script.next = 0;
  EXPECT_NE(ScriptedHeap::allocate(32).get(), arena); // once more after all
  EXPECT_EQ(ScriptedHeap::allocate(64).get(), arena);
  device->leave();
  EXPECT_EQ(device->allocationCounts().planned, 2u);
  EXPECT_EQ(device->allocationCounts().heap, 1u);
}

TEST_F(CUDADeviceTest, AnotherSizeThanRecordedComesFromTheHeap) {
  std::byte *arena = device->allocate(Space::Device, 4096);
  AllocationScript script;
  script.entries = {{.bytes = 64, .place = arena}};
  device->enter();
  device->follow(&script);
  EXPECT_NE(ScriptedHeap::allocate(65).get(), arena);
  device->leave();
  EXPECT_EQ(device->allocationCounts().planned, 0u);
  EXPECT_EQ(device->allocationCounts().heap, 1u);
}

} // namespace
