//===- OpFactsShim.h - Until the table of facts is there --------*- C++ -*-===//
//
// A few operators' facts, for the dialect's tests; replaced by the generated
// table.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_ATEN_IR_OPFACTSSHIM_H
#define FSDP_LIB_DIALECT_ATEN_IR_OPFACTSSHIM_H

#include "llvm/ADT/StringSet.h"

namespace fsdp::archive {
struct OpFacts {
  bool view = false, random = false, mutates = false;
};
inline const OpFacts *lookupOpFacts(llvm::StringRef name) {
  static const OpFacts pure, view{true}, random{false, true},
      mutates{false, false, true};
  static const llvm::StringSet<> views{
      "t",          "view",      "transpose.int", "permute",
      "expand",     "unsqueeze", "squeeze.dim",   "slice.Tensor",
      "select.int", "alias",     "detach",        "split.Tensor"};
  static const llvm::StringSet<> randoms{"bernoulli", "rand", "native_dropout"};
  llvm::StringRef base = name.split('.').first;
  if (name.contains("::"))
    return nullptr;
  if (views.contains(name))
    return &view;
  if (randoms.contains(name))
    return &random;
  return base.ends_with("_") && !base.starts_with("__") ? &mutates : &pure;
}
} // namespace fsdp::archive

#endif // FSDP_LIB_DIALECT_ATEN_IR_OPFACTSSHIM_H
