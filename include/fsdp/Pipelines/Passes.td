//===- Passes.td - Passes that join levels -----------------*- tablegen -*-===//

#ifndef FSDP_PIPELINES_PASSES_TD
#define FSDP_PIPELINES_PASSES_TD

include "mlir/Pass/PassBase.td"

def ComputeMeaning : Pass<"plan-compute-meaning", "::mlir::ModuleOp"> {
  let summary = "write down what the model means";
  let description = [{
    Runs the model that each program was made from, as it was before anything
    was sharded, over numbers. What must be left at the end of a program stands
    in the module as one `plan.meaning` each, which `convert-fsdp-to-plan` takes
    into the plan; `plan-verify` compares with it what the plan computes.

    Before: the scheduled level.
    After: the same programs, and their meanings.
  }];
  let dependentDialects = ["::fsdp::plan::PlanDialect"];
}

def VerifyPlan : Pass<"plan-verify", "::fsdp::plan::ModuleOp"> {
  let summary = "prove that the plan computes what its model does";
  let description = [{
    Translation validation: exports the plan file and executes its programs
    symbolically, on value numbers. Every read must find what was last written to its own
    buffer, wholly and in an order that the events enforce; collectives of
    groups that share ranks must be in one order; and what is left at the end
    must have the numbers that `plan.meaning` says, if there are any.

    After: the same plan.
  }];
}

#endif // FSDP_PIPELINES_PASSES_TD
