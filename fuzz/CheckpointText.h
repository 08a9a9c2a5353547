//===- CheckpointText.h - A folder of a checkpoint as one text --*- C++ -*-===//
//
// What the fuzzer changes is a text: of each file a line with its name, and for
// a safetensors file how many bytes follow its header, and then its content.
//
//   === ranks/rank-00001.json
//   {"shard-00001-model-00001-of-00001.safetensors":
//    {"bytes": $(bytes shard-...), "blocks": $(blocks shard-...)}}
//   === shard-00001-model-00001-of-00001.safetensors 8
//   {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
//
// Sizes and checksums stand in for themselves, `$(bytes FILE)`, `$(blocks
// FILE)` and `$(sum FILE)`, and are filled in when the folder is written: what
// is behind the checksums is reached.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_CHECKPOINTTEXT_H
#define FSDP_FUZZ_CHECKPOINTTEXT_H

#include <filesystem>
#include <string>

namespace fsdp::fuzz {

/// Writes the files whose names do not leave the folder, which is emptied.
void writeFolder(const std::string &text, const std::filesystem::path &folder);

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_CHECKPOINTTEXT_H
