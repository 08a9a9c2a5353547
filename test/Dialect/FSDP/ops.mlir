// Every op of the dialect parses, prints and survives bytecode and generic form.
// covers: scalar parameters, FlatParamHandle, two-dimensional mesh
// RUN: fsdp-opt %s | FileCheck %s
// RUN: fsdp-opt %s --emit-bytecode | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --mlir-print-op-generic | fsdp-opt | FileCheck %s

// CHECK: fsdp.mesh @mesh ["replicate" = 1, "shard" = 4]
fsdp.mesh @mesh ["replicate" = 1, "shard" = 4]
// CHECK: fsdp.mesh @groups ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.mesh @groups ["replicate" = 1, "shard" = 2, "local" = 2]
// CHECK: fsdp.mesh @copies ["replicate" = 2, "shard" = 1]
fsdp.mesh @copies ["replicate" = 2, "shard" = 1]

// A parameter may be frozen, channels-last, tied, or a scalar.
// CHECK: fsdp.unit @h.0 on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
// CHECK-SAME: layout <["w" : 3x5 at 0 aliases ["v", "u"], "k" : 2x3x1x1 at 16 frozen strides [3, 1, 3, 3],
// CHECK-SAME: "s" : at 24], numel = 28, padded = 28> {reshard_after_forward}
fsdp.unit @h.0 on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["w" : 3x5 at 0 aliases ["v", "u"], "k" : 2x3x1x1 at 16 frozen strides [3, 1, 3, 3],
           "s" : at 24], numel = 28, padded = 28> {reshard_after_forward}
// CHECK: fsdp.unit @whole on @copies
// CHECK-SAME: {kept_after_backward}
fsdp.unit @whole on @copies shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["b" : 8 at 0], numel = 8, padded = 8> {kept_after_backward}

// CHECK: fsdp.unit @small on @groups
fsdp.unit @small on @groups shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32
  layout <["c" : 8 at 0], numel = 8, padded = 8> {reshard_after_forward}

// CHECK: func.func private @step() attributes {fsdp.source = @step.source}
func.func private @step.source() -> ()
func.func private @step() -> () attributes {fsdp.source = @step.source}

// CHECK-LABEL: func.func @logical
// CHECK-SAME: {fsdp.state = #fsdp.state<@h.0, parameter>}
// CHECK-SAME: {fsdp.state = #fsdp.state<@h.0, exp_avg>}
// CHECK-SAME: {fsdp.hyper = 0 : i64}
// CHECK-SAME: {fsdp.result = 0 : i64}
// CHECK-SAME: {fsdp.unit = "h.0"}
func.func @logical(%p: !fsdp.shard<28xf32, 4> {fsdp.state = #fsdp.state<@h.0, parameter>},
                   %m: !fsdp.shard<28xf32, 4> {fsdp.state = #fsdp.state<@h.0, exp_avg>},
                   %hyper: tensor<7xf64> {fsdp.hyper = 0 : i64},
                   %mask: tensor<4xf32> {fsdp.result = 0 : i64},
                   %gs: tensor<bf16> {fsdp.unit = "h.0"},
                   %gw: tensor<3x5xbf16, #aten.strided<[1, 3]>>,
                   %b: !fsdp.shard<8xf32, 1>,
                   %flatb: tensor<8xf32>, %loss: tensor<f32>)
    -> (!fsdp.shard<28xf32, 4> {fsdp.state = #fsdp.state<@h.0, parameter>})
 {
  // CHECK: %[[FULL:.*]] = fsdp.unshard @h.0 <forward> over ["shard"] %{{.*}} : !fsdp.shard<28xf32, 4> -> !fsdp.gathered<28xbf16>
  %full = fsdp.unshard @h.0 <forward> over ["shard"] %p : !fsdp.shard<28xf32, 4> -> !fsdp.gathered<28xbf16>
  // CHECK: fsdp.view %[[FULL]][@h.0, "w"] : !fsdp.gathered<28xbf16> -> tensor<3x5xbf16>
  %w = fsdp.view %full[@h.0, "w"] : !fsdp.gathered<28xbf16> -> tensor<3x5xbf16>
  // CHECK: fsdp.view %[[FULL]][@h.0, "k"] : !fsdp.gathered<28xbf16> -> tensor<2x3x1x1xbf16, #aten.strided<[3, 1, 3, 3]>>
  %k = fsdp.view %full[@h.0, "k"] : !fsdp.gathered<28xbf16> -> tensor<2x3x1x1xbf16, #aten.strided<[3, 1, 3, 3]>>
  // CHECK: %[[FLAT:.*]] = fsdp.flatten_grads @h.0(%{{.*}}, none, %{{.*}}) : (tensor<3x5xbf16, #aten.strided<[1, 3]>>, tensor<bf16>) -> tensor<28xbf16>
  %flat = fsdp.flatten_grads @h.0(%gw, none, %gs)
      : (tensor<3x5xbf16, #aten.strided<[1, 3]>>, tensor<bf16>) -> tensor<28xbf16>
  // CHECK: fsdp.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %[[FLAT]] : tensor<28xbf16> -> !fsdp.shard<28xf32, 4>
  %g = fsdp.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat
      : tensor<28xbf16> -> !fsdp.shard<28xf32, 4>
  // CHECK: fsdp.all_reduce @h.0 over ["replicate"] divide <pre = 1, post = 1.5> via f32 %{{.*}} : !fsdp.shard<28xf32, 4> -> !fsdp.shard<28xf32, 4>
  %g1 = fsdp.all_reduce @h.0 over ["replicate"] divide <pre = 1, post = 1.5> via f32 %g
      : !fsdp.shard<28xf32, 4> -> !fsdp.shard<28xf32, 4>
  // CHECK: fsdp.all_reduce @whole over ["replicate"] divide <pre = 2, post = 1> via f32 %{{.*}} : tensor<8xf32> -> !fsdp.shard<8xf32, 1>
  %gb = fsdp.all_reduce @whole over ["replicate"] divide <pre = 2, post = 1> via f32 %flatb
      : tensor<8xf32> -> !fsdp.shard<8xf32, 1>
  // CHECK: fsdp.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 4> via f32 %{{.*}} : tensor<f32> -> tensor<f32>
  %mean = fsdp.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 4> via f32 %loss
      : tensor<f32> -> tensor<f32>
  // CHECK: fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f32 max %{{.*}} : tensor<f32> -> tensor<f32>
  %largest = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f32 max %loss
      : tensor<f32> -> tensor<f32>
  // CHECK: fsdp.all_reduce on @mesh for buffer over ["shard"] divide <pre = 1, post = 1> via f32 first %{{.*}} : tensor<f32> -> tensor<f32>
  %first = fsdp.all_reduce on @mesh for buffer over ["shard"] divide <pre = 1, post = 1> via f32 first %loss
      : tensor<f32> -> tensor<f32>
  // CHECK: fsdp.adamw @h.0 [0 to 15, 24 to 28] %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} : !fsdp.shard<28xf32, 4>, tensor<7xf64>
  %p1, %m1, %v1 = fsdp.adamw @h.0 [0 to 15, 24 to 28] %p, %g1, %m, %m, %hyper
      : !fsdp.shard<28xf32, 4>, tensor<7xf64>
  // CHECK: %[[NORM:.*]] = fsdp.measure squared_norm @h.0 [0 to 15] %{{.*}} : !fsdp.shard<28xf32, 4>
  %norm = fsdp.measure squared_norm @h.0 [0 to 15] %g1 : !fsdp.shard<28xf32, 4>
  // CHECK: fsdp.measure found_inf @h.0 [0 to 15, 24 to 28] %{{.*}} : !fsdp.shard<28xf32, 4>
  %inf = fsdp.measure found_inf @h.0 [0 to 15, 24 to 28] %g1 : !fsdp.shard<28xf32, 4>
  // CHECK: %[[BOTH:.*]] = fsdp.measure squared_norm @whole [0 to 8] %{{.*}} initial %[[NORM]] : !fsdp.shard<8xf32, 1>
  %both = fsdp.measure squared_norm @whole [0 to 8] %gb initial %norm : !fsdp.shard<8xf32, 1>
  // CHECK: fsdp.measure abs_sum @whole [] %{{.*}} : !fsdp.shard<8xf32, 1>
  %sum = fsdp.measure abs_sum @whole [] %gb : !fsdp.shard<8xf32, 1>
  // CHECK: %[[FACTOR:.*]] = fsdp.clip_factor squared_norm max_norm 5.000000e-01(%[[NORM]], %[[BOTH]]){{ *$}}
  %factor = fsdp.clip_factor squared_norm max_norm 0.5 (%norm, %both)
  // CHECK: fsdp.clip_factor abs_max max_norm 1.000000e+00(%[[NORM]]) scale %[[FACTOR]]
  %other = fsdp.clip_factor abs_max max_norm 1.0 (%norm) scale %factor
  // CHECK: fsdp.scale @h.0 %{{.*}} by %{{.*}} : !fsdp.shard<28xf32, 4>
  %scaled = fsdp.scale @h.0 %g1 by %factor : !fsdp.shard<28xf32, 4>
  // CHECK: fsdp.adamw @h.0 [0 to 15] %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} clip %{{.*}} scale %{{.*}} found_inf %{{.*}} : !fsdp.shard<28xf32, 4>, tensor<7xf64>
  %p2, %m2, %v2 = fsdp.adamw @h.0 [0 to 15] %p1, %scaled, %m1, %v1, %hyper clip %factor scale %factor found_inf %other
      : !fsdp.shard<28xf32, 4>, tensor<7xf64>
  // CHECK: fsdp.sgd @whole [0 to 8] %{{.*}}, %{{.*}}, %{{.*}} : !fsdp.shard<8xf32, 1>, tensor<7xf64>{{ *$}}
  %b1 = fsdp.sgd @whole [0 to 8] %b, %gb, %hyper : !fsdp.shard<8xf32, 1>, tensor<7xf64>
  // CHECK: fsdp.sgd @whole [] %{{.*}}, %{{.*}} momentum %{{.*}}, %{{.*}} : !fsdp.shard<8xf32, 1>, tensor<7xf64> -> !fsdp.shard<8xf32, 1>
  %b2, %b3 = fsdp.sgd @whole [] %b, %gb momentum %b, %hyper
      : !fsdp.shard<8xf32, 1>, tensor<7xf64> -> !fsdp.shard<8xf32, 1>
  return %p1 : !fsdp.shard<28xf32, 4>
}

// A gather over all axes over which a unit is sharded, a piece over some of them, and the gather of that.
// CHECK-LABEL: func.func @pieces
func.func @pieces(%p: !fsdp.shard<8xf32, 4> {fsdp.state = #fsdp.state<@small, parameter>}) {
  // CHECK: %[[FULL:.*]] = fsdp.unshard @small <forward> over ["shard", "local"] %{{.*}} : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xbf16>
  %full = fsdp.unshard @small <forward> over ["shard", "local"] %p : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xbf16>
  // CHECK: %[[PIECE:.*]] = fsdp.piece @small over ["local"] %[[FULL]] : !fsdp.gathered<8xbf16> -> !fsdp.shard<8xbf16, 2>
  %piece = fsdp.piece @small over ["local"] %full : !fsdp.gathered<8xbf16> -> !fsdp.shard<8xbf16, 2>
  // CHECK: fsdp.unshard @small <backward> over ["local"] %[[PIECE]] : !fsdp.shard<8xbf16, 2> -> !fsdp.gathered<8xbf16>
  %again = fsdp.unshard @small <backward> over ["local"] %piece : !fsdp.shard<8xbf16, 2> -> !fsdp.gathered<8xbf16>
  // CHECK: fsdp.async.unshard @small <backward> over ["local"] %[[PIECE]] bucket 0 : !fsdp.shard<8xbf16, 2> -> !fsdp.future<!fsdp.gathered<8xbf16>>
  %f = fsdp.async.unshard @small <backward> over ["local"] %piece bucket 0
      : !fsdp.shard<8xbf16, 2> -> !fsdp.future<!fsdp.gathered<8xbf16>>
  return
}

// CHECK-LABEL: func.func @scheduled
func.func @scheduled(%p: !fsdp.shard<28xf32, 4>, %flat: tensor<28xbf16>, %loss: tensor<f32>) {
  // CHECK: %[[F:.*]] = fsdp.async.unshard @h.0 <backward> over ["shard"] %{{.*}} : !fsdp.shard<28xf32, 4> -> !fsdp.future<!fsdp.gathered<28xbf16>>
  %f = fsdp.async.unshard @h.0 <backward> over ["shard"] %p : !fsdp.shard<28xf32, 4> -> !fsdp.future<!fsdp.gathered<28xbf16>>
  // CHECK: %[[FULL:.*]] = fsdp.async.wait %[[F]] : !fsdp.future<!fsdp.gathered<28xbf16>> -> !fsdp.gathered<28xbf16>
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<28xbf16>> -> !fsdp.gathered<28xbf16>
  // CHECK: %[[FREED:.*]] = fsdp.async.reshard %[[FULL]] : !fsdp.gathered<28xbf16>
  %freed = fsdp.async.reshard %full : !fsdp.gathered<28xbf16>
  // CHECK: fsdp.async.unshard @h.0 <backward> over ["shard"] %{{.*}} after %[[FREED]], %[[FREED]] : !fsdp.shard<28xf32, 4>
  %f1 = fsdp.async.unshard @h.0 <backward> over ["shard"] %p after %freed, %freed : !fsdp.shard<28xf32, 4> -> !fsdp.future<!fsdp.gathered<28xbf16>>
  // CHECK: fsdp.async.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %{{.*}} : tensor<28xbf16> -> !fsdp.future<!fsdp.shard<28xf32, 4>>
  %r = fsdp.async.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat
      : tensor<28xbf16> -> !fsdp.future<!fsdp.shard<28xf32, 4>>
  // CHECK: fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 4> via f32 %{{.*}} : tensor<f32> -> !fsdp.future<tensor<f32>>
  %l = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 4> via f32 %loss
      : tensor<f32> -> !fsdp.future<tensor<f32>>
  // CHECK: fsdp.async.unshard @h.0 <forward> over ["shard"] %{{.*}} bucket 0 after %[[FREED]] : !fsdp.shard<28xf32, 4>
  %f2 = fsdp.async.unshard @h.0 <forward> over ["shard"] %p bucket 0 after %freed : !fsdp.shard<28xf32, 4> -> !fsdp.future<!fsdp.gathered<28xbf16>>
  // CHECK: fsdp.async.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %{{.*}} bucket 1 : tensor<28xbf16>
  %r1 = fsdp.async.reduce_scatter @h.0 over ["shard"] divide <pre = 2, post = 2> via f32 %flat bucket 1
      : tensor<28xbf16> -> !fsdp.future<!fsdp.shard<28xf32, 4>>
  // CHECK: fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 4> via f32 %{{.*}} bucket 2 : tensor<f32>
  %l1 = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 4> via f32 %loss bucket 2
      : tensor<f32> -> !fsdp.future<tensor<f32>>
  %g = fsdp.async.wait %r : !fsdp.future<!fsdp.shard<28xf32, 4>> -> !fsdp.shard<28xf32, 4>
  %mean = fsdp.async.wait %l : !fsdp.future<tensor<f32>> -> tensor<f32>
  return
}
