//===- FSDPAsyncOps.td - Scheduled level of the fsdp dialect -*- tablegen -*-===//
//
// When each collective runs: launches, futures, waits and ends of lifetimes.
// Block order is issue order.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDPASYNCOPS_TD
#define FSDP_DIALECT_FSDP_IR_FSDPASYNCOPS_TD

include "fsdp/Dialect/FSDP/IR/FSDPOps.td"

// Launch order of collectives is the same on every rank, so it is a resource.
def FSDP_CommunicatorResource : Resource<"::fsdp::CommunicatorResource">;
// A collective between its launch and its wait.
def FSDP_InFlightResource : Resource<"::fsdp::InFlightResource">;
// Memory of gathered parameters, from the launch of the gather to its reshard.
def FSDP_GatheredMemoryResource : Resource<"::fsdp::GatheredMemoryResource">;

// What is launched on a stream, and is checked as the op of that kind is.
class FSDP_LaunchOp<string mnemonic, string kind, string stream, list<Trait> traits = []>
    : FSDP_UserOp<"async." # mnemonic, [FSDP_ScheduledOp, FSDP_LaunchOpInterface] # traits> {
  code streamDecl = "static ::fsdp::Stream getStream() { return ::fsdp::Stream::" # stream # "; }\n";
  let extraClassDeclaration = streamDecl;
  let extraClassDefinition = FSDP_CheckedAs<kind>.definition;
}

// A collective may belong to a bucket: launches with the same number stand next to
// each other, are of one operation, communicator and phase, and are issued
// together, in one call. None of them is done before all are. With `copy`, they
// are one collective over one buffer: what they send is copied into it, cast on
// the way, and what they receive out of it. A launch alone may be copied, too.
class FSDP_AsyncCollectiveOp<string mnemonic, string kind, string stream>
    : FSDP_LaunchOp<mnemonic, kind, stream, [FSDP_CollectiveOpInterface,
        MemoryEffects<[MemRead<FSDP_CommunicatorResource>, MemWrite<FSDP_CommunicatorResource>]>]> {
  let extraClassDeclaration = streamDecl # FSDP_CollectiveKindOf<kind>.decl;
}

// A shard, or one that is being copied.
def FSDP_ShardOrFuture : AnyTypeOf<[FSDP_ShardType, FSDP_FutureType]>;

// When a launch starts. As those of c10d, it waits for its operands, for the
// launches of its stream before it, and for what the compute stream does before
// it. With `ahead` it does not wait for the latter: the host runs ahead, and
// only the reshards that `after` names hold the launch.
defvar FSDP_Start = (ins UnitAttr:$ahead, Variadic<FSDP_TokenType>:$after);

// Where a launch says that it belongs to a bucket.
defvar FSDP_Bucket = (ins OptionalAttr<ConfinedAttr<I64Attr, [
    IntNonNegative, IntMaxValue<4294967294>]>>:$bucket, UnitAttr:$copy);

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

def FSDP_AsyncUnshardOp : FSDP_AsyncCollectiveOp<"unshard", "AllGather", "Gather"> {
  let summary = "launch an all-gather of a unit";
  let description = [{
    `fsdp.unshard` on the stream `gather`. It starts when what stands before it
    on the compute stream is done. With `ahead` it does not wait for that: it
    starts as soon as its stream and its operands let it, as in FSDP, where the
    host runs ahead of the GPU. With `after`, it starts only when the memory of
    those gathered units has been given up: when all that read them, on whatever
    stream, is done. The memory of the result counts from where the gather may
    start, not from the wait. Launches with the same `bucket` are issued together.
    A shard that is being copied to the device is taken in flight: the stream of
    the gather waits for it, and no other.

    Example:

    ```mlir
    %f = fsdp.async.unshard @h.0 <forward> over ["shard"] %shard
        : !fsdp.shard<24xf32, 4> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    %g = fsdp.async.unshard @h.2 <forward> over ["shard"] %other bucket 0 ahead after %freed0, %freed1
        : !fsdp.shard<24xf32, 4> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    ```

    **Constraints**: those of `fsdp.unshard`, for what is in flight; and, checked
    by `--fsdp-verify-order` for launches of every kind:

    * B1: launches of a bucket are neighbours in their block.
    * B2: launches of a bucket are of one operation, communicator and phase.
    * B3: launches of a bucket are all copied or none; copied ones are of one
      element type before and after, and reductions divide alike. A gather casts
      on the way in, so only its result counts.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, ATen_PhaseAttr:$phase,
    StrArrayAttr:$axes, FSDP_ShardOrFuture:$shard), FSDP_Start, FSDP_Bucket);
  let results = (outs Res<FSDP_FutureType, "the gather in flight",
      [MemAlloc<FSDP_InFlightResource>, MemAlloc<FSDP_GatheredMemoryResource>]>:$future);
  let assemblyFormat = [{
    $unit custom<Phase>($phase) `over` $axes $shard (`bucket` $bucket^)? (`copy` $copy^)?
    (`ahead` $ahead^)? (`after` $after^)? attr-dict `:`
    qualified(type($shard)) `->` qualified(type($future))
  }];
}

def FSDP_AsyncReduceScatterOp : FSDP_AsyncCollectiveOp<"reduce_scatter", "ReduceScatter", "Reduce"> {
  let summary = "launch a reduce-scatter of a flat gradient";
  let description = [{
    `fsdp.reduce_scatter` on the stream `reduce`.

    Example:

    ```mlir
    %f = fsdp.async.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat
        : tensor<24xbf16> -> !fsdp.future<!fsdp.shard<24xf32, 4>>
    ```

    **Constraints**: those of `fsdp.reduce_scatter`, for what is in flight.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, StrArrayAttr:$axes,
    FSDP_DivideAttr:$divide, TypeAttr:$via, AnyRankedTensor:$flat), FSDP_Bucket);
  let results = (outs Res<FSDP_FutureType, "the reduction in flight",
      [MemAlloc<FSDP_InFlightResource>]>:$future);
  let assemblyFormat = [{
    $unit `over` $axes `divide` $divide `via` $via $flat (`bucket` $bucket^)? (`copy` $copy^)? attr-dict `:`
    type($flat) `->` qualified(type($future))
  }];
}

def FSDP_AsyncAllReduceOp : FSDP_AsyncCollectiveOp<"all_reduce", "AllReduce", "AllReduce"> {
  let summary = "launch an all-reduce";
  let description = [{
    `fsdp.all_reduce` on the stream `all_reduce`.

    Example:

    ```mlir
    %f = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 4> via f32 %loss
        : tensor<f32> -> !fsdp.future<tensor<f32>>
    ```

    **Constraints**: those of `fsdp.all_reduce`, for what is in flight.
  }];
  let arguments = !con((ins OptionalAttr<FlatSymbolRefAttr>:$unit,
    OptionalAttr<FlatSymbolRefAttr>:$mesh,
    OptionalAttr<FSDP_ReductionRoleAttr>:$role, StrArrayAttr:$axes, FSDP_DivideAttr:$divide,
    TypeAttr:$via, AnyType:$input, UnitAttr:$max, UnitAttr:$first), FSDP_Bucket);
  let results = (outs Res<FSDP_FutureType, "the reduction in flight",
      [MemAlloc<FSDP_InFlightResource>]>:$future);
  let assemblyFormat = [{
    ($unit^)? (`on` $mesh^ `for` `` $role)? `over` $axes `divide` $divide `via` $via (`max` $max^)? (`first` $first^)?
    $input (`bucket` $bucket^)? (`copy` $copy^)? attr-dict `:` type($input) `->` qualified(type($future))
  }];
}

def FSDP_AsyncCopyOp : FSDP_LaunchOp<"copy", "Copy", "Copy"> {
  let summary = "launch a copy between host and device";
  let description = [{
    `fsdp.copy` on the stream `copy`. Of a reduction in flight, that stream waits
    for it; and a gather may take the copy in flight. So the compute stream waits
    for neither. `ahead` and `after` say when it starts, as of a gather.

    Example:

    ```mlir
    %d = fsdp.async.copy @h.0 <forward> %shard
        : !fsdp.shard<24xf32, 4, host> -> !fsdp.future<!fsdp.shard<24xf32, 4>>
    %f = fsdp.async.unshard @h.0 <forward> over ["shard"] %d
        : !fsdp.future<!fsdp.shard<24xf32, 4>> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    ```

    **Constraints**: those of `fsdp.copy`, for what is in flight.
  }];
  let arguments = !con((ins FlatSymbolRefAttr:$unit, ATen_PhaseAttr:$phase,
    Arg<FSDP_ShardOrFuture, "what is copied", [MemRead<FSDP_InFlightResource>]>:$source), FSDP_Start);
  let results = (outs Res<FSDP_FutureType, "the copy in flight",
      [MemAlloc<FSDP_InFlightResource>]>:$future);
  let assemblyFormat = [{
    $unit custom<Phase>($phase) $source (`ahead` $ahead^)? (`after` $after^)? attr-dict `:`
    qualified(type($source)) `->` qualified(type($future))
  }];
}

//===----------------------------------------------------------------------===//
// Ends
//===----------------------------------------------------------------------===//

class FSDP_EndOp<string mnemonic, list<Trait> traits = []>
    : FSDP_Op<"async." # mnemonic, [FSDP_ScheduledOp] # traits>;

def FSDP_AsyncWaitOp : FSDP_EndOp<"wait", [
    TypesMatchWith<"the value is what the future promises", "future", "value",
                   "::llvm::cast<::fsdp::FutureType>($_self).getValueType()">]> {
  let summary = "make the compute stream wait for a collective";
  let description = [{
    Consumes the future: it is free of the collective in flight, which is also
    what keeps dead code elimination from dropping a wait whose value is unused.

    Example:

    ```mlir
    %full = fsdp.async.wait %f
        : !fsdp.future<!fsdp.gathered<24xbf16>> -> !fsdp.gathered<24xbf16>
    ```

    **Constraints**:

    * C1: the value is what the future promises.
  }];
  let arguments = (ins Arg<FSDP_FutureType, "the collective in flight",
                           [MemFree<FSDP_InFlightResource>]>:$future);
  let results = (outs AnyType:$value);
  let assemblyFormat =
      "$future attr-dict `:` qualified(type($future)) `->` qualified(type($value))";
  let extraClassDeclaration = [{
    /// What is waited for; null if the future comes from elsewhere.
    ::fsdp::LaunchOpInterface getLaunch() {
      return ::llvm::dyn_cast_or_null<::fsdp::LaunchOpInterface>(getFuture().getDefiningOp());
    }
  }];
}

def FSDP_AsyncReshardOp : FSDP_EndOp<"reshard"> {
  let summary = "free a gathered unit";
  let description = [{
    Nothing may use the gathered unit or a view of it from here on, which
    `--fsdp-verify-futures` checks. A later gather may wait for this with `after`.

    Example:

    ```mlir
    %freed = fsdp.async.reshard %full : !fsdp.gathered<24xbf16>
    ```
  }];
  let arguments = (ins Arg<FSDP_GatheredType, "the gathered unit",
                           [MemFree<FSDP_GatheredMemoryResource>]>:$full);
  let results = (outs FSDP_TokenType:$freed);
  let builders = [OpBuilder<(ins "::mlir::Value":$full), [{
    build($_builder, $_state, TokenType::get($_builder.getContext()), full);
  }]>];
  let assemblyFormat = "$full attr-dict `:` qualified(type($full))";
}

#endif // FSDP_DIALECT_FSDP_IR_FSDPASYNCOPS_TD
