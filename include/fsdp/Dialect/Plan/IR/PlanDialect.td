//===- PlanDialect.td - The plan dialect -------------------*- tablegen -*-===//
//
// The dialect itself, its types and its enumerations.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLANDIALECT_TD
#define FSDP_DIALECT_PLAN_IR_PLANDIALECT_TD

include "fsdp/Dialect/FSDP/IR/FSDPEnums.td"
include "fsdp/Dialect/Plan/IR/PlanEnums.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/DialectBase.td"
include "mlir/IR/EnumAttr.td"

def Plan_Dialect : Dialect {
  let name = "plan";
  let summary = "What exactly is launched, and where every byte lies";
  let description = [{
    The runtime level: a `plan.module` is one to one with a plan file
    (`schema/plan.fbs`), which the runtime executes without looking anything up.

    It is a table of buffers (`plan.buffer` owns bytes, `plan.view` is another
    window on them), of units and communicators, and one or more programs: lists
    of commands that capture the buffers. A command runs on a stream; commands
    of one stream run in order, and between streams only `plan.record` and
    `plan.wait` order. All streams are joined before and after a program.

    The passes of this level take a module from "every value has a buffer of its
    own" to "every buffer has a place":

    | pass | after it |
    |---|---|
    | `convert-fsdp-to-plan` | one launch per call, one buffer per value |
    | `plan-fold-views` | views are windows; they launch nothing |
    | `plan-select-kernels` | every launch is a kernel that writes its result in place, or takes the allocator hook |
    | `plan-insert-sync` | everything that is ordered across streams has an event |
    | `plan-assign-memory` | every buffer has an offset |
  }];
  let cppNamespace = "::fsdp::plan";
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::fsdp::aten::ATenDialect", "::fsdp::FSDPDialect"];
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

class Plan_Type<string name, string typeMnemonic>
    : TypeDef<Plan_Dialect, name>,
      BuildableType<"::fsdp::plan::" # name # "Type::get($_builder.getContext())"> {
  let mnemonic = typeMnemonic;
}

def Plan_BufferType : Plan_Type<"Buffer", "buffer"> {
  let summary = "a typed, strided window of memory";
  let description = [{
    Sizes, strides and element type stand at the `plan.buffer` or `plan.view`
    that defines the value, so that commands print without types.
  }];
}

def Plan_EventType : Plan_Type<"Event", "event"> {
  let summary = "a point on a stream that others wait for";
}

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

def Plan_SpaceAttr : EnumAttr<Plan_Dialect, Plan_Space, "space">;

def Plan_RoleAttr : EnumAttr<Plan_Dialect, Plan_Role, "role">;

def Plan_BufferRoleAttr : EnumAttr<Plan_Dialect, Plan_BufferRole, "buffer_role">;

def Plan_StreamAttr : EnumAttr<Plan_Dialect, FSDP_Stream, "stream"> {
  let cppNamespace = "::fsdp::plan"; // the enumeration is another dialect's
}

def Plan_PredictionAttr : AttrDef<Plan_Dialect, "Prediction"> {
  let mnemonic = "prediction";
  let summary = "what a run of a program was predicted to take";
  let description = [{
    On one rank: nanoseconds, and those of them in which nothing is computed, as
    what is sent or copied is waited for; multiplications and additions of its products,
    convolutions and attention, without what the backward computes again; and the
    peak of the machine, in such operations in a second, 0 if nobody knows it.

    ```mlir
    #plan.prediction<time = 24000000, exposed = 1000000, flops = 8000000000, peak = 989000000000000>
    ```
  }];
  let parameters = (ins "int64_t":$time, "int64_t":$exposed, "int64_t":$flops, "int64_t":$peak);
  let assemblyFormat = "`<` struct(params) `>`";
}

#endif // FSDP_DIALECT_PLAN_IR_PLANDIALECT_TD
