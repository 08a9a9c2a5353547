//===- PlanInterfaces.td - Interfaces of the plan dialect --*- tablegen -*-===//
//
// What lifetimes, events and the plan file ask of every command.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLANINTERFACES_TD
#define FSDP_DIALECT_PLAN_IR_PLANINTERFACES_TD

include "mlir/IR/OpBase.td"

def Plan_CommandOpInterface : OpInterface<"CommandOpInterface"> {
  let cppNamespace = "::fsdp::plan";
  let description = [{ A command of a program: it runs on a stream. }];
  let methods = [
    InterfaceMethod<"The stream that the command runs on.",
      "::fsdp::Stream", "getStream">,
    InterfaceMethod<"The part of the step that it belongs to.",
      "::fsdp::plan::Role", "getRole">,
    InterfaceMethod<"The operands that it reads; views as they stand.",
      "::mlir::OperandRange", "getReads", (ins), [{}], [{
        return $_op->getOperands().take_front(0);
      }]>,
    InterfaceMethod<"The operands that it writes; views as they stand.",
      "::mlir::OperandRange", "getWrites", (ins), [{}], [{
        return $_op->getOperands().take_front(0);
      }]>,
    InterfaceMethod<"The number of the collectives that it is issued with.",
      "std::optional<uint64_t>", "getGroup", (ins), [{}], [{
        return std::nullopt;
      }]>,
  ];
}

#endif // FSDP_DIALECT_PLAN_IR_PLANINTERFACES_TD
