// States, updates and the elements that they touch.
// covers: _post_reduce_grad_callback, _post_backward_use_sharded_grad_views
// covers: frozen and trainable parameters in one unit
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer | FileCheck %s
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer="optimizer=sgd momentum" | FileCheck %s --check-prefix=SGD
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer=optimizer=sgd | FileCheck %s --check-prefix=PLAIN
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer=optimizer=none | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer | FileCheck %s --check-prefix=GAPS
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer="no-decay=^[bf]$" | FileCheck %s --check-prefix=GROUPS
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer="no-decay=^[bf]$" --remarks-filter=fsdp-insert-optimizer --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer="no-decay=dims<2" | FileCheck %s --check-prefix=ALL
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer="lr-groups=a;^[bc]$ no-decay=b" | FileCheck %s --check-prefix=RATES
// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-insert-optimizer="no-decay=^f$" 2>&1 | FileCheck %s --check-prefix=FROZEN

// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[P:[^ ]*]]: !fsdp.shard<20xf32, 4> {fsdp.state = #fsdp.state<@b.1, parameter>}
// CHECK-SAME: %[[HYPER:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 0 : i64}
// CHECK-SAME: %[[M:[^ ]*]]: !fsdp.shard<20xf32, 4> {fsdp.state = #fsdp.state<@b.1, exp_avg>},
// CHECK-SAME: %[[V:[^ ]*]]: !fsdp.shard<20xf32, 4> {fsdp.state = #fsdp.state<@b.1, exp_avg_sq>}
// Gradients stay results, and updates come in the order of the reductions.
// CHECK-SAME: -> (tensor<f32> {aten.loss}, {{.*}}#fsdp.state<@b.1, gradient>
// CHECK-SAME: #fsdp.state<@b.1, parameter>}, {{.*}}#fsdp.state<@b.1, exp_avg>}, {{.*}}#fsdp.state<@b.1, exp_avg_sq>}
// CHECK: %[[G:.*]] = fsdp.reduce_scatter @b.1
// CHECK: fsdp.adamw @root [0 to 4]
// The frozen bias lies at 16 to 20.
// CHECK-NEXT: %[[NEW:[a-z_0-9]*]], %{{.*}}, %{{.*}} = fsdp.adamw @b.1 [0 to 16] %[[P]], %[[G]], %[[M]], %[[V]], %[[HYPER]]
// CHECK-NEXT: fsdp.adamw @b.0 [0 to 16]
// CHECK-NEXT: return {{.*}} %[[NEW]],

// SGD: fsdp.sgd @b.1 [0 to 16] %{{.*}}, %{{.*}} momentum %{{.*}}, %{{.*}} : !fsdp.shard<20xf32, 4>, tensor<7xf64> -> !fsdp.shard<20xf32, 4>
// PLAIN-NOT: momentum
// PLAIN: fsdp.sgd @b.1 [0 to 16] %{{.*}}, %{{.*}}, %{{.*}} : !fsdp.shard<20xf32, 4>, tensor<7xf64>
// NONE-NOT: {{adamw|sgd|fsdp.hyper}}

// Padding between and after what trains are inside; frozen parameters are not.
// GAPS: layout <["a" : 3 at 0, "b" : 3 at 4, "f" : 3 at 8 frozen, "c" : 5 at 12], numel = 18, padded = 18>
// GAPS: fsdp.adamw @root [0 to 8, 12 to 18]

// Padding goes to the group before it, and the second update continues the first.
// GROUPS: %[[HYPER:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 0 : i64}, %[[OTHER:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 1 : i64, fsdp.no_decay}
// GROUPS: %[[P:[a-z_0-9]*]], %[[M:[a-z_0-9]*]], %[[V:[a-z_0-9]*]] = fsdp.adamw @root [0 to 4, 12 to 18] %{{.*}}, %[[G:.*]], %{{.*}}, %{{.*}}, %[[HYPER]] :
// GROUPS-NEXT: %[[NEW:[a-z_0-9]*]], %{{.*}}, %{{.*}} = fsdp.adamw @root [4 to 8] %[[P]], %[[G]], %[[M]], %[[V]], %[[OTHER]] :
// GROUPS-NEXT: return {{.*}} %[[NEW]],
// REMARK: no-decay | Category:fsdp-insert-optimizer | {{.*}} Elements=3, Parameters=1
// Two groups of learning rates, the second with decay and without.
// RATES: %[[A:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 2 : i64}, %[[C:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 4 : i64}, %[[B:[^ ]*]]: tensor<7xf64> {fsdp.hyper = 5 : i64, fsdp.no_decay}
// RATES: fsdp.adamw @root [0 to 4] {{.*}}, %[[A]] :
// RATES-NEXT: fsdp.adamw @root [12 to 18] {{.*}}, %[[C]] :
// RATES-NEXT: fsdp.adamw @root [4 to 8] {{.*}}, %[[B]] :
// ALL-NOT: fsdp.hyper = 0
// ALL: fsdp.adamw @root [0 to 8, 12 to 18]
// ALL-NOT: fsdp.adamw
// FROZEN: error: no-decay: expected '^f$' to match a parameter that trains, found none; there are 'a', 'b', 'c'

func.func @step(%a: tensor<3xf32> {aten.param = "a"}, %b: tensor<3xf32> {aten.param = "b"},
                %f: tensor<3xf32> {aten.param = "f"}, %c: tensor<5xf32> {aten.param = "c"})
    -> (tensor<f32> {aten.loss}, tensor<3xf32> {aten.grad_of = "a"}, tensor<3xf32> {aten.grad_of = "b"},
        tensor<5xf32> {aten.grad_of = "c"}) attributes {aten.program} {
  %loss = aten.call "sum"(%f) {phase = #aten<phase forward>} : (tensor<3xf32>) -> tensor<f32>
  %ga = aten.call "neg"(%a) {phase = #aten<phase backward>} : (tensor<3xf32>) -> tensor<3xf32>
  %gb = aten.call "neg"(%b) {phase = #aten<phase backward>} : (tensor<3xf32>) -> tensor<3xf32>
  %gc = aten.call "neg"(%c) {phase = #aten<phase backward>} : (tensor<5xf32>) -> tensor<5xf32>
  return %loss, %ga, %gb, %gc : tensor<f32>, tensor<3xf32>, tensor<3xf32>, tensor<5xf32>
}
