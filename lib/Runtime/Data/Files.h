//===- Files.h - Tensors of files -------------------------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_DATA_FILES_H
#define FSDP_LIB_RUNTIME_DATA_FILES_H

#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Runtime/Data/Data.h"

namespace fsdp {

/// Reads `bytes.size()` bytes of a tensor from byte `begin` on.
void readBytes(const archive::Safetensors &file,
               const archive::TensorInfo &tensor, std::uint64_t begin,
               std::span<std::byte> bytes);

/// The tensors of a file that are a plan's inputs: called in_0, in_1, ..., or
/// as the model calls them. Then there may be no others, but for those that
/// `isOther` names: what fits no input is a mistake.
std::vector<const archive::TensorInfo *>
findInputs(const archive::Safetensors &file,
           const std::vector<InputSpec> &inputs,
           bool (*isOther)(std::string_view name));

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DATA_FILES_H
