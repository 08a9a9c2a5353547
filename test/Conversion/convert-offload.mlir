// Host memory in the plan: pinned where a copy touches it, and scalars where they are read.
// covers: _offload_grad, H2D, CPUOffload
// RUN: fsdp-opt %S/../Dialect/FSDP/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-clip-gradients=clip-grad-norm=0.5 --fsdp-offload=offload=optimizer --fsdp-async --fsdp-apply-schedule --convert-fsdp-to-plan | FileCheck %s
// RUN: fsdp-opt %S/../Dialect/FSDP/Inputs/two_blocks.mlir --fsdp-shard="mesh=2x2 ranks=4 strategy=hybrid_shard reduce-dtype=bf16" --fsdp-insert-optimizer --fsdp-offload=offload=all --fsdp-async --fsdp-apply-schedule --convert-fsdp-to-plan | FileCheck %s --check-prefix=HYBRID
// RUN: fsdp-opt %S/../Dialect/FSDP/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-async --fsdp-apply-schedule --convert-fsdp-to-plan | FileCheck %s --check-prefix=NONE

// CHECK-DAG: %[[P:.*]] = plan.buffer shard @b.0 : tensor<4xf32>
// CHECK-DAG: %[[M:.*]] = plan.buffer optimizer_state @b.0 "exp_avg" in host : tensor<4xf32>
// CHECK-DAG: %[[HERE:.*]] = plan.buffer transient in pinned : tensor<4xf32>
// CHECK-DAG: %[[G:.*]] = plan.buffer gradient @b.0 in pinned : tensor<4xf32>
// The shard goes to the host while the gradient is reduced.
// CHECK: plan.copy %[[P]] to %[[HERE]] <update> on copy
// CHECK-NEXT: plan.record <update> on copy
// CHECK-NEXT: plan.wait %{{.*}} <backward> on reduce
// CHECK-NEXT: plan.reduce_scatter {{.*}} to %[[REDUCED:.*]] of @b.0 <backward> on reduce
// CHECK-NEXT: plan.wait %{{.*}} <backward> on copy
// CHECK-NEXT: plan.copy %[[REDUCED]] to %[[G]] <backward> on copy
// A measure is made where the gradient is, and reduced on the device; the factor goes back, once.
// CHECK: plan.measure squared_norm @b.1 {{.*}} to %[[NORM:.*]] <update>
// CHECK-NEXT: plan.copy %[[NORM]] to %[[SENT:.*]] <update>{{$}}
// CHECK-NEXT: plan.record <update>
// CHECK-NEXT: plan.wait %{{.*}} <update> on all_reduce
// CHECK-NEXT: plan.all_reduce {{.*}} via f64 %[[SENT]] to
// CHECK: plan.adamw @root {{.*}} clip %[[FACTOR:.*]] <update>
// CHECK-NOT: to %[[FACTOR]]
// CHECK: plan.adamw @b.0 {{.*}} %[[HERE]], %[[G]], %[[M]], {{.*}} clip %[[FACTOR]] <update>
// CHECK-NEXT: plan.record <update>
// CHECK-NEXT: plan.wait %{{.*}} <update> on copy
// CHECK-NEXT: plan.copy %[[HERE]] to %[[P]] <update> on copy

// Between two reductions the gradient is in memory of the device, in the reduce type; then it is cast, and then copied.
// HYBRID: plan.reduce_scatter {{.*}} via bf16 %{{.*}} to %[[PIECE:.*]] of @b.0
// HYBRID: plan.all_reduce {{.*}} via bf16 %[[PIECE]] to %[[SUM:.*]] of @b.0
// HYBRID-NEXT: plan.copy %[[SUM]] to %[[CAST:.*]] <backward> on all_reduce
// HYBRID-NEXT: plan.wait %{{.*}} <backward> on copy
// HYBRID-NEXT: plan.copy %[[CAST]] to %{{.*}} <backward> on copy

// NONE-NOT: {{pinned|on copy}}
