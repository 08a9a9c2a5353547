//===- PlanTarget.h - Between the plan dialect and plan files ---*- C++ -*-===//
//
// The plan dialect is one to one with the plan file (schema/plan.fbs): what is
// exported and imported again prints the same, and what is imported and
// exported again is the same file, byte for byte.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TARGET_PLAN_PLANTARGET_H
#define FSDP_TARGET_PLAN_PLANTARGET_H

#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/PlanFile/PlanFile.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace fsdp {

/// The bytes of an arena, where every buffer has a place.
uint64_t getArenaBytes(plan::ModuleOp module, plan::Space space);

/// The checked plan file of the one `plan.module` in `module`, every buffer of
/// which has a place. `name` stands in diagnostics for the file.
mlir::FailureOr<planfile::PlanFile> exportPlan(mlir::ModuleOp module,
                                               llvm::StringRef name);
mlir::FailureOr<planfile::PlanFile> exportPlan(plan::ModuleOp plan,
                                               llvm::StringRef name);

/// A module with the `plan.module` of a checked plan file. Fails, with a
/// diagnostic, where a custom operator's schema can't be read.
mlir::OwningOpRef<mlir::ModuleOp> importPlan(const planfile::PlanFile &file,
                                             mlir::MLIRContext *context);

/// Makes `--export-plan` and `--import-plan` known to fsdp-translate.
void registerPlanTranslations();

} // namespace fsdp

#endif // FSDP_TARGET_PLAN_PLANTARGET_H
