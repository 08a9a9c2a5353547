//===- Target.h - What libFuzzer calls --------------------------*- C++ -*-===//

#ifndef FSDP_FUZZ_TARGET_H
#define FSDP_FUZZ_TARGET_H

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maxSize,
                               unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *data1, size_t size1,
                                 const uint8_t *data2, size_t size2,
                                 uint8_t *out, size_t maxSize, unsigned seed);
}

namespace fsdp::fuzz {

/// Hands a changed input over, as far as it fits.
inline size_t putInput(uint8_t *data, size_t maxSize, std::string_view bytes) {
  size_t size = std::min(bytes.size(), maxSize);
  std::memcpy(data, bytes.data(), size);
  return size;
}

/// Stops the fuzzer with a finding.
[[noreturn]] inline void report(const char *sentence) {
  std::fprintf(stderr, "found: %s\n", sentence);
  std::abort();
}

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_TARGET_H
