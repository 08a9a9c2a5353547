//===- Passes.td - Passes of the fsdp dialect ---------------*- tablegen -*-===//
//
// In alphabetical order. Each pass has a file of its name, and a test.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_TD
#define FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_TD

include "fsdp/Dialect/FSDP/Transforms/Options/Options.td"

def AccumulatePass : Pass<"fsdp-accumulate", "::mlir::ModuleOp"> {
  let summary = "make a step one of several micro-batches";
  let description = [{
    The first program, which trains, becomes three: `@first`, `@middle` and
    `@last`, for one micro-batch each. Each of them reduces its gradients, and the
    reduced shards are summed. With `no-sync`, only `@last` reduces: each rank sums
    its own flat gradients, in the reduce type. With `no-all-reduce`, each
    reduce-scatters and only `@last` all-reduces: what is in between is summed, in
    the reduce type; a unit that has only one of the two reductions does as without
    the option, or as with `no-sync`. The sums are states of their units,
    `sharded_gradient`, `partial_gradient` or `unsharded_gradient`: results of
    `@first`, arguments and results of `@middle`, arguments of `@last`. A step of
    two micro-batches has no `@middle`.

    What `@first` gathers of a unit that is kept after the backward is an
    `unsharded_parameter`: a result of it, and an argument of the others, which do
    not gather it.

    With `:mean`, the backward of each micro-batch starts with 1 / K, as that of
    a loss that is divided by K does.

    Before and after: the logical level, without updates.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [AccumulateOption, NoSync, NoAllReduce];
}

def AnnotateCostsPass : Pass<"fsdp-annotate-costs", "::mlir::ModuleOp"> {
  let summary = "annotate each operation with its duration";
  let description = [{
    A duration in nanoseconds, `fsdp.cost`, on each operation of the step that
    takes time: calls by floating-point operations and bytes, collectives by the
    bytes of the whole as they are sent and the ranks of their group, updates by
    the bytes of the shard. A view has none. The launches of a bucket are one
    call, and what a copied one copies takes time where it is copied: on the
    stream of the launch, where the unit is waited for, and where the gradient is
    laid out flat. `fsdp.shared_core` on the program says that on this hardware all
    streams of a rank take turns on one core. `fsdp.contention` says by how much
    collectives slow computations beside them, and `fsdp.links` on a collective
    what it takes of the links in a node and of those between nodes, where
    collectives that run at once share them.

    `hardware` is a file such as hardware/cpu.toml, which explains itself, or the
    name of one that is built in. `profile` is a file of `fsdp-run --profile`:
    nodes of the graph, and collectives of the same kind, bytes and ranks, take
    as long as they were measured to; anything else as the hardware predicts.

    Before and after: any level with a step; collectives have a cost at the
    scheduled level. Remark `costs`: how many operations take time, how many of
    them were measured, and the nanoseconds of each.
  }];
  let options = [Hardware, Profile, WhatIfOption];
}

def ApplySchedulePass : Pass<"fsdp-apply-schedule", "::mlir::ModuleOp"> {
  let summary = "make the order that was decided";
  let description = [{
    Other passes decide, and this one moves. Each launch and wait with `fsdp.issue`
    moves to that place of the step, counted from 0; all other operations keep
    their order around them. An all-gather with `fsdp.after` starts after the
    reshards at those places. A decision that cannot be is rejected.

    Before and after: the scheduled level.
  }];
}

def AssignUnitsPass : Pass<"fsdp-assign-units", "::mlir::ModuleOp"> {
  let summary = "assign each parameter to a unit";
  let description = [{
    Writes `fsdp.unit` on each parameter of the step: the path of a module that
    is a unit, or `root`. A tied parameter belongs to the innermost unit around
    all modules that own it. Where the parameters of a unit have several element
    types, those unlike the first make a unit of their own, with the element type
    as a suffix.

    With `wrap=auto`, units are the outermost repeated modules: siblings, each
    of several modules with parameters, that have the same parameters and the
    same calls in the forward. Names do not matter. A sibling of at
    least their size is a unit too. If nothing repeats but single layers, those
    are units if they are most of the model. `scope:REGEX` matches whole paths of
    modules, `class:NAME` classes, and `size:N` is FSDP's size-based policy.

    Parameters that `ignore` matches, by a part of a name, make a unit of their own in
    each of these, with the suffix `ignored`.

    Before and after: the aten level. Remark `unit` for each unit.
  }];
  let options = [Wrap, IgnoreOption];
}

def AsyncPass : Pass<"fsdp-async", "::mlir::ModuleOp"> {
  let summary = "split collectives into launches and waits";
  let description = [{
    Each collective becomes a launch in its place, and a wait in front of the
    first use of its result: for a gather, that is directly after the launch. A
    gathered unit ends after the last use of its views.

    Before: the logical level. After: the scheduled level.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
}

def AutoPass : Pass<"fsdp-auto", "::mlir::ModuleOp"> {
  let summary = "decide about a step, and carry it out";
  let description = [{
    Makes a scheduled step of a logical one in one go: what stays gathered, to the
    backward or from one micro-batch to the next, which modules are recomputed,
    which collectives go in one call, when each is launched and when the backward
    waits for it. With `auto`, decisions are searched: the fastest step that holds at most `budget`, by the costs of
    `hardware` or `profile`, after at most `evaluations` steps that were tried;
    they are written to the file `decisions`, if it is named. Without `auto`, they
    are read from there. docs/planner.md says what is searched, and how far an
    answer can be from the best. With `robust`, what counts is the mean of the
    predicted time and those on slower machines.

    The model of the step is made anew for it: what it says of decisions is what
    the passes make of them, to the nanosecond and the byte.

    Before: the logical level, without recomputation. After: the scheduled level,
    ordered by attributes, as passes of that level leave it. Remark `step`: the
    predicted time, the peak, the bound and its name.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [AutoOption, Robust, DecisionsOption, Evaluations, Hardware, Profile, WhatIfOption, Budget];
}

def BucketPass : Pass<"fsdp-bucket", "::mlir::ModuleOp"> {
  let summary = "issue several collectives in one call";
  let description = [{
    Launches of one kind and phase that follow each other join a bucket of at
    most N units (`units:N`) or so many bytes (`bytes:SIZE`). A collective larger
    than that stays alone. Each keeps its own memory: nothing is copied. A bucket
    of all-gathers is launched where its first was, one of reductions where its
    last was, unless a result is needed before that.

    With `copy:`, a bucket is one collective over one buffer, also a bucket of
    one: shards are copied in, cast to the type in which they are gathered, and
    each unit is copied out at the first wait; gradients are copied in, and the
    sums out if they are of several units. That takes memory and time; it is what
    FSDP2 and Inductor do. Only launches of one element type join.

    With `merge:`, units join instead, in the order in which the step first
    reads them: parameters of one element type become one flat parameter, which
    is gathered, kept and reduced as a whole. The root stays alone.

    Before and after: the scheduled level, where it decides and
    `--fsdp-apply-schedule` moves; with `merge`, the aten level with its units. Remark `bucket` for each bucket of several launches, `merge` for each
    unit made of several.
  }];
  let options = [BucketOption];
}

def ClipGradientsPass : Pass<"fsdp-clip-gradients", "::mlir::ModuleOp"> {
  let summary = "clip the norm of all gradients";
  let description = [{
    Measures the reduced gradient of each unit, on the elements that train, in the order
    of units: units that are sharded over the same axes are measured together, and
    their measures reduced over these axes by one all-reduce. Ranks along axes over
    which a unit is replicated have the same gradient, which counts once. Every update
    takes the factor that `fsdp.clip_factor` makes of the measures.

    Before and after: the logical level. The program says what was asked for, as
    `fsdp.clip_grad_norm`, which `--fsdp-verify-equivalence` and the meaning of the plan go
    by. Remark `clip`.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [ClipGradNormOption];
}

def HoistConstantsPass : Pass<"fsdp-hoist-constants", "::mlir::ModuleOp"> {
  let summary = "compute once what depends on constants alone";
  let description = [{
    What the step computes from constants and embedded buffers alone, and the
    same each time (ranges, masks, position tables), moves into `@init`, which
    runs once. What the step reads of it are results of `@init`, which persist:
    so they may take `max-bytes` in all, and where they would take more, the
    largest stay in the step. Random and unknown operators never move. Views stay
    where they are read.

    The default is a causal mask of 8192 x 8192 truth values: less than 1 % of a
    GPU's memory, and below the activations of any model with such sequences.

    Before and after: the logical level. Remark `init`, and `too-large` for each
    result that stays in the step.
  }];
  let options = [
    Option<"maxBytes", "max-bytes", "::fsdp::ByteSize", "::fsdp::ByteSize{64 << 20}",
           "How many bytes the results of @init may take.">,
  ];
}

def InsertOptimizerPass : Pass<"fsdp-insert-optimizer", "::mlir::ModuleOp"> {
  let summary = "update the shards at the end of the step";
  let description = [{
    Each unit with a reduced gradient gets its state as arguments and results of
    the step, and one update over the elements that train: padding between them
    included, frozen parameters never. Decay group 0 has all parameters; what `no-decay`
    matches is in group 1. Group K of `lr-groups` is decay group 2 K, and 2 K + 1 without
    decay. With `no-decay`, parameters of which it matches the
    name or the number of dimensions are in decay group 1, whose weight decay is 0:
    a unit with parameters of both groups has two updates.

    Before: the logical level, with gradients among the results. After: the same,
    with parameters and states among the results; gradients stay. Remark `no-decay` for
    what is in the group without.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [OptimizerOption, Momentum, NoDecayOption, LRGroupsOption];
}

def LimitInFlightPass : Pass<"fsdp-limit-in-flight", "::mlir::ModuleOp"> {
  let summary = "bound the gathered units that are alive at once";
  let description = [{
    At most `limit-all-gathers` units, and `bytes` bytes of them, are launched and
    not yet resharded, whatever the timing of streams: an all-gather is launched
    `after` the reshard that makes room for it, and moves after that reshard if it
    stands ahead. All-gathers are admitted in the order in which they are waited
    for. The step may read several units at once: a limit below that is rejected,
    but the default rises to it, and to two calls where buckets have several units.

    With a limit, the host runs ahead, as in FSDP: an all-gather starts as soon
    as the limit, its stream and its operands let it (`ahead`), and not where it
    is issued. So with a limit of 2, two buffers alternate, and the forward
    gathers a unit while the one before it computes. 0 is no limit: then
    all-gathers start where they are issued.

    A unit that is gathered in the forward and still read in the backward (the
    root; each unit of `shard_grad_op`) does not count: what a strategy keeps is
    no matter of order.

    FSDP1's `limit_all_gathers` is a limit of 2, as it was meant: there the CPU
    waits for one free event per gather, of which some pile up in the backward,
    so that from the second step on three units may be alive. That drift is not
    imitated.

    Before and after: the scheduled level. It decides, and `--fsdp-apply-schedule`
    moves. Remark `limit` for each gather that
    waits for an end, `raised` for a limit that did not do.
  }];
  let options = [
    LimitAllGathers,
    Option<"bytes", "bytes", "::fsdp::ByteSize", "::fsdp::ByteSize{}",
           "How many bytes of gathered units may be alive.">,
  ];
}

def NameReductionsPass : Pass<"fsdp-name-reductions", "::mlir::ModuleOp"> {
  let summary = "write down how gradients are reduced";
  let description = [{
    Sets `fsdp.reductions` of each unit to the reductions of its gradients. Stands
    after passes that replace reductions: the equivalence check and the proof of
    the plan then want these, in this order, with these divisors and types. Without
    it, they want those of `fsdp-shard`.

    Before and after: the logical level.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
}

def OffloadPass : Pass<"fsdp-offload", "::mlir::ModuleOp"> {
  let summary = "keep shards and states in host memory";
  let description = [{
    What is offloaded has a type with `host`, and is copied where it is needed in
    the other memory: a shard to the device in front of each gather, a reduced
    gradient to the host after its last reduction. An update runs where the states
    are, and so the gradient is there; if the shard is not, it is copied for the
    update and back.

    | `offload` | in host memory | the update runs |
    |---|---|---|
    | `params` | parameter shards | on the device |
    | `optimizer` | optimizer states, gradients | on the host |
    | `all` | parameter shards, optimizer states, gradients | on the host |
    | `bytes=SIZE` | all that of some units | where the unit is |

    Gradients that are summed over micro-batches are where gradients are, but
    unsharded ones stay on the device. With `bytes`, units go to the host one
    after the other, the one with the most bytes per rank first, until SIZE of
    arguments and gradients are saved: that is as few units as it takes.

    Before and after: the logical level. Remark `offload` for each unit.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [OffloadOption];
}

def PlaceReduceWaitsPass : Pass<"fsdp-place-reduce-waits", "::mlir::ModuleOp"> {
  let summary = "choose when the backward waits for reductions";
  let description = [{
    A reduction is launched as soon as the last gradient of its unit is there,
    and waited for where its result is first used: by the update of its unit. What
    it reduces lives until then. With `reduce-wait=backward`, all are waited for
    where the backward ends. With `reduce-wait=next`, each call is waited for before
    the next one is launched, in front of the flat gradient that completes it, as in
    FSDP2: one call is in flight at a time. FSDP1 leaves it to the allocator when
    memory of a gradient is used again (`record_stream`); a plan has to say it. A
    wait only moves to an earlier place.

    Before and after: the scheduled level. It decides, and `--fsdp-apply-schedule`
    moves. Remark `reduce` for each wait that moves.
  }];
  let options = [ReduceWaitOption];
}

def PrefetchPass : Pass<"fsdp-prefetch", "::mlir::ModuleOp"> {
  let summary = "launch all-gathers before they are needed";
  let description = [{
    In the backward, the target of a unit is the unit before it in the order in
    which units end in the forward, as in FSDP1, if its gather is still to come.
    With `backward_pre` (BACKWARD_PRE) the target is launched as soon as the
    unit's own gather is there, in front of its backward; where the backward
    begins with a unit that is still gathered (the root), in front of that. With
    `backward_post` (BACKWARD_POST) it is launched after the unit's backward,
    in front of its reduction; the first unit is nobody's target.

    With `forward-prefetch=N`, the N units that the forward uses next are launched as soon
    as a unit is there, in front of its forward: with 1, FSDP1's
    `forward_prefetch`.

    Before and after: the scheduled level. It decides, and `--fsdp-apply-schedule`
    moves. Remark `prefetch` for each gather that moves: its bytes, and how many calls it may overlap with.
  }];
  let options = [BackwardPrefetchOption, ForwardPrefetch];
}

def PriceDecisionsPass : Pass<"fsdp-price-decisions", "::mlir::ModuleOp"> {
  let summary = "say what other decisions would cost";
  let description = [{
    Prices the step as it is decided so far, and once more for each decision that
    could be another: a unit that is resharded after the forward or stays gathered,
    and the module of a unit whose forward is recomputed. Each price is that of a
    copy of the step in which this was done, with the durations of
    `--fsdp-annotate-costs`, and with its collectives launched by
    `--fsdp-schedule`: the time of the step, and the most memory that a rank holds.
    The program itself does not change.

    Before and after: the logical level. Remark `step` for the step as it is, and
    `decision` for each that could be another, with what it changes.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [Hardware, Profile, WhatIfOption];
}

def RematPass : Pass<"fsdp-remat", "::mlir::ModuleOp"> {
  let summary = "recompute activations in the backward";
  let description = [{
    What the backward reads of the forward of a scope is computed a second time,
    in phase `recompute`, in front of its first use there: from what enters the
    scope, and from parameters as gathered for the backward. The phase keeps the
    two computations apart. What leaves the scope is kept, and so are the results
    of what is random or unknown: it is never repeated.

    With `scope:REGEX`, every outermost module whose whole path matches is recomputed
    (a wrapper `m.` in front does not count). With `cheap:REGEX`, of these modules
    what takes no longer than memory does is recomputed, such as elementwise
    operations and normalisations, as far as the backward then keeps fewer bytes.
    With `budget:SIZE`, as many of the
    model's repeated modules, whatever its units are, as it takes for the step to hold no more bytes, counted as `--fsdp-verify-memory`
    does, but before gathers are launched ahead; those first whose repetition
    costs the least work per byte that it frees.

    Before and after: the logical level. Remark `remat` for each scope, with the
    work that is done again and the bytes that are no longer kept for it, and
    `peak` for what the step holds before and after.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [RematOption];
}

def ReshardPolicyPass : Pass<"fsdp-reshard-policy", "::mlir::ModuleOp"> {
  let summary = "choose what stays gathered after the forward";
  let description = [{
    With `reshard-after-forward=true`, what is gathered in the forward is freed where the
    forward ends with it, and the backward gathers it again: each unit but the
    root (and the root's types), with which the backward begins. With `false`,
    one gather serves both. `full_shard` and `shard_grad_op` are these two.

    With a number N, as FSDP2's `reshard_after_forward`, each rank keeps the 1/N of
    the gathered unit that `fsdp.piece` says, over the unit's `piece_axes`, and the
    backward gathers it in groups of N ranks: those along the innermost axes of
    shards that have N ranks together. An axis of more is split, and its inner part is the axis "local". N
    divides the shards; 1 means `false`, with a warning, and as many as there are
    shards means `true`. A unit that is sharded over some of these axes alone, or
    over others, is gathered again over all of its own.

    Before and after: the logical level. Remark `reshard` for each unit, with the bytes that are gathered again or kept.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [ReshardAfterForwardOption];
}

def ScaleLossPass : Pass<"fsdp-scale-loss", "::mlir::ModuleOp"> {
  let summary = "scale the loss, and update where its gradients are finite";
  let description = [{
    As `torch.amp.GradScaler`, without the host: the gradient with which the backward
    starts, in the program and in its source, is multiplied by the scale. `found_inf`
    is measured of the reduced gradients of all units, and reduced over ranks. Updates
    divide gradients by the scale, and change nothing where something is found. Then
    the scale grows or backs off. The scale, the steps since it grew, and the updates
    that were skipped are buffers that the step changes, the same on all ranks. Of
    several micro-batches, all have the scale of the step.

    Before and after: the logical level. The program says what was asked for, as
    `fsdp.grad_scaler`, which `--fsdp-verify-equivalence` and the meaning of the plan go
    by. Remark `scale`.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [GradScalerOption];
}

def SchedulePass : Pass<"fsdp-schedule", "::mlir::ModuleOp"> {
  let summary = "schedule collectives by their costs";
  let description = [{
    Makes a scheduling problem of the step as it was decided so far, with the durations that
    `--fsdp-annotate-costs` has written, and writes the place at which each
    launch is to be issued, `fsdp.issue`. Computations, and the launches of one
    stream, keep their order.

    `program` leaves everything where it is. `list` launches what is urgent
    early, as far as memory lets it, and what takes memory as late as costs no
    time; its step is never slower than program order, by the durations.

    `budget` is for all memory of a rank. One that cannot be met is rejected, with
    the smallest that can.

    Before and after: the scheduled level. Remark `gather` for each gather, with
    what is hidden of it and why it is not launched earlier; `timeline` for the
    step.
  }];
  let options = [
    Option<"algorithm", "algorithm", "::fsdp::planner::scheduling::Algorithm",
           "::fsdp::planner::scheduling::Algorithm::List",
           "How the order is found.", [{::llvm::cl::values(
             clEnumValN(::fsdp::planner::scheduling::Algorithm::Program, "program",
                        "Program order."),
             clEnumValN(::fsdp::planner::scheduling::Algorithm::List, "list",
                        "List scheduling by critical path."))}]>,
    Budget,
  ];
}

def ShardPass : Pass<"fsdp-shard", "::mlir::ModuleOp"> {
  let summary = "shard the parameters of the step over ranks";
  let description = [{
    Parameters become shards of units: gathered in each phase that uses the unit,
    and looked at through views. Gradients are laid out flat and reduced as soon
    as the last one of the unit is there. The loss becomes the mean over ranks.
    What is computed from parameters alone (views, casts) is computed anew in each
    phase, so that nothing of a gathered unit lives from one phase to the next.

    The strategy of a unit is a choice of axes and of a reshard policy: `full_shard`
    shards it over all ranks and gathers it again for the backward, `shard_grad_op`
    keeps it gathered; `hybrid_shard` and `hybrid_shard_zero2` do the same within
    the groups of a mesh, and sum over its copies what was reduced in a group, in
    the reduce type; with `no_shard`, each rank has the whole unit. A unit of ignored
    parameters is along no axis: each rank has one, and nothing is reduced. What is
    not to be resharded after the backward is a mark of the unit, for
    `--fsdp-accumulate`.

    With `sync-buffers`, what a program makes of a buffer is reduced where it is made:
    each rank ends with the mean, or with that of the first rank.

    Before: the aten level, every size known. After: the logical level; a private
    copy of the step, `@step.source`, is kept for `--fsdp-verify-equivalence`.
    Remark `unit` for each unit, `dropped` for each output that is not kept.
  }];
  let dependentDialects = ["::fsdp::FSDPDialect"];
  let options = [
    Ranks, MeshOption, StrategyOption, ReshardAfterBackwardOption, UnitOption,
    StorageDtype, ReduceDtype, KeepOutput, SyncBuffersOption,
  ];
}

def VerifyEquivalencePass : Pass<"fsdp-verify-equivalence", "::mlir::ModuleOp"> {
  let summary = "check that the step computes what its source does";
  let description = [{
    With gathers, views, reductions and waits seen through, the step and
    `@step.source` compute the same loss, gradients and mutations of buffers, and
    have the same effects in the same order. Each gradient is reduced once, to a
    mean over all ranks, and so is the loss; each parameter is in one unit; each
    trainable element is updated at most once; a use in a phase reads a gather of
    that phase, for every unit that is resharded after the forward. Results of
    `@init` count as if they were computed in the step.

    Before and after: the logical or the scheduled level.
  }];
}

def VerifyFuturesPass : Pass<"fsdp-verify-futures", "::mlir::ModuleOp"> {
  let summary = "check futures, and that gathered units are used before they are freed";
  let description = [{
    On every path, each future is consumed exactly once and each gathered unit
    ends at most once, and is used, also through views, only before. A shard that
    is updated, which is in place, is not in flight then and not read afterwards.
  }];
}

def VerifyLogicalPass : Pass<"fsdp-verify-logical", "::mlir::ModuleOp"> {
  let summary = "check that the step is of the logical level";
  let description = [{
    No parameter or gradient of the aten level is left, nothing is scheduled yet,
    each unit is gathered from its own shard, and a use in a phase reads a gather
    of that phase, for every unit that is resharded after the forward.
  }];
}

def VerifyMemoryPass : Pass<"fsdp-verify-memory", "::mlir::ModuleOp"> {
  let summary = "check that the step fits into a memory budget";
  let description = [{
    Counts the arguments, and what is alive at each operation: a gathered unit
    from its launch to its reshard, anything else from where it is made to the
    last use of itself or a view. What kernels need beside their results, copies
    that are folded away and alignment are not known yet. The budget is of device
    memory.

    Before: the scheduled level, without control flow. Remark `peak` for where the
    step holds most, `alive` for each of the largest kinds of what it holds there,
    `host` for the most that it holds in host memory.
  }];
  let options = [Budget];
}

def VerifyOrderPass : Pass<"fsdp-verify-order", "::mlir::ModuleOp"> {
  let summary = "check that all ranks launch the same collectives in the same order";
  let description = [{
    The block is the order of issue. All ranks take the same way to a collective:
    no control around it depends on what may differ from rank to rank. Launches of
    a bucket stand next to each other, and are of one operation, communicator and
    phase; copied ones, of one element type. Collectives over different axes whose groups have two ranks or more in
    common start in the order of the block as well: `--plan-insert-sync` has them
    wait for each other.

    Before and after: the scheduled level.
  }];
}

def VerifyScheduledPass : Pass<"fsdp-verify-scheduled", "::mlir::ModuleOp"> {
  let summary = "check that the step is of the scheduled level";
  let description = [{
    No collective of the logical level is left, the schedule has been applied, and
    a use in a phase reads a gather of that phase, for every unit that is resharded
    after the forward.
  }];
}

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_TD
