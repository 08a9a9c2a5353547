//===- Layers.h - Names of layers, for people -------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_LAYERS_H
#define FSDP_TOOLS_FSDP_PLAN_LAYERS_H

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace fsdp {

/// A path around its first part that is a number: "model.h.", 3 and ".mlp" of
/// "model.h.3.mlp". Without one, all of it stands before.
struct LayerName {
  llvm::StringRef before, after;
  std::optional<uint64_t> number;
};
LayerName splitLayer(llvm::StringRef path);

/// "0 .. 31", or "1 .. 3, 7", or "30 of 0 .. 31" if there are many gaps.
std::string spellRanges(const std::set<uint64_t> &numbers);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_LAYERS_H
