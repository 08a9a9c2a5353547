//===- Safetensors.h - The safetensors file format --------------*- C++ -*-===//
//
// Reads and writes `.safetensors` files: 8 bytes of header length, a JSON
// header, and the tensors' bytes, dense and row-major. Bytes are read when they
// are asked for. A file is untrusted input: whatever departs from the format
// (holes, overlaps, sizes that do not fit, names given twice) is rejected with
// a sentence.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_SAFETENSORS_H
#define FSDP_ARCHIVE_SAFETENSORS_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/InputFile.h"

#include <functional>
#include <map>
#include <vector>

namespace fsdp::archive {

/// A dense, row-major tensor of a file.
struct TensorInfo {
  std::string name;
  DType dtype;
  /// Sizes in elements; empty for a scalar.
  std::vector<int64_t> shape;
  /// Where its bytes begin in the file, and how many there are: the product of
  /// `shape` times the item size.
  uint64_t offset, bytes;
};

/// A dense, row-major tensor whose bytes belong to somebody else.
struct TensorRef {
  std::string name;
  DType dtype;
  /// Sizes in elements; empty for a scalar.
  std::vector<int64_t> shape;
  /// Exactly the product of `shape` times the item size.
  std::string_view bytes;
};

/// The `__metadata__` of a file: text by name.
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

/// A file opened for reading.
class Safetensors {
public:
  /// Opens the file at `path` and checks all of its header.
  static Expected<Safetensors> open(const std::string &path);
  /// The same of a file with these checksums.
  static Expected<Safetensors> open(const std::string &path, BlockSums sums);

  const std::string &path() const { return file.path(); }

  /// All tensors in the order of their bytes.
  const std::vector<TensorInfo> &tensors() const { return table; }

  /// The tensor called `name`, or null.
  const TensorInfo *find(std::string_view name) const;

  /// Copies `count` bytes of one of the tensors from byte `begin` on. An error
  /// if the file has become shorter.
  std::optional<Error> read(const TensorInfo &tensor, uint64_t begin, char *to,
                            uint64_t count) const {
    return file.read(tensor.offset + begin, to, count);
  }

  const SafetensorsMetadata &metadata() const { return texts; }

private:
  static Expected<Safetensors> read(Expected<InputFile> file);

  explicit Safetensors(InputFile file) : file(std::move(file)) {}

  InputFile file;
  std::vector<TensorInfo> table;
  std::map<std::string, size_t, std::less<>> indices;
  SafetensorsMetadata texts;
};

/// Writes `tensors` to `path` in the given order, except that those with large
/// elements come first, so that every tensor is aligned to its item size.
/// Returns the size of the file in bytes, and sets its checksums if asked for.
Expected<uint64_t> writeSafetensors(const std::string &path,
                                    const std::vector<TensorRef> &tensors,
                                    const SafetensorsMetadata &metadata = {},
                                    BlockSums *sums = nullptr);

/// A dense, row-major tensor whose bytes are yet to come.
struct TensorSpec {
  std::string name;
  DType dtype;
  /// Sizes in elements; empty for a scalar.
  std::vector<int64_t> shape;
};

/// The order in which tensors are written.
std::vector<size_t> getFileOrder(const std::vector<TensorSpec> &tensors);

/// The same of tensors that are read, by their index, when they are written:
/// one at a time, in their order in the file.
Expected<uint64_t>
writeSafetensors(const std::string &path,
                 const std::vector<TensorSpec> &tensors,
                 const SafetensorsMetadata &metadata,
                 const std::function<Expected<std::string>(size_t)> &read);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_SAFETENSORS_H
