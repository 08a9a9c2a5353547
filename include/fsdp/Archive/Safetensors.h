//===- Safetensors.h - The safetensors file format --------------*- C++ -*-===//
//
// Reads and writes `.safetensors` files: 8 bytes of header length, a JSON
// header, and the tensors' bytes, dense and row-major. Reading maps the file
// and looks at the bytes in place. A file is untrusted input: whatever departs
// from the format (holes, overlaps, sizes that do not fit, names given twice)
// is refused with a sentence.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_SAFETENSORS_H
#define FSDP_ARCHIVE_SAFETENSORS_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/MappedFile.h"

#include <map>
#include <vector>

namespace fsdp::archive {

/// A dense, row-major tensor whose bytes belong to somebody else.
struct TensorRef {
  std::string name;
  DType dtype;
  /// Sizes in elements; empty for a scalar.
  std::vector<int64_t> shape;
  /// Exactly the product of `shape` times the item size. Of a file that
  /// another program wrote, the address may be aligned to nothing.
  std::string_view bytes;
};

/// The `__metadata__` of a file: text by name.
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

/// A file opened for reading.
class Safetensors {
public:
  /// Maps the file at `path` and checks all of its header.
  static Expected<Safetensors> open(const std::string &path);

  const std::string &path() const { return file.path(); }

  /// All tensors in the order of their bytes. These point into the file: they
  /// are valid as long as this object, or the one it was moved to.
  const std::vector<TensorRef> &tensors() const { return table; }

  /// The tensor called `name`, or null.
  const TensorRef *find(std::string_view name) const;

  const SafetensorsMetadata &metadata() const { return texts; }

private:
  explicit Safetensors(MappedFile file) : file(std::move(file)) {}

  MappedFile file;
  std::vector<TensorRef> table;
  std::map<std::string, size_t, std::less<>> indices;
  SafetensorsMetadata texts;
};

/// Writes `tensors` to `path` in the given order, except that those with large
/// elements come first, so that every tensor is aligned to its item size. The
/// file appears under its name only when all of it is on the disk: it is
/// written under another name in the same folder, synchronised and renamed.
/// Returns the size of the file in bytes.
Expected<uint64_t> writeSafetensors(const std::string &path,
                                    const std::vector<TensorRef> &tensors,
                                    const SafetensorsMetadata &metadata = {});

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_SAFETENSORS_H
