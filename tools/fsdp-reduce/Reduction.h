//===- Reduction.h - From a program to a small one --------------*- C++ -*-===//
//
// `--fsdp-reduction`: what makes a program smaller that knows its dialects.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_REDUCE_REDUCTION_H
#define FSDP_TOOLS_REDUCE_REDUCTION_H

namespace fsdp {

/// Registers the pass.
void registerReduction();

} // namespace fsdp

#endif // FSDP_TOOLS_REDUCE_REDUCTION_H
