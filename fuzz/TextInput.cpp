//===- TextInput.cpp - What libFuzzer calls to change a text --------------===//
//
// Of the targets whose files are text.
//
//===----------------------------------------------------------------------===//

#include "Target.h"
#include "TextMutator.h"

using namespace fsdp::fuzz;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maxSize,
                               unsigned seed) {
  Random random(seed);
  std::string text(reinterpret_cast<const char *>(data), size);
  return putInput(data, maxSize, mutateText(std::move(text), random, maxSize));
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *data1, size_t size1,
                                 const uint8_t *data2, size_t size2,
                                 uint8_t *out, size_t maxSize, unsigned seed) {
  Random random(seed);
  std::string result =
      spliceText({reinterpret_cast<const char *>(data1), size1},
                 {reinterpret_cast<const char *>(data2), size2}, random);
  return putInput(out, maxSize, result);
}
