//===- TextMutator.h - Damages text that has a structure --------*- C++ -*-===//
//
// JSON, TOML and MLIR have tokens, brackets, items between commas, and lines.
// Damage that respects these gets past the parser far more often than that of
// single bytes: a number becomes a large one, an item is gone, there twice, or
// one from elsewhere.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_TEXTMUTATOR_H
#define FSDP_FUZZ_TEXTMUTATOR_H

#include "Random.h"

#include <string>
#include <string_view>

namespace fsdp::fuzz {

/// A text with a few things changed, of at most `maxSize` bytes.
std::string mutateText(std::string text, Random &random, size_t maxSize);

/// `text` with a piece of `other`, where one of the same kind stood.
std::string spliceText(std::string_view text, std::string_view other,
                       Random &random);

/// Bytes as libFuzzer changes them.
std::string mutateBytes(std::string bytes, size_t maxSize);

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_TEXTMUTATOR_H
