//===- DType.cpp - Element types ------------------------------------------===//

#include "fsdp/Archive/DType.h"

using namespace fsdp::archive;

namespace {
struct DTypeRow {
  DType dtype;
  uint8_t itemSize;
  uint8_t schemaCode; // ScalarType of the .pt2 schema
  uint8_t torchCode;  // c10::ScalarType
  std::string_view mlirName;
  std::string_view safetensorsName;
};
} // namespace

// In the order of the enum.
static constexpr DTypeRow rows[] = {
    {DType::Bool, 1, 12, 11, "i1", "BOOL"},
    {DType::U8, 1, 1, 0, "ui8", "U8"},
    {DType::I8, 1, 2, 1, "i8", "I8"},
    {DType::I16, 2, 3, 2, "i16", "I16"},
    {DType::I32, 4, 4, 3, "i32", "I32"},
    {DType::I64, 8, 5, 4, "i64", "I64"},
    {DType::F16, 2, 6, 5, "f16", "F16"},
    {DType::BF16, 2, 13, 15, "bf16", "BF16"},
    {DType::F32, 4, 7, 6, "f32", "F32"},
    {DType::F64, 8, 8, 7, "f64", "F64"},
    {DType::C64, 8, 10, 9, "complex<f32>", "C64"},
    {DType::C128, 16, 11, 10, "complex<f64>", ""},
    {DType::U16, 2, 28, 27, "ui16", "U16"},
    {DType::U32, 4, 34, 28, "ui32", "U32"},
    {DType::U64, 8, 35, 29, "ui64", "U64"},
    {DType::C32, 4, 9, 8, "complex<f16>", ""},
    {DType::F8E4M3FN, 1, 29, 24, "f8E4M3FN", "F8_E4M3"},
    {DType::F8E5M2, 1, 30, 23, "f8E5M2", "F8_E5M2"},
    {DType::F8E4M3FNUZ, 1, 31, 26, "f8E4M3FNUZ", "F8_E4M3FNUZ"},
    {DType::F8E5M2FNUZ, 1, 32, 25, "f8E5M2FNUZ", "F8_E5M2FNUZ"},
    {DType::F8E8M0FNU, 1, 33, 44, "f8E8M0FNU", "F8_E8M0"},
};

static constexpr bool isInEnumOrder() {
  for (size_t i = 0; i != numDTypes; ++i)
    if (static_cast<size_t>(rows[i].dtype) != i)
      return false;
  return std::size(rows) == numDTypes;
}
static_assert(isInEnumOrder());

static const DTypeRow &getRow(DType dtype) {
  return rows[static_cast<size_t>(dtype)];
}

template <typename Field, typename Value>
static std::optional<DType> find(Field field, const Value &value) {
  for (const DTypeRow &row : rows)
    if (row.*field == value)
      return row.dtype;
  return std::nullopt;
}

size_t fsdp::archive::getItemSize(DType dtype) {
  return getRow(dtype).itemSize;
}

std::string_view fsdp::archive::getMLIRName(DType dtype) {
  return getRow(dtype).mlirName;
}

std::string_view fsdp::archive::getSafetensorsName(DType dtype) {
  return getRow(dtype).safetensorsName;
}

int fsdp::archive::getTorchCode(DType dtype) { return getRow(dtype).torchCode; }

std::optional<DType>
fsdp::archive::getDTypeFromMLIRName(std::string_view name) {
  return find(&DTypeRow::mlirName, name);
}

std::optional<DType>
fsdp::archive::getDTypeFromSafetensorsName(std::string_view name) {
  if (name.empty())
    return std::nullopt;
  return find(&DTypeRow::safetensorsName, name);
}

std::optional<DType> fsdp::archive::getDTypeFromTorchCode(int code) {
  return find(&DTypeRow::torchCode, code);
}

std::optional<DType> fsdp::archive::getDTypeFromSchemaCode(int64_t code) {
  return find(&DTypeRow::schemaCode, code);
}
