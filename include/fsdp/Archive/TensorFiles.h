//===- TensorFiles.h - A model in one or several files ----------*- C++ -*-===//
//
// Tensors by name, wherever they are: in a safetensors file; in a folder as
// `save_pretrained` of Hugging Face writes it (`model.safetensors`, or several
// files and `model.safetensors.index.json`); or in a folder of
// `torch.distributed.checkpoint` or of our own (`Checkpoint.h`), in which many
// files hold boxes of one tensor and say so in their metadata
// (DCP_SHARDING_INFO, as PyTorch's HuggingFaceStorageWriter writes it). All is
// untrusted input: files are plain names in their folder, hold what an index
// says, and the boxes of a tensor cover it once.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_TENSORFILES_H
#define FSDP_ARCHIVE_TENSORFILES_H

#include "fsdp/Archive/Box.h"
#include "fsdp/Archive/Safetensors.h"

#include <functional>

namespace fsdp::archive {

/// Where a tensor is: each piece is a box, dense and row-major.
struct TensorPieces {
  struct Piece {
    Box box;
    const Safetensors *file;
    const TensorInfo *info;
  };
  using Visit = std::function<std::optional<Error>(const Piece &)>;

  DType dtype;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;
  /// Where files are opened when they are read: calls `visit` with the pieces
  /// that have an element of a box. There are none in `pieces`.
  std::function<std::optional<Error>(const Box &box, const Visit &visit)> find =
      {};
};

/// Copies a box of a tensor, dense and row-major. An error if a file has been
/// changed.
std::optional<Error> readBox(const TensorPieces &tensor, const Box &box,
                             char *to);

/// A file and its checksums.
struct CheckedFile {
  std::string name; ///< Of a file in the same folder.
  BlockSums sums;
};

class TensorFiles {
public:
  using Tensors = std::map<std::string, TensorPieces, std::less<>>;

  /// Opens a file or a folder.
  static Expected<TensorFiles> open(const std::string &path);
  /// Files that hold boxes.
  static Expected<TensorFiles> open(const std::string &folder,
                                    std::vector<CheckedFile> files);

  /// What others open.
  static TensorFiles of(Tensors tensors);

  const Tensors &tensors() const { return table; }
  /// Those that are open, in the order of their names.
  const std::vector<Safetensors> &files() const { return opened; }

private:
  std::optional<Error> addWhole(const Safetensors &file);
  std::optional<Error> addBoxes(const Safetensors &file);
  std::optional<Error> checkCoverage(const std::string &path);

  std::vector<Safetensors> opened;
  Tensors table;
};

/// The box of each tensor of a file, in their order: what its metadata say of
/// them, or all of a tensor.
Expected<std::vector<Box>> readBoxes(const Safetensors &file);

/// A plain name of something in a folder, which leads nowhere else.
bool isPlainName(std::string_view name);

/// What `TensorFiles` reads of where its files have which box.
inline constexpr const char *shardingInfo = "DCP_SHARDING_INFO";
/// The metadata of a file whose tensors are these boxes.
SafetensorsMetadata
makeShardingMetadata(const std::vector<std::pair<std::string, Box>> &boxes);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_TENSORFILES_H
