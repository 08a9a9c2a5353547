// Structure says the strategy: which gathers, which reductions, on which mesh.
// covers: _post_backward_hook, _register_pre_forward_hook
// covers: register_multi_grad_hook, one-dimensional mesh
// covers: HandleShardingStrategy
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 | FileCheck %s
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --cse --canonicalize --fsdp-verify-logical | FileCheck %s --check-prefix=CSE
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard="ranks=3 strategy=shard_grad_op storage-dtype=f64" | FileCheck %s --check-prefix=ZERO2
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard="ranks=4 strategy=no_shard reduce-dtype=f64" | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=1 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --remarks-filter=fsdp-shard --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// CHECK: fsdp.mesh @mesh ["replicate" = 1, "shard" = 4]
// CHECK: fsdp.unit @root on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["scale" : 4 at 0], numel = 4, padded = 4> {root}{{$}}
// CHECK: fsdp.unit @b.0 on @mesh {{.*}} layout <["b.0.w" : 4x4 at 0], numel = 16, padded = 16> {reshard_after_forward}
// A frozen parameter has its place, but no gradient.
// CHECK: fsdp.unit @b.1 on @mesh {{.*}} layout <["b.1.w" : 4x4 at 0, "b.1.bias" : 4 at 16 frozen], numel = 20, padded = 20> {reshard_after_forward}

// CHECK-LABEL: func.func @step
// CHECK-SAME: (%[[ROOT:.*]]: !fsdp.shard<4xf32, 4> {fsdp.state = #fsdp.state<@root, parameter>},
// CHECK-SAME: %[[B0:.*]]: !fsdp.shard<16xf32, 4> {fsdp.state = #fsdp.state<@b.0, parameter>},
// CHECK-SAME: %[[B1:.*]]: !fsdp.shard<20xf32, 4> {fsdp.state = #fsdp.state<@b.1, parameter>},
// CHECK-SAME: %[[X:.*]]: tensor<2x4xf32> {aten.input = 0 : i64})
// CHECK-SAME: -> (tensor<f32> {aten.loss}, !fsdp.shard<4xf32, 4> {fsdp.state = #fsdp.state<@root, gradient>},
// CHECK-SAME: !fsdp.shard<16xf32, 4> {fsdp.state = #fsdp.state<@b.0, gradient>},
// CHECK-SAME: !fsdp.shard<20xf32, 4> {fsdp.state = #fsdp.state<@b.1, gradient>}) attributes {aten.program, fsdp.source = @step.source} {
// CHECK: %[[F0:.*]] = fsdp.unshard @b.0 <forward> over ["shard"] %[[B0]]
// CHECK-NEXT: %[[V:.*]] = fsdp.view %[[F0]][@b.0, "b.0.w"]
// CHECK-NEXT: %[[T:.*]] = aten.call "t"(%[[V]]) {phase = #aten<phase forward>}
// CHECK-NEXT: aten.call "mm"(%[[X]], %[[T]])
// CHECK-NEXT: %[[F1:.*]] = fsdp.unshard @b.1 <forward> over ["shard"] %[[B1]]
// CHECK: fsdp.view %[[F1]][@b.1, "b.1.bias"]
// CHECK: %[[FR:.*]] = fsdp.unshard @root <forward> over ["shard"] %[[ROOT]]
// CHECK: %[[LOSS:.*]] = aten.call "sum"
// CHECK-NEXT: %[[MEAN:.*]] = fsdp.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 4> via f32 %[[LOSS]]

// A reduction follows its unit's last gradient; the root is not gathered anew.
// CHECK: %[[GR:.*]] = aten.call "sum.dim_IntList"
// CHECK-NEXT: %[[FLATR:.*]] = fsdp.flatten_grads @root(%[[GR]])
// CHECK-NEXT: %[[RR:.*]] = fsdp.reduce_scatter @root over ["shard"] divide <pre = 2, post = 2> via f32 %[[FLATR]]
// CHECK: fsdp.view %[[FR]][@root, "scale"]
// CHECK: %[[G1:.*]] = aten.call "clone"
// CHECK-NEXT: %[[FLAT1:.*]] = fsdp.flatten_grads @b.1(%[[G1]], none)
// CHECK-NEXT: %[[R1:.*]] = fsdp.reduce_scatter @b.1 {{.*}} %[[FLAT1]]

// What the forward saved is a view of a parameter: it is made anew.
// CHECK-NEXT: %[[A1:.*]] = fsdp.unshard @b.1 <backward> over ["shard"] %[[B1]]
// CHECK-NEXT: %[[W1:.*]] = fsdp.view %[[A1]][@b.1, "b.1.w"]
// CHECK-NEXT: %[[T1:.*]] = aten.call "t"(%[[W1]]) {phase = #aten<phase backward>}
// CHECK-NEXT: aten.call "t"(%[[T1]]) {phase = #aten<phase backward>}
// b.0 is used in the forward alone: its gradient needs the input only.
// CHECK-NOT: fsdp.unshard
// CHECK: %[[R0:.*]] = fsdp.reduce_scatter @b.0
// CHECK-NEXT: return %[[MEAN]], %[[RR]], %[[R0]], %[[R1]]

// CHECK-LABEL: func.func private @step.source
// CHECK-SAME: aten.param = "scale"
// CHECK-NEXT: aten.call
// CHECK-NOT: fsdp.
// CHECK: return

// CSE does not merge the gathers of two phases.
// CSE-COUNT-2: fsdp.unshard @b.1
// CSE-NOT: fsdp.unshard

// One gather for all, and shards of 3 ranks: padded, and wide.
// ZERO2: fsdp.mesh @mesh ["replicate" = 1, "shard" = 3]
// ZERO2: fsdp.unit @b.0 on @mesh shard ["shard"] replicate ["replicate"] storage f64 reduce f32 layout <["b.0.w" : 4x4 at 0], numel = 18, padded = 18>{{$}}
// ZERO2-COUNT-3: fsdp.unshard @{{.*}} <forward>
// ZERO2-NOT: fsdp.unshard
// ZERO2: fsdp.reduce_scatter @b.0 over ["shard"] divide <pre = 2, post = 1.5> via f32 %{{.*}} : tensor<18xf32> -> !fsdp.shard<18xf64, 3>

// Each rank has everything.
// NONE: fsdp.mesh @mesh ["replicate" = 4, "shard" = 1]
// NONE: fsdp.unit @b.0 on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f64
// NONE-COUNT-3: fsdp.unshard @{{.*}} <forward> over ["shard"] %{{.*}} : !fsdp.shard<{{.*}}, 1>
// NONE-NOT: {{fsdp.unshard|reduce_scatter}}
// NONE: fsdp.all_reduce @b.0 over ["replicate"] divide <pre = 2, post = 2> via f64 %{{.*}} : tensor<16xf64> -> !fsdp.shard<16xf32, 1>

// ONE: warning: one rank has nothing to shard: using 'no_shard'
// ONE: fsdp.mesh @mesh ["replicate" = 1, "shard" = 1]
// ONE: fsdp.all_reduce @b.0 over ["replicate"] divide <pre = 1, post = 1>

// REMARK-DAG: dropped | Category:fsdp-shard | Function=step | Reason="the step returns its loss, gradients and state", Result=4
// REMARK-DAG: unit | Category:fsdp-shard | Function=step | Elements=20, ElementsPerRank=5, Parameters=2, Unit=b.1
