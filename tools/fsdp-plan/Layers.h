//===- Layers.h - Names of layers, for people -------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_LAYERS_H
#define FSDP_TOOLS_FSDP_PLAN_LAYERS_H

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

/// "layers.3 to layers.9, layers.12 and 4 others": at most three names or
/// ranges of layers. What stands before the name of a layer is left out where
/// it is the same for all.
std::string spellNames(const std::vector<std::string> &names);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_LAYERS_H
