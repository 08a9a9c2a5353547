//===- Compare.h - What two models differ in --------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_CKPT_COMPARE_H
#define FSDP_TOOLS_FSDP_CKPT_COMPARE_H

#include "fsdp/Archive/TensorFiles.h"

namespace fsdp {

/// How the elements of two tensors of the same sizes differ.
struct Difference {
  std::uint64_t different = 0, elements = 0; ///< Those with other bits.
  double most = 0; ///< The largest absolute difference.
};

/// Compares two tensors of the same element type and sizes, a few megabytes at
/// a time.
archive::Expected<Difference> compare(const archive::TensorPieces &left,
                                      const archive::TensorPieces &right);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_CKPT_COMPARE_H
