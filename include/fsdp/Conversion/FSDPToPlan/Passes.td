//===- Passes.td - Lowering of the scheduled level ---------*- tablegen -*-===//

#ifndef FSDP_CONVERSION_FSDPTOPLAN_PASSES_TD
#define FSDP_CONVERSION_FSDPTOPLAN_PASSES_TD

include "mlir/Pass/PassBase.td"

def ConvertFSDPToPlan : Pass<"convert-fsdp-to-plan", "::mlir::ModuleOp"> {
  let summary = "lower a scheduled step to a plan";
  let description = [{
    One to one: a call becomes a launch, a launched collective a command on its
    stream, and a value a buffer. The waits of the scheduled level vanish: a
    command that reads a buffer waits for who writes it, and the events for that
    are made by `plan-insert-sync`.

    State that is both an argument and a result is one buffer. A gathered unit
    is the shard itself where a group has one rank, and the shard is cast ahead
    of the gather where the compute type differs from the storage type. A
    gradient is copied into the flat gradient; the gaps between are zeroed.

    Before: the scheduled level; `@init` and `@step` with every size known.
    After: one `plan.module`, and nothing of the levels above.
  }];
  let options = [
    Option<"device", "device", "::fsdp::aten::Device", "::fsdp::aten::Device::CPU",
           "The device that the plan runs on.",
           [{::llvm::cl::values(
             clEnumValN(::fsdp::aten::Device::CPU, "cpu", "Ordinary processors."),
             clEnumValN(::fsdp::aten::Device::CUDA, "cuda", "NVIDIA's GPUs."))}]>,
    Option<"strategy", "strategy", "::fsdp::Strategy", "::fsdp::Strategy::FullShard",
           "How the step was sharded, for people to read.">,
  ];
  let dependentDialects = ["::fsdp::plan::PlanDialect"];
}

#endif // FSDP_CONVERSION_FSDPTOPLAN_PASSES_TD
