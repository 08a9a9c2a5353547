//===- OpFactsManual.h - What PyTorch's registry does not know --*- C++ -*-===//
//
// Completes generated rows of the op-fact table by hand-written knowledge:
// costs and equivalents (OpFactsManual.cpp) and what a plan from a stranger may
// run (OpSafety.cpp). Private to this library.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_OPERATORS_OPFACTSMANUAL_H
#define FSDP_LIB_OPERATORS_OPFACTSMANUAL_H

#include "fsdp/Operators/OpFacts.h"

namespace fsdp::operators {

/// The name without overload and without the `_` of in-place operators:
/// "add" of "add_.Tensor". `__and__` stays as it is.
std::string_view getBaseName(std::string_view name);

/// Corrects `isView` where the schema misleads, and fills costs and
/// equivalents. `familyTags` are the tags of all overloads of the same base
/// name: PyTorch tags `mul.Tensor` as pointwise, but not `mul.out`.
void addManualFacts(OpFacts &facts, uint16_t familyTags);

/// Computes `OpFacts::safety` from the other facts.
Safety computeSafety(const OpFacts &facts);

} // namespace fsdp::operators

#endif // FSDP_LIB_OPERATORS_OPFACTSMANUAL_H
