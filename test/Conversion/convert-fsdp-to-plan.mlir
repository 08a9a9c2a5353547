// RUN: fsdp-opt %s --convert-fsdp-to-plan="strategy=full_shard" --split-input-file | FileCheck %s

// A unit is gathered in its compute type, viewed, its gradient reduced and its
// shard updated: one command each, in the order of the block.
// CHECK-LABEL: plan.module @plan
// CHECK-SAME: mesh ["replicate" = 1, "shard" = 2] device cpu strategy full_shard
// CHECK-DAG: plan.unit @u shard [1] replicate [0] storage f32 reduce f32
// CHECK-DAG: plan.communicator @shard_gather axes [1] on gather
// CHECK-DAG: plan.communicator @shard_reduce axes [1] on reduce
// CHECK-DAG: plan.communicator @shard_all_reduce axes [1] on all_reduce
// CHECK-DAG: %[[SHARD:.*]] = plan.buffer shard @u : tensor<12xf32>
// CHECK-DAG: %[[M:.*]] = plan.buffer optimizer_state @u "exp_avg" : tensor<12xf32>
// CHECK-DAG: %[[V:.*]] = plan.buffer optimizer_state @u "exp_avg_sq" : tensor<12xf32>
// CHECK-DAG: %[[X:.*]] = plan.buffer input @step number 0 : tensor<2x3xbf16>
// CHECK-DAG: %[[MASK:.*]] = plan.buffer result : tensor<4xf32>
// CHECK-DAG: %[[GRAD:.*]] = plan.buffer gradient @u : tensor<12xf32>
// CHECK-DAG: %[[HYPER:.*]] = plan.buffer hyper number 0 in host : tensor<7xf64>
// CHECK-DAG: %[[LOSS:.*]] = plan.buffer loss @step : tensor<bf16>
// CHECK: plan.program @init
// CHECK-NEXT: plan.launch "ones"([4]) -> %[[ONES:.*]] <init>
// CHECK-NEXT: plan.copy %[[ONES]] to %[[MASK]] <init>
// CHECK: plan.program @step
// CHECK-NEXT: plan.copy %[[SHARD]] to %[[CAST:.*]] <forward> on gather
// CHECK-NEXT: plan.all_gather @shard_gather %[[CAST]] to %[[FULL:.*]] of @u <forward> on gather
// CHECK-NEXT: plan.record <forward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: plan.launch "mm"(%[[X]], %[[W:.*]]) -> %[[Y:.*]] <forward> {scope = "m"}
// CHECK-NEXT: plan.launch "sum"(%[[Y]]) -> %[[LOCAL:.*]] <forward>
// CHECK-NEXT: plan.record <forward>
// CHECK-NEXT: plan.wait %{{.*}} <forward> on all_reduce
// CHECK-NEXT: plan.copy %[[LOCAL]] to %[[WIDE:.*]] <forward>
// CHECK-NEXT: plan.all_reduce @shard_all_reduce divide <pre = 1, post = 2> via f32 %[[WIDE]] to %[[SUM:.*]] for loss <forward> on all_reduce
// CHECK-NEXT: plan.copy %[[SUM]] to %[[MEAN:.*]] <forward> on all_reduce
// CHECK-NEXT: plan.record <forward> on all_reduce
// CHECK-NEXT: plan.launch "mm"(%[[W]], %[[Y]]) -> %[[GW:.*]] <backward>
// CHECK-NEXT: plan.copy %[[GW]] to %[[PLACE:.*]] <backward>
// CHECK-NEXT: plan.zero %[[FROZEN:.*]] <backward>
// CHECK-NEXT: plan.record <backward>
// CHECK-NEXT: plan.wait %{{.*}} <backward> on reduce
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %[[FLAT:.*]] to %[[GRAD]] of @u <backward> on reduce
// CHECK-NEXT: plan.record <backward> on reduce
// CHECK-NEXT: plan.wait %{{.*}} <update>
// CHECK-NEXT: plan.adamw @u [0, 15] %[[SHARD]], %[[GRAD]], %[[M]], %[[V]], %[[HYPER]] <update>
// CHECK-NEXT: plan.wait %{{.*}} <update>
// CHECK-NEXT: plan.copy %[[MEAN]] to %[[LOSS]] <forward>
// CHECK-NEXT: }
module {
  fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16 frozen], numel = 23, padded = 24>
  func.func @init() -> tensor<4xf32> attributes {fsdp.init} {
    %ones = aten.call "ones"([4]) : () -> tensor<4xf32>
    return %ones : tensor<4xf32>
  }
  func.func @step(%p: !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                  %m: !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg>},
                  %v: !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg_sq>},
                  %x: tensor<2x3xbf16> {aten.input = 0 : i64},
                  %mask: tensor<4xf32> {fsdp.result = 0 : i64},
                  %hyper: tensor<7xf64> {fsdp.hyper = 0 : i64})
      -> (tensor<bf16> {aten.loss},
          !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, gradient>},
          !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
          !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg>},
          !fsdp.shard<24xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg_sq>}) attributes {aten.program} {
    %future = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<24xf32, 2> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    %full = fsdp.async.wait %future : !fsdp.future<!fsdp.gathered<24xbf16>> -> !fsdp.gathered<24xbf16>
    %w = fsdp.view %full[@u, "w"] : !fsdp.gathered<24xbf16> -> tensor<3x5xbf16>
    %y = aten.call "mm"(%x, %w) {phase = #aten<phase forward>, scope = "m"} : (tensor<2x3xbf16>, tensor<3x5xbf16>) -> tensor<2x5xbf16>
    %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x5xbf16>) -> tensor<bf16>
    %sum = fsdp.async.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 2> via f32 %loss : tensor<bf16> -> !fsdp.future<tensor<bf16>>
    %gw = aten.call "mm"(%w, %y) {phase = #aten<phase backward>} : (tensor<3x5xbf16>, tensor<2x5xbf16>) -> tensor<3x5xbf16>
    fsdp.async.reshard %full : !fsdp.gathered<24xbf16>
    %flat = fsdp.flatten_grads @u(%gw, none) : (tensor<3x5xbf16>) -> tensor<24xf32>
    %reduced = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %flat : tensor<24xf32> -> !fsdp.future<!fsdp.shard<24xf32, 2>>
    %g = fsdp.async.wait %reduced : !fsdp.future<!fsdp.shard<24xf32, 2>> -> !fsdp.shard<24xf32, 2>
    %p1, %m1, %v1 = fsdp.adamw @u [0 to 15] %p, %g, %m, %v, %hyper : !fsdp.shard<24xf32, 2>, tensor<7xf64>
    %mean = fsdp.async.wait %sum : !fsdp.future<tensor<bf16>> -> tensor<bf16>
    return %mean, %g, %p1, %m1, %v1 : tensor<bf16>, !fsdp.shard<24xf32, 2>, !fsdp.shard<24xf32, 2>, !fsdp.shard<24xf32, 2>, !fsdp.shard<24xf32, 2>
  }
}

// -----

// What is kept of a gathered unit, and the gather of that in a small group.
// CHECK-LABEL: plan.module @plan
// CHECK-DAG: plan.communicator @shard_local_gather axes [1, 2] on gather
// CHECK-DAG: plan.communicator @local_gather axes [2] on gather
// CHECK-DAG: plan.unit @u shard [1, 2] replicate [0] storage f32 reduce f32
// CHECK: plan.program @step
// CHECK: plan.all_gather @shard_local_gather %{{.*}} to %[[FULL:.*]] of @u <forward> on gather
// CHECK-NEXT: plan.record <forward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: plan.piece @local_gather %[[FULL]] to %[[PIECE:.*]] of @u <forward>
// CHECK-NEXT: plan.record <forward>
// CHECK-NEXT: plan.wait %{{.*}} <backward> on gather
// CHECK-NEXT: plan.all_gather @local_gather %[[PIECE]] to %[[AGAIN:.*]] of @u <backward> on gather
// CHECK-NEXT: plan.record <backward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <backward>
// CHECK-NEXT: }
module {
  fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
  fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32
      layout <["w" : 24 at 0], numel = 24, padded = 24> {reshard_after_forward}
  func.func @step(%p: !fsdp.shard<24xf32, 4> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
    %future = fsdp.async.unshard @u <forward> over ["shard", "local"] %p : !fsdp.shard<24xf32, 4> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    %full = fsdp.async.wait %future : !fsdp.future<!fsdp.gathered<24xbf16>> -> !fsdp.gathered<24xbf16>
    %piece = fsdp.piece @u over ["local"] %full : !fsdp.gathered<24xbf16> -> !fsdp.shard<24xbf16, 2>
    fsdp.async.reshard %full : !fsdp.gathered<24xbf16>
    %later = fsdp.async.unshard @u <backward> over ["local"] %piece : !fsdp.shard<24xbf16, 2> -> !fsdp.future<!fsdp.gathered<24xbf16>>
    %again = fsdp.async.wait %later : !fsdp.future<!fsdp.gathered<24xbf16>> -> !fsdp.gathered<24xbf16>
    fsdp.async.reshard %again : !fsdp.gathered<24xbf16>
    return
  }
}

// -----

// One rank: no collective. The gathered unit is the shard, and the gradient is
// laid out where it stays.
// CHECK-LABEL: plan.module @plan
// CHECK-DAG: %[[SHARD:.*]] = plan.buffer shard @u : tensor<8xf32>
// CHECK-DAG: %[[W:.*]] = plan.view %[[SHARD]] at 0 : tensor<2x4xf32>
// CHECK-DAG: %[[GRAD:.*]] = plan.buffer gradient @u : tensor<8xf32>
// CHECK-DAG: %[[PLACE:.*]] = plan.view %[[GRAD]] at 0 : tensor<2x4xf32>
// CHECK: plan.program @step
// CHECK-NEXT: plan.launch "neg"(%[[W]]) -> %[[GW:.*]] <backward>
// CHECK-NEXT: plan.copy %[[GW]] to %[[PLACE]] <backward>
// CHECK-NEXT: }
module {
  fsdp.mesh @mesh ["shard" = 1]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 2x4 at 0], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 1> {fsdp.state = #fsdp.state<@u, parameter>})
      -> (!fsdp.shard<8xf32, 1> {fsdp.state = #fsdp.state<@u, gradient>}) attributes {aten.program} {
    %future = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 1> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %full = fsdp.async.wait %future : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    %w = fsdp.view %full[@u, "w"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
    %gw = aten.call "neg"(%w) {phase = #aten<phase backward>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %flat = fsdp.flatten_grads @u(%gw) : (tensor<2x4xf32>) -> tensor<8xf32>
    %reduced = fsdp.async.all_reduce @u over ["shard"] divide <pre = 1, post = 1> via f32 %flat : tensor<8xf32> -> !fsdp.future<!fsdp.shard<8xf32, 1>>
    %g = fsdp.async.wait %reduced : !fsdp.future<!fsdp.shard<8xf32, 1>> -> !fsdp.shard<8xf32, 1>
    return %g : !fsdp.shard<8xf32, 1>
  }
}

// -----

// A gather that waits until another's memory is given up: whoever has used that
// is ahead of it. Once is enough, and with one rank there is nothing to wait for.
// CHECK-LABEL: plan.module @plan
// CHECK: %[[FIRST:.*]] = plan.buffer transient : tensor<8xf32>
// CHECK: plan.buffer transient after %[[FIRST]] : tensor<8xf32>
// CHECK: plan.program @step
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0 frozen], numel = 8, padded = 8>
  fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["x" : 8 at 0 frozen], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                  %q: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@v, parameter>})
      -> (tensor<8xf32> {aten.output = 0 : i64}) attributes {aten.program} {
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    %w = fsdp.view %full[@u, "w"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
    %y = aten.call "neg"(%w) {phase = #aten<phase forward>} : (tensor<8xf32>) -> tensor<8xf32>
    %freed = fsdp.async.reshard %full : !fsdp.gathered<8xf32>
    %g = fsdp.async.unshard @v <forward> over ["shard"] %q after %freed, %freed : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %other = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    %x = fsdp.view %other[@v, "x"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
    %z = aten.call "mul.Tensor"(%x, %y) {phase = #aten<phase forward>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    fsdp.async.reshard %other : !fsdp.gathered<8xf32>
    return %z : tensor<8xf32>
  }
}

// -----

// CHECK-LABEL: plan.module @plan
// CHECK-NOT: after
// CHECK: plan.program @step
module {
  fsdp.mesh @mesh ["shard" = 1]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0 frozen], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 1> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 1> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    %freed = fsdp.async.reshard %full : !fsdp.gathered<8xf32>
    %g = fsdp.async.unshard @u <forward> over ["shard"] %p after %freed : !fsdp.shard<8xf32, 1> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %again = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    fsdp.async.reshard %again : !fsdp.gathered<8xf32>
    return
  }
}

// -----

// A bucket becomes a group: what prepares its gathers goes ahead of all of them.
// CHECK-LABEL: plan.module @plan
// CHECK: plan.program @step
// CHECK-NEXT: plan.copy %{{.*}} to %[[P:.*]] <forward> on gather
// CHECK-NEXT: plan.copy %{{.*}} to %[[Q:.*]] <forward> on gather
// CHECK-NEXT: plan.all_gather @shard_gather %[[P]] to %{{.*}} of @u group 5 <forward> on gather
// CHECK-NEXT: plan.all_gather @shard_gather %[[Q]] to %{{.*}} of @v group 5 <forward> on gather
// CHECK-NEXT: plan.record <forward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: }
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0 frozen], numel = 8, padded = 8>
  fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["x" : 8 at 0 frozen], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                  %q: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@v, parameter>}) attributes {aten.program} {
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 5 : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xbf16>>
    %g = fsdp.async.unshard @v <forward> over ["shard"] %q bucket 5 : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xbf16>>
    %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xbf16>> -> !fsdp.gathered<8xbf16>
    %other = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<8xbf16>> -> !fsdp.gathered<8xbf16>
    fsdp.async.reshard %full : !fsdp.gathered<8xbf16>
    fsdp.async.reshard %other : !fsdp.gathered<8xbf16>
    return
  }
}

// -----

// A copied bucket is one collective over one buffer. Shards are cast on the way in; each unit comes out at the first wait. Gradients go
// in piece by piece: the first rank's of all units, then the second's.
// CHECK-LABEL: plan.module @plan
// CHECK-DAG: %[[WHOLE:.*]] = plan.buffer transient : tensor<24xbf16>
// CHECK-DAG: %[[ROWS:.*]] = plan.view %[[WHOLE]] at 0 : tensor<2x12xbf16>
// CHECK-DAG: %[[GRADIENT:.*]] = plan.buffer gradient @u : tensor<4xf32>
// CHECK-DAG: %[[OTHER:.*]] = plan.buffer gradient @v : tensor<8xf32>
// CHECK: plan.program @step
// CHECK-NEXT: plan.launch "cat.out"([%{{.*}}, %{{.*}}], 0) -> %[[PIECES:.*]] <forward> on gather
// CHECK-NEXT: plan.all_gather @shard_gather %[[PIECES]] to %[[WHOLE]] <forward> on gather
// CHECK-NEXT: plan.record <forward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: plan.launch "split_with_sizes_copy.out"(%[[ROWS]], [4, 8], 1) -> %{{.*}}, %{{.*}} <forward>
// CHECK: plan.launch "cat.out"([%{{.*}}, %{{.*}}], 1) -> %{{.*}} <backward>
// CHECK-NEXT: plan.record <backward>
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %{{.*}} to %[[SUMS:[^ ]*]] <backward> on reduce
// CHECK-NEXT: plan.launch "split_with_sizes_copy.out"(%[[SUMS]], [4, 8], 0) -> %[[GRADIENT]], %[[OTHER]] <backward> on reduce
// The sum for one unit goes where it belongs.
// CHECK: plan.launch "cat.out"([%{{.*}}], 1) -> %{{.*}} <backward>
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %{{.*}} to %[[GRADIENT]] of @u <backward> on reduce
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>
  fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["x" : 16 at 0], numel = 16, padded = 16>
  func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                  %q: !fsdp.shard<16xf32, 2> {fsdp.state = #fsdp.state<@v, parameter>},
                  %a: tensor<8xbf16> {aten.input = 0 : i64}, %b: tensor<16xbf16> {aten.input = 1 : i64}) attributes {aten.program} {
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 5 copy : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xbf16>>
    %g = fsdp.async.unshard @v <forward> over ["shard"] %q bucket 5 copy : !fsdp.shard<16xf32, 2> -> !fsdp.future<!fsdp.gathered<16xbf16>>
    %other = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<16xbf16>> -> !fsdp.gathered<16xbf16>
    %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xbf16>> -> !fsdp.gathered<8xbf16>
    fsdp.async.reshard %full : !fsdp.gathered<8xbf16>
    fsdp.async.reshard %other : !fsdp.gathered<16xbf16>
    %x = fsdp.flatten_grads @u(%a) : (tensor<8xbf16>) -> tensor<8xbf16>
    %y = fsdp.flatten_grads @v(%b) : (tensor<16xbf16>) -> tensor<16xbf16>
    %r = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %x bucket 6 copy : tensor<8xbf16> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
    %s = fsdp.async.reduce_scatter @v over ["shard"] divide <pre = 2, post = 1> via f32 %y bucket 6 copy : tensor<16xbf16> -> !fsdp.future<!fsdp.shard<16xf32, 2>>
    %t = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %x copy : tensor<8xbf16> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
    fsdp.async.wait %r : !fsdp.future<!fsdp.shard<8xf32, 2>> -> !fsdp.shard<8xf32, 2>
    fsdp.async.wait %s : !fsdp.future<!fsdp.shard<16xf32, 2>> -> !fsdp.shard<16xf32, 2>
    fsdp.async.wait %t : !fsdp.future<!fsdp.shard<8xf32, 2>> -> !fsdp.shard<8xf32, 2>
    return
  }
}

// -----

// Results are taken at once: buffers that change places, and an output that is what a buffer was. A unit may be called like a communicator.
// CHECK-LABEL: plan.module @plan
// CHECK: plan.unit @shard_gather
// CHECK: %[[A:.*]] = plan.buffer model_buffer "a" : tensor<4xf32>
// CHECK: %[[B:.*]] = plan.buffer model_buffer "b" : tensor<4xf32>
// CHECK: plan.communicator @shard_gather_ axes
// CHECK: plan.program @step
// CHECK-NEXT: plan.all_gather @shard_gather_
// CHECK-NEXT: plan.record <forward> on gather
// CHECK-NEXT: plan.wait %{{.*}} <forward>
// CHECK-NEXT: plan.copy %[[B]] to %[[OLDB:.*]] <forward>
// CHECK-NEXT: plan.copy %[[A]] to %[[OLDA:.*]] <forward>
// CHECK-NEXT: plan.copy %[[A]] to %[[KEPT:.*]] <forward>
// CHECK-NEXT: plan.copy %[[OLDB]] to %[[A]] <forward>
// CHECK-NEXT: plan.copy %[[OLDA]] to %[[B]] <forward>
// CHECK-NEXT: plan.copy %[[KEPT]] to %{{.*}} <forward>
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @shard_gather on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@shard_gather, parameter>},
                  %a: tensor<4xf32> {aten.buffer = "a", aten.persistent}, %b: tensor<4xf32> {aten.buffer = "b", aten.persistent})
      -> (tensor<4xf32> {aten.buffer_mutation = "a"}, tensor<4xf32> {aten.buffer_mutation = "b"}, tensor<4xf32> {aten.output = 0 : i64}) attributes {aten.program} {
    %f = fsdp.async.unshard @shard_gather <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
    %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
    fsdp.async.reshard %full : !fsdp.gathered<8xf32>
    return %b, %a, %a : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// Sums are of one type: what is reduced in another than that of the shards is cast once its group is complete.
// CHECK-LABEL: plan.module @plan
// CHECK-DAG: %[[GRADIENT:.*]] = plan.buffer gradient @u : tensor<4xf32>
// CHECK-DAG: %[[OTHER:.*]] = plan.buffer gradient @v : tensor<8xf32>
// CHECK: plan.program @step
// CHECK: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via bf16 %{{.*}} to %[[SUM:.*]] of @u group 6 <backward> on reduce
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via bf16 %{{.*}} to %[[MORE:.*]] of @v group 6 <backward> on reduce
// CHECK-NEXT: plan.copy %[[SUM]] to %[[GRADIENT]] <backward> on reduce
// CHECK-NEXT: plan.record <backward> on reduce
// CHECK-NEXT: plan.copy %[[MORE]] to %[[OTHER]] <backward> on reduce
// CHECK: plan.launch "cat.out"([%{{.*}}, %{{.*}}], 1)
// CHECK-NEXT: plan.record <backward>
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via bf16 %{{.*}} to %{{.*}} <backward> on reduce
// CHECK-NEXT: plan.copy %{{.*}} to %[[GRADIENT]] <backward> on reduce
// CHECK-NEXT: plan.copy %{{.*}} to %[[OTHER]] <backward> on reduce
// CHECK: plan.launch "cat.out"([%{{.*}}], 1)
// CHECK-NEXT: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via bf16 %{{.*}} to %{{.*}} of @u <backward> on reduce
// CHECK-NEXT: plan.copy %{{.*}} to %[[GRADIENT]] <backward> on reduce
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce bf16 layout <["w" : 8 at 0], numel = 8, padded = 8>
  fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce bf16 layout <["x" : 16 at 0], numel = 16, padded = 16>
  func.func @step(%a: tensor<8xf32> {aten.input = 0 : i64}, %b: tensor<16xf32> {aten.input = 1 : i64}) attributes {aten.program} {
    %x = fsdp.flatten_grads @u(%a) : (tensor<8xf32>) -> tensor<8xbf16>
    %y = fsdp.flatten_grads @v(%b) : (tensor<16xf32>) -> tensor<16xbf16>
    %r = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via bf16 %x bucket 6 : tensor<8xbf16> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
    %s = fsdp.async.reduce_scatter @v over ["shard"] divide <pre = 2, post = 1> via bf16 %y bucket 6 : tensor<16xbf16> -> !fsdp.future<!fsdp.shard<16xf32, 2>>
    %g = fsdp.async.wait %r : !fsdp.future<!fsdp.shard<8xf32, 2>> -> !fsdp.shard<8xf32, 2>
    %z = aten.call "relu"(%a) {phase = #aten<phase backward>} : (tensor<8xf32>) -> tensor<8xf32>
    %t = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via bf16 %x bucket 7 copy : tensor<8xbf16> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
    %q = fsdp.async.reduce_scatter @v over ["shard"] divide <pre = 2, post = 1> via bf16 %y bucket 7 copy : tensor<16xbf16> -> !fsdp.future<!fsdp.shard<16xf32, 2>>
    %o = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via bf16 %x copy : tensor<8xbf16> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
    return
  }
}
