//===- InitAllDialects.h - Every dialect of a program -----------*- C++ -*-===//
//
// What a tool registers before it reads a program of any level.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_INITALLDIALECTS_H
#define FSDP_INITALLDIALECTS_H

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace fsdp {

/// Adds the dialects of all levels, and those of MLIR that stand beside them:
/// schedules that people write may have control flow.
inline void registerAllDialects(mlir::DialectRegistry &registry) {
  registry.insert<aten::ATenDialect, FSDPDialect, plan::PlanDialect,
                  mlir::arith::ArithDialect, mlir::func::FuncDialect,
                  mlir::scf::SCFDialect>();
}

} // namespace fsdp

#endif // FSDP_INITALLDIALECTS_H
