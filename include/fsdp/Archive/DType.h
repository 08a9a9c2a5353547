//===- DType.h - Element types ----------------------------------*- C++ -*-===//
//
// The element types that both halves know, with their names in the four places
// where they are written: MLIR text, safetensors headers, the .pt2 schema, and
// PyTorch's own enum. One table; an element type that is not here is rejected.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_DTYPE_H
#define FSDP_ARCHIVE_DTYPE_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::archive {

/// An element type. The first fifteen are in the order of the plan file's
/// `DType`; new ones are appended.
enum class DType : uint8_t {
  Bool,
  U8,
  I8,
  I16,
  I32,
  I64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  C128,
  U16,
  U32,
  U64,
  C32,
  F8E4M3FN,
  F8E5M2,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  F8E8M0FNU,
};

/// How many element types there are.
inline constexpr size_t numDTypes = 21;

/// The size of one element in bytes.
size_t getItemSize(DType dtype);

/// The spelling as an MLIR type: `f32`, `i1` for Bool, `ui8`, `complex<f32>`,
/// `f8E4M3FN`.
std::string_view getMLIRName(DType dtype);

/// The spelling in safetensors headers: `F32`; empty where the format has none.
std::string_view getSafetensorsName(DType dtype);

/// The number in PyTorch's C++ enum `c10::ScalarType` (not that of the .pt2
/// schema).
int getTorchCode(DType dtype);

/// The reverse of the above, and of the .pt2 schema's `ScalarType` numbers;
/// nothing if the spelling or number is unknown.
std::optional<DType> getDTypeFromMLIRName(std::string_view name);
std::optional<DType> getDTypeFromSafetensorsName(std::string_view name);
std::optional<DType> getDTypeFromTorchCode(int code);
std::optional<DType> getDTypeFromSchemaCode(int64_t code);

/// The size in bytes of a dense tensor, or nothing if a size is negative or
/// the product does not fit into an int64_t.
template <typename Sizes>
std::optional<int64_t> getDenseBytes(const Sizes &sizes, DType dtype) {
  int64_t bytes = static_cast<int64_t>(getItemSize(dtype));
  bool overflow = false, empty = false;
  for (int64_t size : sizes) {
    if (size < 0)
      return std::nullopt;
    // An empty tensor may have any other sizes: 0 x 2^62 x 2^62 is no overflow.
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (empty)
    return 0;
  if (overflow)
    return std::nullopt;
  return bytes;
}

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_DTYPE_H
