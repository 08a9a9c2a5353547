//===- FSDPOps.td - Logical level of the fsdp dialect -------*- tablegen -*-===//
//
// Which communication a sharded step needs, as pure values.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPOPS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPOPS_TD

include "fsdp/Dialect/ATen/IR/ATenDialect.td"
include "fsdp/Dialect/FSDP/IR/FSDPAttrs.td"
include "fsdp/Dialect/FSDP/IR/FSDPInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/Interfaces/ViewLikeInterface.td"

//===----------------------------------------------------------------------===//
// Traits and classes
//===----------------------------------------------------------------------===//

// On ops that must be gone once the step is scheduled.
def FSDP_LogicalOp : NativeOpTrait<"LogicalOp"> { let cppNamespace = "::fsdp"; }
// On ops that exist only once the step is scheduled.
def FSDP_ScheduledOp : NativeOpTrait<"ScheduledOp"> { let cppNamespace = "::fsdp"; }

// How a collective implements its interface.
class FSDP_CollectiveKindOf<string kind> {
  string decl = [{
    static ::fsdp::CollectiveKind getKind() { return ::fsdp::CollectiveKind::}] # kind # [{; }
  }] # !if(!eq(kind, "AllGather"), "", [{
    ::mlir::Type getWireType() { return getVia(); }
    ::fsdp::aten::PhaseAttr getPhaseAttr() { return {}; }
  }]);
}

class FSDP_Op<string mnemonic, list<Trait> traits = []>
    : Op<FSDP_Dialect, mnemonic, traits>;

// An op that names a unit or a mesh; all that its types must agree with stands
// there, so the check is one of symbol uses.
class FSDP_UserOp<string mnemonic, list<Trait> traits = []>
    : FSDP_Op<mnemonic, traits # [DeclareOpInterfaceMethods<SymbolUserOpInterface>]>;

// The check of what gathers, reduces or copies: a launch is checked as what it launches.
class FSDP_CheckedAs<string what> {
  code definition = [{
    ::llvm::LogicalResult $cppClass::verifySymbolUses(::mlir::SymbolTableCollection &symbols) {
      return verify}] # what # [{(*this, symbols);
    }
  }];
}

// A collective of the logical level.
class FSDP_PureCollectiveOp<string mnemonic, string kind>
    : FSDP_UserOp<mnemonic, [Pure, FSDP_LogicalOp, FSDP_CollectiveOpInterface]> {
  let extraClassDeclaration = FSDP_CollectiveKindOf<kind>.decl;
  let extraClassDefinition = FSDP_CheckedAs<kind>.definition;
}

//===----------------------------------------------------------------------===//
// Symbols
//===----------------------------------------------------------------------===//

def FSDP_MeshOp : FSDP_Op<"mesh", [Symbol]> {
  let summary = "the ranks of a run, as a grid with named axes";
  let description = [{
    Ranks are numbered row-major: the last axis varies fastest. Names mean
    nothing; a unit says over which axes it is sharded, and over which it is
    replicated.

    Example:

    ```mlir
    fsdp.mesh @mesh ["replicate" = 1, "shard" = 4]
    fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
    ```

    **Constraints**:

    * C1: no two axes have the same name.
    * C2: sizes are positive, and their product is less than 2^31.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypedArrayAttrBase<FSDP_AxisAttr, "axes of a mesh">:$axes);
  let assemblyFormat = "$sym_name custom<Axes>($axes) attr-dict";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The size of an axis, if the mesh has it.
    std::optional<int64_t> getAxisSize(::llvm::StringRef axis);
    /// How many ranks there are along axes that the mesh has.
    int64_t getGroupSize(::mlir::ArrayAttr axes);
    /// The product of all sizes.
    int64_t getNumRanks();
  }];
}

def FSDP_UnitOp : FSDP_Op<"unit", [Symbol, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "parameters that are gathered and reduced together";
  let description = [{
    What FSDP calls a flat parameter: where each parameter lies in it, and the
    element types in which it is stored, gathered and reduced. The `root` has the
    parameters that are in no other unit, or those of one element type: it stays
    gathered where others may be freed, since the backward starts with it. A unit with
    `reshard_after_forward` does not keep its gathered parameters from one phase
    to the next: each phase that uses them has a gather of its own. Over
    `piece_axes` the ranks keep pieces of what the forward has gathered, and the
    backward gathers these. A unit that is `kept_after_backward` stays gathered
    from the first micro-batch of a step to the last.

    Example:

    ```mlir
    fsdp.unit @h.0 on @mesh shard ["shard"] replicate ["replicate"]
      storage f32 reduce f32
      layout <["h.0.w" : 3x5 at 0, "h.0.b" : 7 at 16], numel = 24, padded = 24>
      {reshard_after_forward}
    ```

    **Constraints**:

    * C1: the mesh exists.
    * C2: the axes are axes of the mesh, each of them once, and those over which
      it is sharded in the order of the mesh.
    * C3: the layout's `padded` is a multiple of the number of shards.
    * C4: the element types are floats.
    * C5: what is kept after the backward is not resharded after the forward.
    * C6: pieces are kept of what is resharded after the forward, over some of the
      axes over which it is sharded, in their order.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefAttr:$mesh,
                       StrArrayAttr:$shard_axes, StrArrayAttr:$replicate_axes,
                       TypeAttr:$storage, TypeAttr:$reduce,
                       FSDP_LayoutAttr:$layout, UnitAttr:$root,
                       UnitAttr:$reshard_after_forward,
                       UnitAttr:$kept_after_backward,
                       OptionalAttr<StrArrayAttr>:$piece_axes);
  let assemblyFormat = [{
    $sym_name `on` $mesh `shard` $shard_axes `replicate` $replicate_axes `storage` $storage `reduce` $reduce
    `layout` $layout attr-dict
  }];
  let extraClassDeclaration = [{
    /// The type of the shard, in storage dtype, on a mesh with so many shards.
    ::fsdp::ShardType getShardType(int64_t shards);
    /// The type of the gathered flat parameter, in a compute dtype.
    ::fsdp::GatheredType getGatheredType(::mlir::Type compute);
    /// True if the axes are some of those over which it is sharded, in their
    /// order, but not all: ranks along them may keep pieces.
    bool mayKeepPieces(::mlir::ArrayAttr axes);
    /// The type of one of so many pieces of it.
    ::fsdp::ShardType getPieceType(int64_t pieces, ::mlir::Type compute);
    /// The type of the flat gradient.
    ::mlir::RankedTensorType getFlatGradientType(::mlir::Type compute);
    /// The type of a view of the parameter.
    ::mlir::RankedTensorType getViewType(::fsdp::ParameterAttr parameter,
                                         ::mlir::Type compute);
  }];
}

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

def FSDP_UnshardOp : FSDP_PureCollectiveOp<"unshard", "AllGather"> {
  let summary = "all-gather the shards of a unit";
  let description = [{
    The shards of all ranks of the axes, in order, cast to the compute dtype:
    of the parameter over all axes over which it is sharded, or of what `fsdp.piece`
    has kept over fewer. The phase is part of the operation, or CSE would merge
    the gathers of two phases and the parameters would stay in memory between
    them.

    Example:

    ```mlir
    %full = fsdp.unshard @h.0 <forward> over ["shard"] %shard
        : !fsdp.shard<24xf32, 4> -> !fsdp.gathered<24xbf16>
    %again = fsdp.unshard @h.0 <backward> over ["local"] %piece
        : !fsdp.shard<24xbf16, 2> -> !fsdp.gathered<24xbf16>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is a shard of the unit: as many elements as its layout's
      `padded`, of its storage type, split into the shards of its mesh; over fewer
      axes than these, of the result's type, split into as many as there are ranks.
    * C3: the result has as many elements, of any float type: the compute type.
    * C4: the axes are distinct axes over which the unit is sharded; there is at
      least one, unless the unit is sharded over none.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, ATen_PhaseAttr:$phase, StrArrayAttr:$axes,
                       FSDP_ShardType:$shard);
  let results = (outs FSDP_GatheredType:$full);
  let assemblyFormat = [{
    $unit custom<Phase>($phase) `over` $axes $shard attr-dict `:`
    qualified(type($shard)) `->` qualified(type($full))
  }];
}

def FSDP_PieceOp : FSDP_UserOp<"piece", [Pure]> {
  let summary = "keep a piece of a gathered unit";
  let description = [{
    This rank's piece among the ranks of the axes: what is left of a gathered unit
    after the forward, when the backward gathers it again in groups that are
    smaller than all ranks. A copy: the gathered memory may end after it.

    Example:

    ```mlir
    %piece = fsdp.piece @h.0 over ["local"] %full
        : !fsdp.gathered<24xbf16> -> !fsdp.shard<24xbf16, 2>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is of the unit's gathered type.
    * C3: the axes are distinct axes over which the unit is sharded; there is at
      least one.
    * C4: the result has as many elements, split into as many pieces as there are
      ranks along the axes.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, StrArrayAttr:$axes, FSDP_GatheredType:$full);
  let results = (outs FSDP_ShardType:$piece);
  let assemblyFormat = [{
    $unit `over` $axes $full attr-dict `:` qualified(type($full)) `->` qualified(type($piece))
  }];
}

def FSDP_ViewOp : FSDP_UserOp<"view", [Pure, ViewLikeOpInterface]> {
  let summary = "a parameter as a view of its gathered unit";
  let description = [{
    Costs nothing: the tensor is memory of the gathered unit. Its type says the
    strides of the parameter, and offset 0.

    Example:

    ```mlir
    %w = fsdp.view %full[@h.0, "h.0.w"] : !fsdp.gathered<24xbf16> -> tensor<3x5xbf16>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is of the unit's gathered type.
    * C3: the unit's layout has the parameter, by that name and not an alias.
    * C4: the result has the sizes and strides of the parameter, and the
      element type of the operand.
  }];
  let arguments = (ins FSDP_GatheredType:$full, FlatSymbolRefAttr:$unit, StrAttr:$parameter);
  let results = (outs AnyRankedTensor:$tensor);
  let assemblyFormat = [{
    $full `[` $unit `,` $parameter `]` attr-dict `:` qualified(type($full)) `->` type($tensor)
  }];
  let extraClassDeclaration = "::mlir::Value getViewSource() { return getFull(); }";
}

def FSDP_CopyOp : FSDP_UserOp<"copy", [Pure, FSDP_LogicalOp]> {
  let summary = "a shard of a unit in another memory";
  let description = [{
    A copy of a shard in device memory, of one in host memory; or the opposite.
    The phase is that of what reads the copy. It is part of the operation, or CSE
    would merge the copies of two phases, and the shard would stay on the device
    between them.

    Example:

    ```mlir
    %device = fsdp.copy @h.0 <forward> %shard : !fsdp.shard<24xf32, 4, host> -> !fsdp.shard<24xf32, 4>
    %gradient = fsdp.copy @h.0 <backward> %reduced : !fsdp.shard<24xf32, 4> -> !fsdp.shard<24xf32, 4, host>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is a shard of the unit, of its storage type.
    * C3: the result is the same in the other memory.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, ATen_PhaseAttr:$phase, FSDP_ShardType:$source);
  let results = (outs FSDP_ShardType:$target);
  let assemblyFormat = [{
    $unit custom<Phase>($phase) $source attr-dict `:`
    qualified(type($source)) `->` qualified(type($target))
  }];
  let extraClassDefinition = FSDP_CheckedAs<"Copy">.definition;
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

def FSDP_FlattenGradsOp : FSDP_UserOp<"flatten_grads", [Pure]> {
  let summary = "concatenate gradients into a flat gradient";
  let description = [{
    One place per parameter of the layout, in its order; a parameter without
    gradient has `none`. Places and padding without gradient are 0. Gradients may
    have any strides: the elements go where the parameter's lie.

    Example:

    ```mlir
    %flat = fsdp.flatten_grads @h.0(%gw, none)
        : (tensor<3x5xbf16>) -> tensor<24xf32>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: there is one place per parameter of the layout.
    * C3: exactly the frozen parameters have `none`.
    * C4: each gradient has the sizes of its parameter, and any float type.
    * C5: the result is dense, with as many elements as the layout's `padded`, of
      any float type: gradients are cast.
    * C6: there are as many gradients as places that are not `none`.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, DenseBoolArrayAttr:$present,
                       Variadic<AnyRankedTensor>:$gradients);
  let results = (outs AnyRankedTensor:$flat);
  let assemblyFormat = [{
    $unit `(` custom<Places>($present, $gradients) `)` attr-dict `:`
    functional-type($gradients, $flat)
  }];
  let hasVerifier = 1;
}

def FSDP_AccumulateOp : FSDP_UserOp<"accumulate", [Pure, AllTypesMatch<["sum", "gradient", "total"]>]> {
  let summary = "add gradients of a micro-batch to those before it";
  let description = [{
    Of two flat gradients, before they are reduced, or of two shards, after that,
    or between two reductions.
    In memory, the result takes the place of the first operand: nothing uses that
    one after it. One of the two is what the programs before have summed.

    Example:

    ```mlir
    %sum = fsdp.accumulate @h.0 %before, %flat : tensor<24xf32>
    %total = fsdp.accumulate @h.0 %shard, %others : !fsdp.shard<24xf32, 4>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: operands and result are flat gradients of the unit in its reduce type,
      or shards of it, of its storage or its reduce type.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, AnyType:$sum, AnyType:$gradient);
  let results = (outs AnyType:$total);
  let assemblyFormat = "$unit $sum `,` $gradient attr-dict `:` qualified(type($sum))";
}

def FSDP_ReduceScatterOp : FSDP_PureCollectiveOp<"reduce_scatter", "ReduceScatter"> {
  let summary = "reduce-scatter a flat gradient";
  let description = [{
    Casts to `via`, which is the unit's reduce type unless its `fsdp.reductions` say
    otherwise, divides by the first divisor, sums over the axes, keeps the
    rank's piece, divides by the second divisor and casts to the result's type: the
    unit's storage type, or its reduce type if that is what the next reduction
    takes.

    Example:

    ```mlir
    %shard = fsdp.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat
        : tensor<24xf32> -> !fsdp.shard<24xf32, 4>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the axes are all axes over which the unit is sharded.
    * C3: `via` is a float type.
    * C4: the operand is the unit's flat gradient.
    * C5: the result is a shard of the unit, of its storage or its reduce type.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, StrArrayAttr:$axes, FSDP_DivideAttr:$divide,
                       TypeAttr:$via, AnyRankedTensor:$flat);
  let results = (outs FSDP_ShardType:$shard);
  let assemblyFormat = [{
    $unit `over` $axes `divide` $divide `via` $via $flat attr-dict `:`
    type($flat) `->` qualified(type($shard))
  }];
}

def FSDP_AllReduceOp : FSDP_PureCollectiveOp<"all_reduce", "AllReduce"> {
  let summary = "all-reduce a value";
  let description = [{
    Casts to `via`, divides by the first divisor, sums over the axes, divides by
    the second divisor and casts to the result's type; with `max`, the largest value
    takes the place of the sum, or no number if one is none, and with `first` that
    of the group's first rank, as a broadcast. Of a unit, it reduces a
    flat gradient that is not sharded, or a shard over the axes over which it is
    replicated; on a mesh, a value whose role it says: the loss, a norm, a buffer.

    Example:

    ```mlir
    %shard = fsdp.all_reduce @h.0 over ["replicate"] divide <pre = 2, post = 1> via f32 %flat
        : tensor<24xbf16> -> !fsdp.shard<24xf32, 1>
    %mean = fsdp.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 4> via f32 %loss
        : tensor<f32> -> tensor<f32>
    %all = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 max %local
        : tensor<f64> -> tensor<f64>
    ```

    **Constraints**:

    * C1: there is either a unit or a mesh, and it exists.
    * C2: the axes are distinct axes of the mesh; there is at least one, but for a unit
      that is along none. Of a unit, it is sharded over none of them, but for axes of
      one rank.
    * C3: of a unit, `via` is a float type.
    * C4: of a unit, the operand is a shard of it, or its flat gradient if its
      mesh has one shard; the result is a shard of it.
    * C5: on a mesh, there is a role, and operand and result are tensors of the
      same type.
    * C6: `max` stands on a norm, `first` on a buffer, and neither is divided.
  }];
  let arguments = (ins OptionalAttr<FlatSymbolRefAttr>:$unit, OptionalAttr<FlatSymbolRefAttr>:$mesh, OptionalAttr<FSDP_ReductionRoleAttr>:$role,
                       StrArrayAttr:$axes, FSDP_DivideAttr:$divide, TypeAttr:$via, AnyType:$input,
                       UnitAttr:$max, UnitAttr:$first);
  let results = (outs AnyType:$output);
  let assemblyFormat = [{
    ($unit^)? (`on` $mesh^ `for` `` $role)? `over` $axes `divide` $divide `via` $via (`max` $max^)? (`first` $first^)? $input
    attr-dict `:` type($input) `->` type($output)
  }];
}

//===----------------------------------------------------------------------===//
// Shards
//===----------------------------------------------------------------------===//

// What scales shards, or says whether they may be used.
def FSDP_Scalar : 0DTensorOf<[F32]>, BuildableType<
  "::mlir::RankedTensorType::get({}, $_builder.getF32Type())">;

// What shards add up to.
def FSDP_Sum : 0DTensorOf<[F64]>, BuildableType<
  "::mlir::RankedTensorType::get({}, $_builder.getF64Type())">;

def FSDP_MeasureOp : FSDP_UserOp<"measure", [Pure]> {
  let summary = "what the elements of a shard add up to";
  let description = [{
    One number of the elements of the intervals that this rank has: padding that is
    in none does not count. With `initial`, they join what is measured so far, of
    other units.

    | kind | |
    |---|---|
    | `squared_norm` | the sum of the squares |
    | `abs_sum` | the sum of the absolute values |
    | `abs_max` | the largest absolute value; no number if one is none |
    | `found_inf` | 1 if an element is infinite or no number, else 0 |

    Sums are computed in f64, in the order of elements and operations. Reduced over
    the ranks among which the unit is sharded, it is that of the whole.

    Example:

    ```mlir
    %a = fsdp.measure squared_norm @h.0 [0 to 24] %g : !fsdp.shard<24xf32, 4>
    %b = fsdp.measure squared_norm @h.1 [0 to 24] %h initial %a : !fsdp.shard<24xf32, 4>
    %sum = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 %b
        : tensor<f64> -> tensor<f64>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is a shard of the unit, in its storage or its reduce type.
    * C3: intervals are not empty, ascending, disjoint and inside the layout.
  }];
  let arguments = (ins FSDP_MeasureKindAttr:$kind, FlatSymbolRefAttr:$unit,
                       DenseI64ArrayAttr:$intervals, FSDP_ShardType:$shard,
                       Optional<FSDP_Sum>:$initial);
  let results = (outs FSDP_Sum:$measure);
  let assemblyFormat = [{
    `` $kind $unit custom<Intervals>($intervals) $shard (`initial` $initial^)? attr-dict
    `:` qualified(type($shard))
  }];
}

def FSDP_ClipFactorOp : FSDP_Op<"clip_factor", [Pure, AttrSizedOperandSegments]> {
  let summary = "by what gradients are multiplied so that their norm is bounded";
  let description = [{
    As `torch.nn.utils.clip_grad_norm_`: with the norm n of all gradients, the
    smaller of 1 and max_norm / (n + 1e-6). The operands are measures of all
    gradients, reduced over ranks: the squared norm is the sum of `squared_norm`,
    the norm of order 1 that of `abs_sum`, and that of infinite order the largest
    `abs_max`. If gradients are multiples of what they stand for, by a loss scale,
    n is divided by it. Computed in f64.

    Example:

    ```mlir
    %factor = fsdp.clip_factor squared_norm max_norm 1.0 (%sharded, %replicated) scale %scale
    ```

    **Constraints**:

    * C1: the kind is that of a norm, not `found_inf`.
    * C2: the largest norm is finite and above 0.
    * C3: there is at least one measure.
  }];
  let arguments = (ins FSDP_MeasureKindAttr:$kind, F64Attr:$max_norm,
                       Variadic<FSDP_Sum>:$measures, Optional<FSDP_Scalar>:$loss_scale);
  let results = (outs FSDP_Scalar:$factor);
  let assemblyFormat = [{
    `` $kind `max_norm` $max_norm `(` $measures `)` (`scale` $loss_scale^)? attr-dict
  }];
  let hasVerifier = 1;
}

def FSDP_ScaleOp : FSDP_UserOp<"scale", [Pure, AllTypesMatch<["shard", "scaled"]>]> {
  let summary = "multiply a gradient by a number";
  let description = [{
    All elements of the shard, by a number that every rank has. In memory, the
    result takes the operand's place: nothing but the end of the function uses the
    operand after it.

    Example:

    ```mlir
    %clipped = fsdp.scale @h.0 %g by %factor : !fsdp.shard<24xf32, 4>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: the operand is a shard of the unit, in its storage or its reduce type.
  }];
  let arguments = (ins FlatSymbolRefAttr:$unit, FSDP_ShardType:$shard, FSDP_Scalar:$factor);
  let results = (outs FSDP_ShardType:$scaled);
  let assemblyFormat = "$unit $shard `by` $factor attr-dict `:` qualified(type($shard))";
}

//===----------------------------------------------------------------------===//
// Optimizers
//===----------------------------------------------------------------------===//

defvar FSDP_Scalars = FSDP_UpdateScalars<FSDP_Scalar>;
defvar FSDP_UpdateOperands = !con((ins AnyRankedTensor:$hyper), FSDP_Scalars.operands);

def FSDP_AdamWOp : FSDP_UserOp<"adamw", [Pure, FSDP_UpdateOpInterface, AttrSizedOperandSegments,
    AllTypesMatch<["parameter", "gradient", "exp_avg", "exp_avg_sq",
                   "new_parameter", "new_exp_avg", "new_exp_avg_sq"]>]> {
  let summary = "update a unit's shard with AdamW";
  let description = [{
    As `torch.optim.AdamW(fused=True)`, on the elements of the intervals alone;
    all others stay as they are. An interval `a to b` counts elements of the whole
    flat parameter, `b` not included; each rank updates what it has of them. The
    last operand before the optional ones are the hyper-parameters of the decay
    group, in order: learning rate, beta1, beta2, epsilon, weight decay, momentum,
    number of the update. A group is an argument of the function, with
    `fsdp.hyper`: its values are the caller's, for each run.

    The gradient is multiplied by the clip factor and divided by the loss scale,
    if they are there. Where `found_inf` is not 0, nothing is updated. `skipped` is
    how many updates before it were such: its number is less by them.

    Example:

    ```mlir
    %p, %m, %v = fsdp.adamw @h.0 [0 to 24] %p0, %g, %m0, %v0, %hyper
        : !fsdp.shard<24xf32, 4>, tensor<7xf64>
    %p1, %m1, %v1 = fsdp.adamw @h.0 [0 to 24] %p0, %g, %m0, %v0, %hyper
        clip %factor scale %scale found_inf %inf skipped %n : !fsdp.shard<24xf32, 4>, tensor<7xf64>
    ```

    **Constraints**:

    * C1: the unit exists.
    * C2: parameter, gradient and state are shards of the unit, in the same
      memory: the update runs there.
    * C3: intervals are not empty, ascending, disjoint and inside the layout.
    * C4: no interval touches a frozen parameter.
    * C5: the hyper-parameters are a `tensor<7xf64>`.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, DenseI64ArrayAttr:$intervals,
                       FSDP_ShardType:$parameter, FSDP_ShardType:$gradient,
                       FSDP_ShardType:$exp_avg, FSDP_ShardType:$exp_avg_sq),
                       FSDP_UpdateOperands);
  let results = (outs FSDP_ShardType:$new_parameter, FSDP_ShardType:$new_exp_avg,
                      FSDP_ShardType:$new_exp_avg_sq);
  let assemblyFormat = !strconcat([{
    $unit custom<Intervals>($intervals) $parameter `,` $gradient `,` $exp_avg `,` $exp_avg_sq
    `,` $hyper
  }], FSDP_Scalars.format, [{ attr-dict `:` qualified(type($parameter)) `,` type($hyper) }]);
  let extraClassDeclaration = FSDP_AdamWRule;
}

def FSDP_SGDOp : FSDP_UserOp<"sgd", [Pure, FSDP_UpdateOpInterface, AttrSizedOperandSegments,
    AllTypesMatch<["parameter", "gradient", "new_parameter"]>]> {
  let summary = "update a unit's shard with SGD";
  let description = [{
    As `torch.optim.SGD`, with the intervals, hyper-parameters and optional
    operands of `fsdp.adamw`; without a momentum buffer, plain SGD.

    Example:

    ```mlir
    %p = fsdp.sgd @h.0 [0 to 24] %p0, %g, %hyper : !fsdp.shard<24xf32, 4>, tensor<7xf64>
    %q, %b = fsdp.sgd @h.0 [0 to 24] %p0, %g momentum %b0, %hyper
        : !fsdp.shard<24xf32, 4>, tensor<7xf64> -> !fsdp.shard<24xf32, 4>
    ```

    **Constraints**: those of `fsdp.adamw`, and

    * C6: there is old momentum if there is new momentum; their types agree.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, DenseI64ArrayAttr:$intervals,
                       FSDP_ShardType:$parameter, FSDP_ShardType:$gradient,
                       Optional<FSDP_ShardType>:$momentum), FSDP_UpdateOperands);
  let results = (outs FSDP_ShardType:$new_parameter, Optional<FSDP_ShardType>:$new_momentum);
  let assemblyFormat = !strconcat([{
    $unit custom<Intervals>($intervals) $parameter `,` $gradient (`momentum` $momentum^)? `,`
    $hyper
  }], FSDP_Scalars.format, [{
    attr-dict `:` qualified(type($parameter)) `,` type($hyper)
    custom<Momentum>(type($momentum), type($new_momentum))
  }]);
  let extraClassDeclaration = FSDP_SGDRule;
}

#endif // FSDP_DIALECT_FSDP_IR_FSDPOPS_TD
