//===- SuggestNames.h - What a missing tensor may be called -----*- C++ -*-===//

#ifndef FSDP_LIB_RUNTIME_CHECKPOINTS_SUGGESTNAMES_H
#define FSDP_LIB_RUNTIME_CHECKPOINTS_SUGGESTNAMES_H

#include <string>
#include <vector>

namespace fsdp {

/// A tensor that is wanted, or one that is there and that nobody wants.
struct NamedTensor {
  std::string name, type; ///< The type as `spellTensor` has it.
};

/// The end of a sentence about tensors that are missing: which unused ones have
/// the shape and dtype of the first, and the --rename that finds all. Empty if
/// there is nothing to say. `used`: names that are matched, which a --rename
/// must leave alone.
std::string suggestNames(const std::vector<NamedTensor> &missing,
                         const std::vector<NamedTensor> &unused,
                         const std::vector<std::string> &used);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_CHECKPOINTS_SUGGESTNAMES_H
