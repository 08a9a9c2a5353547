//===- FSDPOps.td - Logical level of the fsdp dialect -------*- tablegen -*-===//
//
// Which communication a sharded step needs, as pure values.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPOPS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPOPS_TD

include "fsdp/Dialect/FSDP/IR/FSDPAttrs.td"
include "fsdp/Dialect/ATen/IR/ATenAttrs.td" // ATen_PhaseAttr
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"

class FSDP_Op<string mnemonic, list<Trait> traits = []> : Op<FSDP_Dialect, mnemonic, traits>;

// fsdp.mesh @mesh ["replica" = 1, "shard" = 4]
def FSDP_MeshOp : FSDP_Op<"mesh", [Symbol]> {
  let arguments = (ins SymbolNameAttr:$sym_name, TypedArrayAttrBase<FSDP_AxisAttr, "mesh axes">:$axes);
  let assemblyFormat = "$sym_name $axes attr-dict"; // prints each axis as "name" = size
}

// fsdp.unit @h.0 on @mesh storage f32 compute bf16 reduce f32 layout <[...], numel = .., padded = ..>
def FSDP_UnitOp : FSDP_Op<"unit", [Symbol, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefAttr:$mesh,
                       TypeAttr:$storage, TypeAttr:$compute, TypeAttr:$reduce, FSDP_LayoutAttr:$layout);
  let assemblyFormat = "$sym_name `on` $mesh `storage` $storage `compute` $compute `reduce` $reduce `layout` $layout attr-dict";
}

// %full = fsdp.unshard @h.0 <forward> %h0 : !fsdp.shard<12704xf32, 4> -> !fsdp.gathered<12704xbf16>
// Pure; `phase` is inherent so that CSE never merges the gathers of two phases.
def FSDP_UnshardOp : FSDP_Op<"unshard", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FlatSymbolRefAttr:$unit, ATen_PhaseAttr:$phase, FSDP_ShardType:$shard);
  let results = (outs FSDP_GatheredType:$full);
}

// %w = fsdp.view %full[@h.0, "h.0.attn.c_attn.weight"] : !fsdp.gathered<12704xbf16> -> tensor<32x96xbf16>
def FSDP_ViewOp : FSDP_Op<"view", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FSDP_GatheredType:$full, FlatSymbolRefAttr:$unit, StrAttr:$parameter);
  let results = (outs AnyRankedTensor:$tensor);
}

// %flat = fsdp.flatten_grads @h.0(%g0, %g1, none, ...) : (tensor<..>, tensor<..>) -> tensor<12704xbf16>
// One place per parameter of the layout, in order; `present` has one bool per place. Element type: the unit's compute dtype.
def FSDP_FlattenGradsOp : FSDP_Op<"flatten_grads", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FlatSymbolRefAttr:$unit, DenseBoolArrayAttr:$present, Variadic<AnyRankedTensor>:$gradients);
  let results = (outs AnyRankedTensor:$flat);
}

// %gs = fsdp.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat : tensor<12704xbf16> -> !fsdp.shard<12704xf32, 4>
def FSDP_ReduceScatterOp : FSDP_Op<"reduce_scatter", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FlatSymbolRefAttr:$unit, StrArrayAttr:$axes, FSDP_DivideAttr:$divide, TypeAttr:$via, AnyRankedTensor:$flat);
  let results = (outs FSDP_ShardType:$shard);
}

// %gs = fsdp.all_reduce @h.0 over ["replica"] divide <...> via f32 %x : T -> T'
// T is !fsdp.shard (hybrid), a flat tensor -> !fsdp.shard<N, 1> (NO_SHARD). Without a unit (`fsdp.all_reduce on @mesh over [...]`): a scalar such as the loss.
def FSDP_AllReduceOp : FSDP_Op<"all_reduce", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins OptionalAttr<FlatSymbolRefAttr>:$unit, OptionalAttr<FlatSymbolRefAttr>:$mesh, StrArrayAttr:$axes, FSDP_DivideAttr:$divide, TypeAttr:$via, AnyType:$input);
  let results = (outs AnyType:$output);
}

// %p, %m1, %v1 = fsdp.adamw @h.0 [0 to 12704] %h0, %gs, %m0, %v0, %hyper : ...
// `intervals`: begin, end pairs in elements of the unsharded layout. %hyper: tensor<6xf64>-like token of the caller's
// scalars lr, beta1, beta2, eps, weight_decay, step: an argument of @step with attribute fsdp.hyper, type tensor<6xf64>.
def FSDP_AdamWOp : FSDP_Op<"adamw", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FlatSymbolRefAttr:$unit, DenseI64ArrayAttr:$intervals,
                       FSDP_ShardType:$parameter, FSDP_ShardType:$gradient, FSDP_ShardType:$exp_avg, FSDP_ShardType:$exp_avg_sq, AnyRankedTensor:$hyper);
  let results = (outs FSDP_ShardType:$new_parameter, FSDP_ShardType:$new_exp_avg, FSDP_ShardType:$new_exp_avg_sq);
}

// %p, %b1 = fsdp.sgd @h.0 [0 to 12704] %h0, %gs, %b0, %hyper : ...      (momentum state optional: plain SGD has none)
def FSDP_SGDOp : FSDP_Op<"sgd", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let arguments = (ins FlatSymbolRefAttr:$unit, DenseI64ArrayAttr:$intervals,
                       FSDP_ShardType:$parameter, FSDP_ShardType:$gradient, Optional<FSDP_ShardType>:$momentum, AnyRankedTensor:$hyper);
  let results = (outs FSDP_ShardType:$new_parameter, Optional<FSDP_ShardType>:$new_momentum);
}

#endif
