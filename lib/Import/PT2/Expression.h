//===- Expression.h - The value of a sympy expression -----------*- C++ -*-===//
//
// Evaluates the text that sympy's `srepr` and torch's size functions produce.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_IMPORT_PT2_EXPRESSION_H
#define FSDP_LIB_IMPORT_PT2_EXPRESSION_H

#include "Symbols.h"

namespace fsdp::pt2 {

/// Evaluates `text`; `lookup` gives the values of symbols. Returns what is
/// wrong with the text, or nothing.
std::optional<std::string> evaluateExpression(
    llvm::StringRef text,
    llvm::function_ref<std::optional<int64_t>(llvm::StringRef)> lookup,
    Known &value);

} // namespace fsdp::pt2

#endif // FSDP_LIB_IMPORT_PT2_EXPRESSION_H
