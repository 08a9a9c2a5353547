//===- SafetensorsFolder.h - One model in several files ---------*- C++ -*-===//
//
// A folder as `save_pretrained` of Hugging Face writes it: `model.safetensors`,
// or several files and `model.safetensors.index.json`, whose `weight_map` says
// in which of them each tensor is. The folder is untrusted input: files are
// plain names in it, and hold what the index says.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_SAFETENSORSFOLDER_H
#define FSDP_ARCHIVE_SAFETENSORSFOLDER_H

#include "fsdp/Archive/Safetensors.h"

namespace fsdp::archive {

/// Opens the files of a folder, in the order of their names. No two of them
/// have a tensor of the same name.
Expected<std::vector<Safetensors>>
openSafetensorsFolder(const std::string &path);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_SAFETENSORSFOLDER_H
