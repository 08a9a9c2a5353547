// RUN: fsdp-opt %s --convert-fsdp-to-plan --split-input-file --verify-diagnostics | FileCheck %s

// What an update takes has a place: the hyper-parameters one of the caller's for
// each decay group, a scaled gradient that of the gradient.
// CHECK-LABEL: plan.module
// CHECK-DAG: %[[P:.*]] = plan.buffer shard @u : tensor<12xf32>
// CHECK-DAG: %[[G:.*]] = plan.buffer gradient @u : tensor<12xf32>
// CHECK-DAG: %[[ONE:.*]] = plan.buffer hyper number 0 in host : tensor<7xf64>
// CHECK-DAG: %[[OTHER:.*]] = plan.buffer hyper number 3 in host : tensor<7xf64>
// CHECK: plan.reduce_scatter {{.*}} to %[[G]] of @u <backward> on reduce
// CHECK-NEXT: plan.record <backward> on reduce
// CHECK-NEXT: plan.wait %{{.*}} <update>
// CHECK-NEXT: plan.measure squared_norm @u [0, 15] %[[G]] to %[[NORM:.*]] <update>
// CHECK-NEXT: plan.measure squared_norm @u [16, 23] %[[G]] initial %[[NORM]] to %[[BOTH:.*]] <update>
// CHECK-NEXT: plan.launch "add.Tensor"(%[[NORM]], %[[BOTH]]) -> %[[SUM:.*]] <update>
// CHECK-NEXT: plan.launch "sqrt"(%[[SUM]]) -> %[[ROOT:.*]] <update>
// CHECK-NEXT: plan.launch "div.Tensor"(%[[ROOT]], %[[SCALE:.*]]) -> %[[OWN:.*]] <update>
// CHECK-NEXT: plan.launch "add.Scalar"(%[[OWN]], 1.0e-06) -> %[[MORE:.*]] <update>
// CHECK-NEXT: plan.launch "reciprocal"(%[[MORE]]) -> %[[INVERSE:.*]] <update>
// CHECK-NEXT: plan.launch "mul.Scalar"(%[[INVERSE]], 0.5) -> %[[RATIO:.*]] <update>
// CHECK-NEXT: plan.launch "clamp_max"(%[[RATIO]], 1) -> %[[WIDE:.*]] <update>
// CHECK-NEXT: plan.copy %[[WIDE]] to %[[FACTOR:.*]] <update>
// CHECK-NEXT: plan.launch "mul.out"(%[[G]], %[[FACTOR]]) -> %[[G]] <update>
// CHECK-NEXT: plan.sgd @u [0, 15] %[[P]], %[[G]], %[[ONE]] clip %[[FACTOR]] found_inf %[[SCALE]] <update>
// CHECK-NEXT: plan.sgd @u [16, 23] %[[P]], %[[G]], %[[OTHER]] scale %[[SCALE]] <update>
// CHECK-NEXT: }
!shard = !fsdp.shard<24xf32, 2>
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
  func.func @step(%p: !shard {fsdp.state = #fsdp.state<@u, parameter>}, %flat: tensor<24xf32> {aten.input = 0 : i64},
                  %scale: tensor<f32> {aten.input = 1 : i64}, %one: tensor<7xf64> {fsdp.hyper = 0 : i64}, %other: tensor<7xf64> {fsdp.hyper = 3 : i64})
      -> (!shard {fsdp.state = #fsdp.state<@u, gradient>}, !shard {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
    %future = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %flat : tensor<24xf32> -> !fsdp.future<!shard>
    %g = fsdp.async.wait %future : !fsdp.future<!shard> -> !shard
    %norm = fsdp.measure squared_norm @u [0 to 15] %g : !shard
    %both = fsdp.measure squared_norm @u [16 to 23] %g initial %norm : !shard
    %factor = fsdp.clip_factor squared_norm max_norm 0.5 (%norm, %both) scale %scale
    %scaled = fsdp.scale @u %g by %factor : !shard
    %p1 = fsdp.sgd @u [0 to 15] %p, %scaled, %one clip %factor found_inf %scale : !shard, tensor<7xf64>
    %p2 = fsdp.sgd @u [16 to 23] %p1, %scaled, %other scale %scale : !shard, tensor<7xf64>
    return %g, %p2 : !shard, !shard
  }
}

// -----

// In its place, nobody finds the gradient that it was.
!shard = !fsdp.shard<24xf32, 2>
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
  func.func @step(%g: !shard {fsdp.state = #fsdp.state<@u, parameter>}, %x: tensor<f32> {aten.input = 0 : i64}) attributes {aten.program} {
    // expected-error@+1 {{expected no use of a gradient after it has been scaled, in its place; found one}}
    %scaled = fsdp.scale @u %g by %x : !shard
    // expected-note@+1 {{used here}}
    %again = fsdp.measure squared_norm @u [0 to 15] %g : !shard
    return
  }
}

// -----

// They are the caller's.
!shard = !fsdp.shard<24xf32, 2>
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
  func.func @step(%p: !shard {fsdp.state = #fsdp.state<@u, parameter>}) -> (!shard {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
    %hyper = aten.call "ones"([7]) : () -> tensor<7xf64>
    // expected-error@+1 {{expected hyper-parameters that the caller sets, found values that are computed}}
    %new = fsdp.sgd @u [0 to 15] %p, %p, %hyper : !shard, tensor<7xf64>
    return %new : !shard
  }
}

// -----

// A norm is of the update also where a gradient is reduced after its measure: the
// backward alone does not know it.
// CHECK-LABEL: plan.module
// CHECK: plan.measure squared_norm @u {{.*}} <update>
// CHECK: plan.all_reduce {{.*}} of @v <backward> on all_reduce
// CHECK: plan.all_reduce {{.*}} for norm <update> on all_reduce
!shard = !fsdp.shard<24xf32, 2>
!whole = !fsdp.shard<8xf32, 1>
module {
  fsdp.mesh @mesh ["shard" = 2]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
  fsdp.unit @v on @mesh shard [] replicate ["shard"] storage f32 reduce f32
      layout <["c" : 8 at 0], numel = 8, padded = 8>
  func.func @step(%flat: tensor<24xf32> {aten.input = 0 : i64}, %other: tensor<8xf32> {aten.input = 1 : i64})
      -> (!shard {fsdp.state = #fsdp.state<@u, gradient>}, !whole {fsdp.state = #fsdp.state<@v, gradient>}) attributes {aten.program} {
    %future = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %flat : tensor<24xf32> -> !fsdp.future<!shard>
    %g = fsdp.async.wait %future : !fsdp.future<!shard> -> !shard
    %own = fsdp.measure squared_norm @u [0 to 15] %g : !shard
    %late = fsdp.async.all_reduce @v over ["shard"] divide <pre = 2, post = 1> via f32 %other : tensor<8xf32> -> !fsdp.future<!whole>
    %sum = fsdp.async.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 %own : tensor<f64> -> !fsdp.future<tensor<f64>>
    %h = fsdp.async.wait %late : !fsdp.future<!whole> -> !whole
    %norm = fsdp.async.wait %sum : !fsdp.future<tensor<f64>> -> tensor<f64>
    return %g, %h : !shard, !whole
  }
}
