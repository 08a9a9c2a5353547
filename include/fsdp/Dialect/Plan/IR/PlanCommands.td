//===- PlanCommands.td - Commands of a plan ----------------*- tablegen -*-===//
//
// What a program consists of: launches, collectives, updates, copies, events.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLANCOMMANDS_TD
#define FSDP_DIALECT_PLAN_IR_PLANCOMMANDS_TD

include "fsdp/Dialect/ATen/IR/ATenDialect.td"
include "fsdp/Dialect/FSDP/IR/FSDPInterfaces.td"
include "fsdp/Dialect/Plan/IR/PlanOps.td"

// No effects are declared, so nothing merges, moves or drops a command.
class Plan_Command<string mnemonic, list<Trait> traits = []>
    : Plan_Op<mnemonic, [Plan_CommandOpInterface, HasParent<"ProgramOp">] # traits>;

// The end of a command's argument list: where it runs.
defvar Plan_Place = (ins Plan_RoleAttr:$role, Plan_StreamAttr:$stream);

def Plan_LaunchOp : Plan_Command<"launch", [AttrSizedOperandSegments]> {
  let summary = "call a kernel";
  let description = [{
    Calls the operator `callee` with constants and buffers in their places, as
    in `aten.call`. The buffers after the arrow are written: they are the
    operator's writable arguments (`out`, or what an in-place operator changes),
    in their order, or, for an operator without any, the places of its results,
    which the runtime hands out through the allocator hook. A result that the
    operator leaves undefined is `none`.

    Example:

    ```mlir
    plan.launch "mm.out"(%a, %b) -> %c <forward>
    plan.launch "native_layer_norm"(%x, [32], %w, %b, 1.0e-05) -> %y, %mean, %rstd <forward>
    plan.launch "native_layer_norm_backward"(...) -> %dx, none, none <backward>
    ```

    **Constraints**:

    * C1: there are as many operands as places among the arguments.
    * C2: there are as many buffers written as results present.
    * Arguments fit the schema of a known operator: C4 of `aten.call`.
  }];
  let arguments = !con((ins ATen_OpNameAttr:$callee, ATen_ArgsAttr:$args,
    Variadic<Plan_BufferType>:$inputs, Variadic<Plan_BufferType>:$outputs,
    OptionalAttr<DenseBoolArrayAttr>:$present, OptionalAttr<StrAttr>:$scope), Plan_Place);
  let assemblyFormat = [{
    custom<Callee>($callee) `` custom<CallArgs>($args, $inputs)
    `` custom<Outputs>($outputs, $present) custom<Place>($role, $stream) attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::OperandRange getReads() { return getInputs(); }
    ::mlir::OperandRange getWrites() { return getOutputs(); }
    /// The operands that stand in the argument at `index`.
    ::mlir::OperandRange getArgInputs(unsigned index);
  }];
}

// A command that moves from a source to a target.
class Plan_Move<string mnemonic, list<Trait> traits = []> : Plan_Command<mnemonic, traits> {
  let extraClassDeclaration = [{
    ::mlir::OperandRange getReads() { return (*this)->getOperands().take_front(1); }
    ::mlir::OperandRange getWrites() { return (*this)->getOperands().drop_front(1); }
  }];
}

// Collectives with the same `group` are issued together, in one call: they stand
// next to each other, and are of one operation, communicator and role.
// None of them starts before all may, and none is done before all are.
defvar Plan_Group = (ins OptionalAttr<ConfinedAttr<I64Attr, [
    IntNonNegative, IntMaxValue<4294967294>]>>:$group);

class Plan_Collective<string mnemonic>
    : Plan_Move<mnemonic, [DeclareOpInterfaceMethods<SymbolUserOpInterface>]>;

def Plan_AllGatherOp : Plan_Collective<"all_gather"> {
  let summary = "all-gather: concatenate the sources of a group";
  let description = [{
    Example:

    ```mlir
    plan.all_gather @shard_gather %h0 to %full of @h.0 group 0 <forward> on gather
    plan.all_gather @shard_gather %h1 to %other of @h.1 group 0 <forward> on gather
    ```

    **Constraints**:

    * C1: the communicator and the unit exist, and the command is on the
      communicator's stream.
    * C2: the target has the source's element type and as many times its
      elements as there are ranks in a group.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$communicator, Plan_BufferType:$source,
    Plan_BufferType:$target, OptionalAttr<FlatSymbolRefAttr>:$unit), Plan_Group, Plan_Place);
  let assemblyFormat = [{
    $communicator $source `to` $target (`of` $unit^)? (`group` $group^)?
    custom<Place>($role, $stream) attr-dict
  }];
}

def Plan_PieceOp : Plan_Collective<"piece"> {
  let summary = "keep this rank's piece of a gathered buffer";
  let description = [{
    The target becomes the piece of the source that an all_gather of the group
    would take from this rank. Nothing is sent.

    Example:

    ```mlir
    plan.piece @local_gather %full to %piece of @h.0 <forward>
    ```

    **Constraints**:

    * C1: the communicator and the unit exist.
    * C2: the target has the source's element type, and the source as many times
      its elements as there are ranks in a group.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$communicator, Plan_BufferType:$source,
    Plan_BufferType:$target, OptionalAttr<FlatSymbolRefAttr>:$unit), Plan_Place);
  let assemblyFormat = [{
    $communicator $source `to` $target (`of` $unit^)? custom<Place>($role, $stream) attr-dict
  }];
}

class Plan_Reduction<string mnemonic> : Plan_Collective<mnemonic> {
  let arguments = !con((ins FlatSymbolRefAttr:$communicator, FSDP_DivideAttr:$divide,
    TypeAttr:$via, Plan_BufferType:$source, Plan_BufferType:$target,
    OptionalAttr<FlatSymbolRefAttr>:$unit), Plan_Group, Plan_Place);
  let assemblyFormat = [{
    $communicator `divide` $divide `via` $via $source `to` $target (`of` $unit^)?
    (`group` $group^)? custom<Place>($role, $stream) attr-dict
  }];
}

def Plan_ReduceScatterOp : Plan_Reduction<"reduce_scatter"> {
  let summary = "reduce-scatter: sum the sources of a group, keep this rank's shard";
  let description = [{
    The target becomes this rank's piece of the sum of the sources, each divided
    by `pre`, and the sum by `post`. All are of one type, as collectives of NCCL
    are: what is of another is cast by copies ahead of it and after it.

    Example:

    ```mlir
    plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %flat to %g of @h.0 <backward> on reduce
    ```

    **Constraints**:

    * C1: the communicator and the unit exist, and the command is on the
      communicator's stream.
    * C2: the source has as many times the target's elements as there are ranks
      in a group.
    * C3: source and target are of the type `via`.
  }];
}

def Plan_AllReduceOp : Plan_Collective<"all_reduce"> {
  let summary = "all-reduce: sum the sources of a group";
  let description = [{
    As `plan.reduce_scatter`, but every rank gets the whole sum; or with `max`, the
    largest of the sources, no number if one is none; or with `first`, that of the
    group's first rank, of any type. Source and target may be the same buffer. `for` says what is reduced that is of no unit.

    Example:

    ```mlir
    plan.all_reduce @all_all_reduce divide <pre = 2, post = 1> via f32 %local to %loss for loss <forward> on all_reduce
    ```

    **Constraints**:

    * C1: the communicator and the unit exist, and the command is on the
      communicator's stream.
    * C2: the target has as many elements as the source.
    * C3: source and target are of the type `via`.
    * C4: `max` and `first` exclude each other, and divide nothing.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$communicator, FSDP_DivideAttr:$divide,
    TypeAttr:$via, Plan_BufferType:$source, Plan_BufferType:$target,
    OptionalAttr<FlatSymbolRefAttr>:$unit, OptionalAttr<FSDP_ReductionRoleAttr>:$purpose,
    UnitAttr:$max, UnitAttr:$first), Plan_Group, Plan_Place);
  let assemblyFormat = [{
    $communicator `divide` $divide `via` $via (`max` $max^)? (`first` $first^)? $source `to` $target
    (`of` $unit^)? (`for` `` $purpose^)? (`group` $group^)? custom<Place>($role, $stream) attr-dict
  }];
}

defvar Plan_Scalars = FSDP_UpdateScalars<Plan_BufferType>;

// An update changes its states in place, and the gradient if it scales it.
class Plan_UpdateOp<string mnemonic, string rule, dag operands>
    : Plan_Command<mnemonic, [FSDP_UpdateOpInterface, AttrSizedOperandSegments,
                              DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = !con((ins FlatSymbolRefAttr:$unit, DenseI64ArrayAttr:$intervals,
    Plan_BufferType:$parameter, Plan_BufferType:$gradient), operands,
    (ins Plan_BufferType:$hyper), Plan_Scalars.operands, Plan_Place);
  let extraClassDeclaration = rule # [{
    ::mlir::OperandRange getReads() { return (*this)->getOperands(); }
    ::mlir::OperandRange getWrites() { return getChanged(); }
  }];
}

def Plan_AdamWOp : Plan_UpdateOp<"adamw", FSDP_AdamWRule,
    (ins Plan_BufferType:$exp_avg, Plan_BufferType:$exp_avg_sq)> {
  let summary = "update a unit's shard with AdamW";
  let description = [{
    Updates the elements of `intervals` (pairs of begin and end in the unsharded
    flat parameter) that this rank holds, by the hyper-parameters of a decay
    group. Before, the gradient is multiplied by the clip factor and divided by
    the loss scale, in its place, if they are there. Where `found_inf` is not 0,
    nothing changes; `skipped` is how often that has been so before, by which the
    number of the update is less.

    Example:

    ```mlir
    plan.adamw @h.0 [0, 12704] %p, %g, %m, %v, %hyper <update>
    plan.adamw @h.0 [0, 12704] %p, %g, %m, %v, %hyper clip %factor scale %scale found_inf %inf skipped %n <update>
    ```

    **Constraints**:

    * C1: the unit exists, and intervals ascend inside its layout.
    * C2: the hyper-parameters are a buffer of the role `hyper`.
    * C3: clip factor, loss scale, `found_inf` and `skipped` are of type `tensor<f32>`.
  }];
  let assemblyFormat = !strconcat([{
    $unit $intervals $parameter `,` $gradient `,` $exp_avg `,` $exp_avg_sq `,` $hyper
  }], Plan_Scalars.format, [{ custom<Place>($role, $stream) attr-dict }]);
}

def Plan_SGDOp : Plan_UpdateOp<"sgd", FSDP_SGDRule,
    (ins Optional<Plan_BufferType>:$momentum)> {
  let summary = "update a unit's shard with SGD";
  let description = [{
    As `plan.adamw`; without a momentum buffer, plain SGD.

    Example:

    ```mlir
    plan.sgd @h.0 [0, 12704] %p, %g momentum %b, %hyper <update>
    ```

    **Constraints**: those of `plan.adamw`.
  }];
  let assemblyFormat = !strconcat([{
    $unit $intervals $parameter `,` $gradient (`momentum` $momentum^)? `,` $hyper
  }], Plan_Scalars.format, [{ custom<Place>($role, $stream) attr-dict }]);
}

def Plan_MeasureOp : Plan_Command<"measure", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "what the elements of a shard add up to";
  let description = [{
    One f64 of the elements of `intervals` that this rank's piece, the source,
    has: the sum of their squares (`squared_norm`) or absolute values (`abs_sum`), the
    largest absolute value (`abs_max`), or 1 if one of them is not finite, else 0
    (`found_inf`). It joins `initial`, what is measured so far, if that is there: the
    target is the sum, or the larger one, of the two.

    Example:

    ```mlir
    plan.measure squared_norm @h.0 [0, 12704] %g to %norm <update>
    plan.measure squared_norm @h.1 [0, 12704] %h initial %norm to %both <update>
    plan.measure found_inf @h.0 [0, 12704] %g to %inf <update>
    ```

    **Constraints**:

    * C1: the unit exists, and intervals ascend inside its layout.
    * C2: the source has as many elements as a shard of the unit.
    * C3: the target, and what is measured so far, are of type `tensor<f64>`.
  }];
  let arguments = !con((ins FSDP_MeasureKindAttr:$kind, FlatSymbolRefAttr:$unit,
    DenseI64ArrayAttr:$intervals, Plan_BufferType:$source, Optional<Plan_BufferType>:$initial,
    Plan_BufferType:$target), Plan_Place);
  let assemblyFormat = [{
    `` $kind $unit $intervals $source (`initial` $initial^)? `to` $target
    custom<Place>($role, $stream) attr-dict
  }];
  let extraClassDeclaration = [{
    ::mlir::OperandRange getReads() { return (*this)->getOperands().drop_back(1); }
    ::mlir::OperandRange getWrites() { return (*this)->getOperands().take_back(1); }
  }];
}

def Plan_ZeroOp : Plan_Command<"zero"> {
  let summary = "zero a buffer";
  let description = [{
    Example:

    ```mlir
    plan.zero %pad <backward>
    ```

    **Constraints**:

    * C1: the buffer is dense.
  }];
  let arguments = !con((ins Plan_BufferType:$target), Plan_Place);
  let assemblyFormat = "$target custom<Place>($role, $stream) attr-dict";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::OperandRange getWrites() { return (*this)->getOperands(); }
  }];
}

def Plan_CopyOp : Plan_Move<"copy"> {
  let summary = "copy a buffer into another";
  let description = [{
    Element types and strides may differ: this is also the cast.

    Example:

    ```mlir
    plan.copy %h0 to %half <forward> on gather
    ```

    **Constraints**:

    * C1: both have the same number of elements.
  }];
  let arguments = !con((ins Plan_BufferType:$source, Plan_BufferType:$target), Plan_Place);
  let assemblyFormat = "$source `to` $target custom<Place>($role, $stream) attr-dict";
  let hasVerifier = 1;
}

def Plan_AccumulateOp : Plan_Move<"accumulate", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "add gradients to gradients";
  let description = [{
    The target becomes the sum of both: gradients of the unit before they are
    reduced, or the pieces of reduced ones.

    Example:

    ```mlir
    plan.accumulate @h.0 %flat to %sum <backward>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: both are dense vectors of one type, with as many elements as the flat
      parameter or a shard of it.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, Plan_BufferType:$source,
    Plan_BufferType:$target), Plan_Place);
  let assemblyFormat = "$unit $source `to` $target custom<Place>($role, $stream) attr-dict";
  let extraClassDeclaration = [{
    ::mlir::OperandRange getReads() { return (*this)->getOperands(); }
    ::mlir::OperandRange getWrites() { return (*this)->getOperands().drop_front(1); }
  }];
}

def Plan_RecordOp : Plan_Command<"record"> {
  let summary = "record an event on a stream";
  let description = [{
    The event happens when all commands before it on its stream are done.

    Example:

    ```mlir
    %e = plan.record <forward> on gather
    plan.wait %e <forward>
    ```
  }];
  let arguments = Plan_Place;
  let results = (outs Plan_EventType:$event);
  let assemblyFormat = "custom<Place>($role, $stream) attr-dict";
}

def Plan_WaitOp : Plan_Command<"wait"> {
  let summary = "make a stream wait for an event";
  let description = [{
    Example:

    ```mlir
    plan.wait %e <forward>
    ```
  }];
  let arguments = !con((ins Plan_EventType:$event), Plan_Place);
  let assemblyFormat = "$event custom<Place>($role, $stream) attr-dict";
}

#endif // FSDP_DIALECT_PLAN_IR_PLANCOMMANDS_TD
