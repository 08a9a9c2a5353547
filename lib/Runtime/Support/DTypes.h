//===- DTypes.h - Element types of the plan, in PyTorch's words -*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_SUPPORT_DTYPES_H
#define FSDP_LIB_RUNTIME_SUPPORT_DTYPES_H

#include "fsdp/Schema/plan_generated.h"

#include <c10/core/ScalarType.h>

namespace fsdp {

inline c10::ScalarType scalarType(planfile::DType type) {
  using c10::ScalarType;
  constexpr ScalarType table[] = {
      ScalarType::Bool,   ScalarType::Byte,         ScalarType::Char,
      ScalarType::Short,  ScalarType::Int,          ScalarType::Long,
      ScalarType::Half,   ScalarType::BFloat16,     ScalarType::Float,
      ScalarType::Double, ScalarType::ComplexFloat, ScalarType::ComplexDouble,
      ScalarType::UInt16, ScalarType::UInt32,       ScalarType::UInt64};
  static_assert(std::size(table) ==
                static_cast<std::size_t>(planfile::DType::MAX) + 1);
  return table[static_cast<std::size_t>(type)];
}

inline std::size_t itemSize(planfile::DType type) {
  return c10::elementSize(scalarType(type));
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SUPPORT_DTYPES_H
