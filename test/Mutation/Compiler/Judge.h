//===- Judge.h - Who objects to a program -----------------------*- C++ -*-===//
//
// A damaged schedule or plan goes through all verifiers in the order in which a
// compilation meets them; the first one that objects has it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_MUTATION_JUDGE_H
#define FSDP_TEST_MUTATION_JUDGE_H

#include "fsdp/Dialect/FSDP/Transforms/Options/PipelineOptions.h"
#include "fsdp/PlanFile/PlanFile.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

#include <optional>

namespace fsdp::test {

struct Verdict {
  /// The verifier that objects; empty if none does.
  std::string verifier;
  std::string sentence;
  /// What the program became, if nobody objects.
  std::optional<planfile::PlanFile> plan;
};

class Judge {
public:
  Judge(mlir::MLIRContext *context, const FSDPPipelineOptions &options);

  /// Judges a schedule or a plan, and changes it.
  Verdict judge(mlir::ModuleOp module);

private:
  mlir::MLIRContext *context;
  /// The verifiers of the scheduled level, by name, and the way to a plan.
  std::vector<std::pair<std::string, std::unique_ptr<mlir::PassManager>>>
      passes;
};

} // namespace fsdp::test

#endif // FSDP_TEST_MUTATION_JUDGE_H
