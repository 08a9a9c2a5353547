// RUN: fsdp-opt %s | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --mlir-print-op-generic | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --emit-bytecode | fsdp-opt | FileCheck %s

// Every operation once, in its own syntax, the generic one and as bytecode.
// CHECK-LABEL: plan.module @all
// CHECK-SAME: mesh ["replicate" = 2, "shard" = 2] device cpu strategy full_shard
plan.module @all mesh ["replicate" = 2, "shard" = 2] device cpu strategy full_shard
    attributes {notes = ["parameters are in the archive's order"], token_rows = 128 : i64} {
  // CHECK: plan.communicator @shard_gather axes [1] on gather
  // CHECK: plan.communicator @shard_reduce axes [1] on reduce
  plan.communicator @shard_gather axes [1] on gather
  plan.communicator @shard_reduce axes [1] on reduce
  plan.communicator @all_all_reduce axes [0, 1] on all_reduce
  // CHECK: plan.unit @h.0 shard [1] replicate [0] storage f32 reduce f32 layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>
  plan.unit @h.0 shard [1] replicate [0] storage f32 reduce f32
      layout <["w" : 3x5 at 0, "b" : 7 at 16], numel = 23, padded = 24>

  // CHECK: %[[SHARD:.*]] = plan.buffer shard @h.0 at 0 : tensor<12xf32>
  %shard = plan.buffer shard @h.0 at 0 : tensor<12xf32>
  // CHECK: %[[M:.*]] = plan.buffer optimizer_state @h.0 "exp_avg" : tensor<12xf32>
  %m = plan.buffer optimizer_state @h.0 "exp_avg" : tensor<12xf32>
  %v = plan.buffer optimizer_state @h.0 "exp_avg_sq" : tensor<12xf32>
  %g = plan.buffer gradient @h.0 : tensor<12xf32>
  // CHECK: %[[HYPER:.*]] = plan.buffer hyper number 0 in host : tensor<7xf64>
  %hyper = plan.buffer hyper number 0 in host : tensor<7xf64>
  // CHECK: %[[N:.*]] = plan.buffer transient : tensor<f32>
  %n = plan.buffer transient : tensor<f32>
  %wide = plan.buffer transient : tensor<f64>
  %more = plan.buffer transient : tensor<f64>
  // CHECK: plan.buffer model_buffer "running_mean" : tensor<4xf32>
  %mean = plan.buffer model_buffer "running_mean" : tensor<4xf32>
  // CHECK: plan.buffer constant value dense<1> : tensor<4xi64> : tensor<4xi64>
  %ones = plan.buffer constant value dense<1> : tensor<4xi64> : tensor<4xi64>
  // CHECK: plan.buffer input @step number 0 : tensor<2x4xi64>
  %in = plan.buffer input @step number 0 : tensor<2x4xi64>
  // CHECK: plan.buffer output @step number 0 : tensor<2x4xi64>
  %out = plan.buffer output @step number 0 : tensor<2x4xi64>
  %loss = plan.buffer loss @step : tensor<f32>
  // CHECK: plan.buffer result in host : tensor<4xf32>
  %table = plan.buffer result in host : tensor<4xf32>
  // CHECK: %[[CAST:.*]] = plan.buffer transient at 64 : tensor<12xbf16>
  %cast = plan.buffer transient at 64 : tensor<12xbf16>
  // CHECK: %[[FULL:.*]] = plan.buffer transient at 128 after %[[CAST]] : tensor<24xbf16>
  %full = plan.buffer transient at 128 after %cast : tensor<24xbf16>
  // CHECK: %[[W:.*]] = plan.view %[[FULL]] at 0 : tensor<5x3xbf16, #aten.strided<[1, 5]>>
  %w = plan.view %full at 0 : tensor<5x3xbf16, #aten.strided<[1, 5]>>
  %b = plan.view %full at 32 : tensor<7xbf16>
  %x = plan.buffer transient : tensor<4x5xbf16>
  %y = plan.buffer transient : tensor<4x3xbf16>
  %flat = plan.buffer transient : tensor<24xf32>

  // CHECK: plan.program @init
  plan.program @init init {
    // CHECK: plan.launch "cos"(%{{.*}}) -> %{{.*}} <init>
    plan.launch "cos"(%mean) -> %table <init>
  }
  // CHECK: plan.program @step attributes {prediction = #plan.prediction<time = 24, exposed = 6, flops = 800, peak = 100>}
  plan.program @step attributes {prediction = #plan.prediction<time = 24, exposed = 6, flops = 800, peak = 100>} {
    // CHECK: plan.copy %[[SHARD]] to %[[CAST]] <forward> on gather
    plan.copy %shard to %cast <forward> on gather
    // CHECK: plan.all_gather @shard_gather %[[CAST]] to %[[FULL]] of @h.0 <forward> on gather
    plan.all_gather @shard_gather %cast to %full of @h.0 <forward> on gather
    // CHECK: plan.all_gather @shard_gather %[[CAST]] to %[[FULL]] of @h.0 group 0 <forward> on gather
    plan.all_gather @shard_gather %cast to %full of @h.0 group 0 <forward> on gather
    // CHECK: plan.piece @shard_gather %[[FULL]] to %{{.*}} of @h.0 <forward>
    plan.piece @shard_gather %full to %cast of @h.0 <forward>
    // CHECK: %[[EVENT:.*]] = plan.record <forward> on gather
    %event = plan.record <forward> on gather
    // CHECK: plan.wait %[[EVENT]] <forward>
    plan.wait %event <forward>
    // CHECK: plan.launch "mm.out"(%{{.*}}, %[[W]]) -> %{{.*}} <forward> {scope = "m.h.0"}
    plan.launch "mm.out"(%x, %w) -> %y <forward> {scope = "m.h.0"}
    // CHECK: plan.launch "max.dim"(%{{.*}}, 1, keepdim = false) -> none, %{{.*}} <backward>
    plan.launch "max.dim"(%in, 1, keepdim = false) -> none, %out <backward>
    // CHECK: plan.launch "index_put.out"(%{{.*}}, [none, %{{.*}}], %{{.*}}, false) <backward>
    plan.launch "index_put.out"(%x, [none, %in], %y, false) <backward>
    // CHECK: plan.zero %{{.*}} <backward>
    plan.zero %b <backward>
    // CHECK: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 2> via f32 %{{.*}} to %{{.*}} of @h.0 <backward> on reduce
    plan.reduce_scatter @shard_reduce divide <pre = 2, post = 2> via f32 %flat to %g of @h.0 <backward> on reduce
    // CHECK: plan.reduce_scatter @shard_reduce divide <pre = 2, post = 2> via f32 %{{.*}} to %{{.*}} group 1 <backward> on reduce
    plan.reduce_scatter @shard_reduce divide <pre = 2, post = 2> via f32 %flat to %g group 1 <backward> on reduce
    // CHECK: plan.all_reduce @all_all_reduce divide <pre = 1, post = 4> via f32 %{{.*}} to %{{.*}} for loss <forward> on all_reduce
    plan.all_reduce @all_all_reduce divide <pre = 1, post = 4> via f32 %loss to %loss for loss <forward> on all_reduce
    // CHECK: plan.adamw @h.0 [0, 24] %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[HYPER]] <update>
    plan.adamw @h.0 [0, 24] %shard, %g, %m, %v, %hyper <update>
    // CHECK: plan.adamw @h.0 [0, 24] %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[HYPER]] clip %[[N]] scale %[[N]] found_inf %[[N]] <update>
    plan.adamw @h.0 [0, 24] %shard, %g, %m, %v, %hyper clip %n scale %n found_inf %n <update>
    // CHECK: plan.sgd @h.0 [0, 15] %{{.*}}, %{{.*}} momentum %{{.*}}, %[[HYPER]] <update>
    plan.sgd @h.0 [0, 15] %shard, %g momentum %m, %hyper <update>
    // CHECK: plan.sgd @h.0 [0, 15] %{{.*}}, %{{.*}}, %[[HYPER]] found_inf %[[N]] <update>
    plan.sgd @h.0 [0, 15] %shard, %g, %hyper found_inf %n <update>
    // CHECK: plan.measure squared_norm @h.0 [0, 24] %{{.*}} to %[[WIDE:.*]] <update>
    plan.measure squared_norm @h.0 [0, 24] %g to %wide <update>
    // CHECK: plan.measure abs_max @h.0 [0, 15] %{{.*}} initial %[[WIDE]] to %[[MORE:.*]] <update>
    plan.measure abs_max @h.0 [0, 15] %g initial %wide to %more <update>
    // CHECK: plan.all_reduce @all_all_reduce divide <pre = 1, post = 1> via f64 max %[[MORE]] to %[[MORE]] for norm <update> on all_reduce
    plan.all_reduce @all_all_reduce divide <pre = 1, post = 1> via f64 max %more to %more for norm <update> on all_reduce
    // CHECK: plan.all_reduce @all_all_reduce divide <pre = 1, post = 1> via f64 first %[[MORE]] to %[[MORE]] for buffer <forward> on all_reduce
    plan.all_reduce @all_all_reduce divide <pre = 1, post = 1> via f64 first %more to %more for buffer <forward> on all_reduce
  }
}
