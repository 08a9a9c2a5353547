//===- ClipFactor.h - The arithmetic of a clip factor -----------*- C++ -*-===//
//
// What `fsdp.clip_factor` computes, as calls of operators: the lowering makes
// launches of them, and the meaning of a plan values.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_CLIPFACTOR_H
#define FSDP_DIALECT_FSDP_IR_CLIPFACTOR_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

namespace fsdp {

/// The clip factor in f64. `call(name, operands, constant)` makes a value of a
/// call of an operator with these operands and, where it is not null, this
/// constant after them. `scale` is what the measured gradients are multiplied
/// by, if they are.
template <typename T, typename Call>
T makeClipFactor(const ClipGradNorm &clip, llvm::ArrayRef<T> measures,
                 std::optional<T> scale, mlir::MLIRContext *context,
                 const Call &call) {
  mlir::Builder builder(context);
  bool isMax = clip.kind == MeasureKind::AbsMax;
  T norm = measures.front();
  for (const T &measure : measures.drop_front())
    norm = call(isMax ? "maximum" : "add.Tensor", {norm, measure}, nullptr);
  if (clip.kind == MeasureKind::SquaredNorm)
    norm = call("sqrt", {norm}, nullptr);
  if (scale)
    norm = call("div.Tensor", {norm, *scale}, nullptr);
  T more = call("add.Scalar", {norm}, builder.getF64FloatAttr(1e-6));
  T inverse = call("reciprocal", {more}, nullptr);
  T ratio =
      call("mul.Scalar", {inverse}, builder.getF64FloatAttr(clip.maxNorm));
  return call("clamp_max", {ratio}, builder.getI64IntegerAttr(1));
}

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_IR_CLIPFACTOR_H
