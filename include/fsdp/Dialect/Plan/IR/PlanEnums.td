//===- PlanEnums.td - Enumerations of the plan dialect -----*- tablegen -*-===//
//
// Enumerations, in a file that includes no other dialect's.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLANENUMS_TD
#define FSDP_DIALECT_PLAN_IR_PLANENUMS_TD

include "mlir/IR/EnumAttr.td"

class Plan_Enum<string name, string summary, list<I32EnumCase> cases>
    : I32Enum<name, summary, cases> {
  let cppNamespace = "::fsdp::plan";
}

// The values are those of the plan file.
def Plan_Space : Plan_Enum<"Space", "a kind of memory", [
    I32EnumCase<"Device", 0, "device">, I32EnumCase<"Host", 1, "host">,
    I32EnumCase<"Pinned", 2, "pinned">]>;
def Plan_Role : Plan_Enum<"Role", "the part of a step that a command belongs to", [
    I32EnumCase<"Init", 0, "init">, I32EnumCase<"Forward", 1, "forward">,
    I32EnumCase<"Backward", 2, "backward">, I32EnumCase<"Update", 3, "update">]>;
def Plan_BufferRole : Plan_Enum<"BufferRole", "what a buffer is for", [
    I32EnumCase<"Transient", 0, "transient">, I32EnumCase<"Shard", 1, "shard">,
    I32EnumCase<"OptimizerState", 2, "optimizer_state">,
    I32EnumCase<"Gradient", 3, "gradient">,
    I32EnumCase<"ModelBuffer", 4, "model_buffer">,
    I32EnumCase<"Constant", 5, "constant">, I32EnumCase<"Result", 6, "result">,
    I32EnumCase<"Input", 7, "input">, I32EnumCase<"Loss", 8, "loss">,
    I32EnumCase<"Output", 9, "output">, I32EnumCase<"Hyper", 10, "hyper">,
    I32EnumCase<"Accumulator", 11, "accumulator">,
    I32EnumCase<"Unsharded", 12, "unsharded">]>;

#endif // FSDP_DIALECT_PLAN_IR_PLANENUMS_TD
