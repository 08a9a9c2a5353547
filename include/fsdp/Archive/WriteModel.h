//===- WriteModel.h - A whole model for others ------------------*- C++ -*-===//
//
// Tensors as `save_pretrained` of Hugging Face writes them: in one safetensors
// file, or in a folder of several with an index. One tensor at a time is whole
// in memory. A folder appears when all of it is on the disk.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_WRITEMODEL_H
#define FSDP_ARCHIVE_WRITEMODEL_H

#include "fsdp/Archive/Safetensors.h"

namespace fsdp::archive {

/// Why no model can be written to `path`, a .safetensors file or a folder that
/// does not exist yet or is empty; before any work is done.
std::optional<Error> checkModelPath(const std::string &path);

/// Writes tensors, which are in the order of their names, to a file or to files
/// of at most `maxBytes` each, but for larger tensors. `read` returns the
/// content of tensor number `index`; they are asked for in the same order each
/// time. Where `writes` is false, all are read and nothing is written: what a
/// process does that must take part in reading.
std::optional<Error>
writeModel(const std::string &path, uint64_t maxBytes,
           const std::vector<TensorSpec> &tensors, bool writes,
           const std::function<Expected<std::string>(size_t index)> &read);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_WRITEMODEL_H
