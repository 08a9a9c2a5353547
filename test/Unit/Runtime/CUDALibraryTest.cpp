//===- CUDALibraryTest.cpp - libfsdp_cuda.so where there is no GPU --------===//
#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Support/Error.h"

#include <gmock/gmock.h>

using namespace fsdp;
using namespace testing;

// The library needs no driver to be opened, and says in a sentence that there
// is none. Where there is one, the device opens.
// covers: no accelerator, GPU, ImportError, AttributeError
TEST(CUDALibrary, OpensAndSaysThatThereIsNoDriver) {
  std::unique_ptr<Backend> backend =
      loadBackend(FSDP_CUDA_LIBRARY, {.ranks = 2});
  ASSERT_NE(backend, nullptr);
  try {
    std::unique_ptr<Device> device = backend->openDevice({.rank = 1});
    EXPECT_EQ(device->torchDevice(), c10::Device(c10::kCUDA, 0));
  } catch (const Error &error) {
    EXPECT_THAT(error.what(), StartsWith("rank 1: cudaSetDevice: "));
    EXPECT_EQ(error.exitCode(), 1);
  }
}
