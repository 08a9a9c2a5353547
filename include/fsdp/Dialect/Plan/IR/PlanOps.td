//===- PlanOps.td - Tables of a plan -----------------------*- tablegen -*-===//
//
// The module, its units, communicators and buffers, and the programs.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLANOPS_TD
#define FSDP_DIALECT_PLAN_IR_PLANOPS_TD

include "fsdp/Dialect/FSDP/IR/FSDPAttrs.td"
include "fsdp/Dialect/Plan/IR/PlanDialect.td"
include "fsdp/Dialect/Plan/IR/PlanInterfaces.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/Interfaces/ViewLikeInterface.td"

class Plan_Op<string mnemonic, list<Trait> traits = []>
    : Op<Plan_Dialect, mnemonic, traits>;

def Plan_ModuleOp : Plan_Op<"module", [
    IsolatedFromAbove, Symbol, SymbolTable, NoTerminator, SingleBlock,
    NoRegionArguments, RegionKindInterface, HasOnlyGraphRegion]> {
  let summary = "a plan: tables, and programs over them";
  let description = [{
    All that one rank does, the same for every rank. The mesh is listed from the
    outermost axis in. `token_rows` is the number of rows of the embedding that
    reads input 0, if one does; `notes` is what people should know; `unproved`
    is why the plan was not proved to do what its model means; `micro_batches` is
    how many a step has, if programs are parts of one.

    Example:

    ```mlir
    plan.module @step mesh ["shard" = 2] device cpu strategy full_shard {
      plan.communicator @shard axes [0] on gather
      plan.unit @wte shard [0] replicate [] storage f32 reduce f32
          layout <["wte" : 4x2 at 0], numel = 8, padded = 8>
      %shard = plan.buffer shard @wte at 0 : tensor<4xf32>
      %full = plan.buffer transient at 64 : tensor<8xf32>
      plan.program @step {
        plan.all_gather @shard %shard to %full of @wte <forward> on gather
      }
    }
    ```

    **Constraints**:

    * C1: the body holds only the tables and programs of this dialect.
    * C2: the axes of the mesh have positive sizes; their product, the number of
      ranks, is less than 2^31.
    * C3: no two communicators have the same axes and stream.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
    TypedArrayAttrBase<FSDP_AxisAttr, "mesh axes">:$mesh, ATen_DeviceAttr:$device,
    OptionalAttr<FSDP_StrategyAttr>:$strategy, OptionalAttr<I64Attr>:$token_rows,
    OptionalAttr<StrArrayAttr>:$notes, OptionalAttr<StrAttr>:$unproved,
    OptionalAttr<I64Attr>:$micro_batches);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `mesh` custom<Axes>($mesh) `device` `` $device (`strategy` `` $strategy^)?
    attr-dict-with-keyword $body
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// How many ranks there are in all.
    int64_t getNumRanks();
  }];
}

def Plan_CommunicatorOp : Plan_Op<"communicator", [Symbol, HasParent<"ModuleOp">]> {
  let summary = "groups of ranks with one order of collectives";
  let description = [{
    The ranks of a group agree in all coordinates of the mesh but those of the
    listed axes. All collectives of a communicator are on its stream, so they
    have one order; an all-gather and a reduce-scatter over the same ranks are
    of two communicators, and overlap.

    Example:

    ```mlir
    plan.communicator @shard_gather axes [1] on gather
    plan.communicator @shard_reduce axes [1] on reduce
    ```

    **Constraints**:

    * C1: every axis is an index into the mesh, and there is at least one; they
      ascend.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, DenseI64ArrayAttr:$axes, Plan_StreamAttr:$stream);
  let assemblyFormat = "$sym_name `axes` $axes `on` `` $stream attr-dict";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// How many ranks are in a group.
    int64_t getGroupSize();
  }];
}

def Plan_UnitOp : Plan_Op<"unit", [Symbol, HasParent<"ModuleOp">]> {
  let summary = "a flat parameter";
  let description = [{
    The layout of a flat parameter and the element types in which it is stored and
    reduced. It is sharded over some axes of the mesh, and
    replicated over others: ranks that agree in all coordinates along the first
    hold the same shard, that of the row-major index of these coordinates.

    Example:

    ```mlir
    plan.unit @wte shard [1] replicate [0] storage f32 reduce f32
        layout <["wte" : 4x2 at 0], numel = 8, padded = 8>
    ```

    **Constraints**:

    * C1: axes are distinct axes of the mesh, and ascend.
    * C2: the padded length is a multiple of the number of shards.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, DenseI64ArrayAttr:$shard_axes,
    DenseI64ArrayAttr:$replicate_axes, TypeAttr:$storage, TypeAttr:$reduce, FSDP_LayoutAttr:$layout);
  let assemblyFormat = [{
    $sym_name `shard` $shard_axes `replicate` $replicate_axes `storage` $storage
    `reduce` $reduce `layout` $layout attr-dict
  }];
  let extraClassDeclaration = [{
    /// How many shards there are.
    int64_t getShards();
  }];
  let hasVerifier = 1;
}

// The allocation of a root keeps CSE from merging two equal buffers.
def Plan_BufferOp : Plan_Op<"buffer", [
    HasParent<"ModuleOp">, DeclareOpInterfaceMethods<SymbolUserOpInterface>,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "a buffer that owns bytes";
  let description = [{
    A buffer that owns bytes. Its role says what puts the first content in and
    what reads the last:

    | role | |
    |---|---|
    | `transient` | lives inside one run of one program |
    | `shard` | this rank's piece of the unit's flat parameter |
    | `optimizer_state` | of the unit, called `name` |
    | `gradient` | this rank's reduced gradient of the unit; alive until the program ends |
    | `model_buffer` | replicated state, from the checkpoint (`name`) or embedded (`value`) |
    | `constant` | embedded, never written |
    | `result` | written by `init`, read by every step |
    | `input`, `output` | of the user, by `index` |
    | `loss` | the scalar loss |
    | `hyper` | the hyper-parameters of the decay group `index`: the caller writes them before each run, and no command does; with the `name` "no_decay", the weight decay is 0 |
    | `accumulator` | gradients of the unit, summed over micro-batches: `unsharded_gradient`, `partial_gradient` or `sharded_gradient` |
    | `unsharded` | the gathered flat parameter of the unit, from the first micro-batch of a step to the last |

    `at` is the offset in bytes in the arena of its space. `after` names buffers
    that are done with before this one starts: it may be written only when all
    commands ahead that use those are done. It takes over the place of such a
    buffer from another stream, or is gathered only when that is given up.

    Example:

    ```mlir
    %h0 = plan.buffer shard @h.0 at 0 : tensor<3176xf32>
    %v = plan.buffer optimizer_state @h.0 "exp_avg" at 12736 : tensor<3176xf32>
    %hyper = plan.buffer hyper number 0 in host at 0 : tensor<7xf64>
    %x = plan.buffer transient at 25472 after %y : tensor<16x2x32xf32, #aten.strided<[32, 512, 1]>>
    %mask = plan.buffer constant value dense<1> : tensor<4xi64> at 64 : tensor<4xi64>
    ```

    **Constraints**:

    * C1: sizes, strides and offset are known, and at most 2^40 elements. The
      layout has no offset of its own, except of a `transient` that
      `plan-fold-views` is going to turn into a view.
    * C2: `shard`, `optimizer_state`, `gradient`, `accumulator` and `unsharded` name their unit, `input`,
      `output` and `loss` their program, which exists; others name nothing.
    * C3: `input`, `output` and `hyper` have an index, others do not.
    * C4: a `value` has the buffer's shape and element type, and belongs to a
      `constant`, which must have one, or a `model_buffer`.
    * C5: `optimizer_state` and `accumulator` have a name; only they, `model_buffer`,
      `input` and `hyper` have one. That of `hyper` is "no_decay".
    * C6: `hyper` is a `tensor<7xf64>` on the host.
  }];
  let arguments = (ins Plan_BufferRoleAttr:$role, TypeAttrOf<AnyRankedTensor>:$type,
    DefaultValuedAttr<Plan_SpaceAttr, "::fsdp::plan::Space::Device">:$space,
    OptionalAttr<FlatSymbolRefAttr>:$owner, OptionalAttr<StrAttr>:$name,
    OptionalAttr<I64Attr>:$index, OptionalAttr<ElementsAttr>:$value,
    OptionalAttr<I64Attr>:$offset, Variadic<Plan_BufferType>:$after);
  let results = (outs Res<Plan_BufferType, "", [MemAlloc]>:$buffer);
  let assemblyFormat = [{
    `` $role ($owner^)? ($name^)? (`number` $index^)? (`in` `` $space^)?
    (`value` $value^)? (`at` $offset^)? (`after` $after^)? attr-dict `:` $type
  }];
  let builders = [OpBuilder<(ins "BufferRole":$role, "::mlir::RankedTensorType":$type)>];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
    /// True if the content outlives a run of a program.
    bool isPersistent();
    /// True if somebody reads it when the program has ended.
    bool isReadAfterProgram();
  }];
}

def Plan_ViewOp : Plan_Op<"view", [
    Pure, ViewLikeOpInterface,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "a view of a buffer";
  let description = [{
    `at` is in bytes from the first element of the buffer.

    Example:

    ```mlir
    %w = plan.view %full at 128 : tensor<32x96xf32>
    %t = plan.view %full at 128 : tensor<96x32xf32, #aten.strided<[1, 96]>>
    ```

    **Constraints**:

    * C1: the operand owns bytes: it is no view.
    * C2: sizes and strides are known, at most 2^40 elements, and the layout has
      no offset of its own.
    * C3: the window is inside of the buffer.
  }];
  let arguments = (ins Plan_BufferType:$root, I64Attr:$offset,
                       TypeAttrOf<AnyRankedTensor>:$type);
  let results = (outs Plan_BufferType:$view);
  let assemblyFormat = "$root `at` $offset attr-dict `:` $type";
  let builders = [OpBuilder<(ins "::mlir::Value":$root, "int64_t":$offset,
                                 "::mlir::RankedTensorType":$type)>];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
    BufferOp getBuffer() { return getRoot().getDefiningOp<BufferOp>(); }
    ::mlir::Value getViewSource() { return getRoot(); }
  }];
}

def Plan_ProgramOp : Plan_Op<"program", [
    Symbol, HasParent<"ModuleOp">, NoTerminator, SingleBlock, NoRegionArguments]> {
  let summary = "a list of commands";
  let description = [{
    A program with `init` runs once, ahead of all others; of those, the caller
    says which runs when. Programs that are a `part` are for one micro-batch each
    of a step. `prediction` is what a run was predicted to take.

    Example:

    ```mlir
    plan.program @step {
      plan.launch "mm.out"(%a, %b) -> %c <forward>
    }
    ```

    **Constraints**:

    * C1: the body holds only commands.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, UnitAttr:$init, OptionalAttr<FSDP_PartAttr>:$part,
    OptionalAttr<Plan_PredictionAttr>:$prediction);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name (`init` $init^)? (`part` `` $part^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Plan_MeaningOp : Plan_Op<"meaning", [ParentOneOf<["ModuleOp", "::mlir::ModuleOp"]>]> {
  let summary = "what the model computes";
  let description = [{
    The number of one value that outlives a program, as its model means it: two
    values with the same number are the same function of the program's inputs. Made
    from the model before it was sharded; `plan-verify` compares with it what
    the programs compute. `as` says the same in words; `lacks` says what value
    numbers cannot follow in it. It stands beside the programs of the
    scheduled level (`plan-compute-meaning`), and then in the plan.

    Example:

    ```mlir
    plan.meaning "loss" of @step is 8122339151131226327 as "mean.out of (nll_loss)"
    plan.meaning "gradient transformer.wte.weight" of @step is -339151131226327812
    plan.meaning "mesh" is 2271560481
    ```
  }];
  let arguments = (ins StrAttr:$what, OptionalAttr<FlatSymbolRefAttr>:$program,
    I64Attr:$number, OptionalAttr<StrAttr>:$words, OptionalAttr<StrAttr>:$unknown);
  let assemblyFormat = [{
    $what (`of` $program^)? `is` $number (`as` $words^)? (`lacks` $unknown^)? attr-dict
  }];
}

#endif // FSDP_DIALECT_PLAN_IR_PLANOPS_TD
