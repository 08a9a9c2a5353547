//===- NumPy.h - Headers of .npy files --------------------------*- C++ -*-===//
//
// What `numpy.save` writes: magic bytes, a version, the header's length, and a
// header of fixed form. A file is untrusted input: whatever departs from the
// form is rejected with a sentence, and no part of it is evaluated.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_NUMPY_H
#define FSDP_ARCHIVE_NUMPY_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/InputFile.h"

#include <vector>

namespace fsdp::archive {

/// A little-endian array in C order.
struct NumPyHeader {
  DType dtype;                 ///< U16, U32, I32 or I64.
  std::vector<uint64_t> shape; ///< One or two sizes in elements.
  uint64_t offset;             ///< Where its elements begin in the file.

  uint64_t numel() const {
    uint64_t product = 1;
    for (uint64_t size : shape)
      product *= size;
    return product;
  }
};

/// The header of an array of integers that takes up all of `file`.
Expected<NumPyHeader> readNumPyHeader(const InputFile &file);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_NUMPY_H
