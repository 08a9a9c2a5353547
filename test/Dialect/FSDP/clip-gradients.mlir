// Measures of all units, one reduction for each set of axes, and one factor for all updates.
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-clip-gradients=clip-grad-norm=0.5 -o %t
// RUN: FileCheck %s < %t
// RUN: fsdp-opt %t --fsdp-verify-logical --fsdp-verify-equivalence --fsdp-async --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence -o /dev/null
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer=optimizer=sgd --fsdp-clip-gradients=clip-grad-norm=2:inf | FileCheck %s --check-prefix=MAX
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard="ranks=4 strategy=no_shard" --fsdp-insert-optimizer --fsdp-clip-gradients=clip-grad-norm=0.5:1 | FileCheck %s --check-prefix=WHOLE
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer=optimizer=none --fsdp-clip-gradients=clip-grad-norm=0.5 | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-clip-gradients=clip-grad-norm=0.5 --remarks-filter=fsdp-clip-gradients --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: not fsdp-opt %t --fsdp-clip-gradients=clip-grad-norm=0.5 2>&1 | FileCheck %s --check-prefix=TWICE

// In the order of units, whatever that of the updates is. The frozen bias of b.1 lies at 16 to 20.
// CHECK: func.func @step{{.*}} attributes {aten.program, fsdp.clip_grad_norm = array<f64: 5.000000e-01, 2.000000e+00>
// CHECK: %[[A:.*]] = fsdp.measure squared_norm @[[FIRST:[a-z.0-9]*]] [0 to {{[0-9]*}}] %{{.*}} : !fsdp.shard
// CHECK-NEXT: %[[B:.*]] = fsdp.measure squared_norm @{{[a-z.0-9]*}} [0 to {{[0-9]*}}] %{{.*}} initial %[[A]] : !fsdp.shard
// CHECK-NEXT: %[[C:.*]] = fsdp.measure squared_norm @{{[a-z.0-9]*}} [0 to {{[0-9]*}}] %{{.*}} initial %[[B]] : !fsdp.shard
// CHECK-NEXT: %[[SUM:.*]] = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 %[[C]] : tensor<f64> -> tensor<f64>
// CHECK-NEXT: %[[FACTOR:.*]] = fsdp.clip_factor squared_norm max_norm 5.000000e-01(%[[SUM]])
// CHECK-COUNT-3: fsdp.adamw {{.*}} clip %[[FACTOR]] :

// MAX: fsdp.clip_grad_norm = array<f64: 2.000000e+00, 0x7FF0000000000000>
// MAX-COUNT-3: fsdp.measure abs_max
// MAX: fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 max
// MAX: fsdp.clip_factor abs_max max_norm 2.0

// Every rank has the whole: nothing is reduced.
// WHOLE-COUNT-3: fsdp.measure abs_sum
// WHOLE-NOT: for norm
// WHOLE: fsdp.clip_factor abs_sum

// NONE-NOT: {{fsdp.measure|clip_grad_norm}}
// REMARK: clip | Category:fsdp-clip-gradients | Function=step | Elements=36, Reductions=1, Units=3
// TWICE: error: expected an update of a gradient that is not clipped, and scaled as all others, found another
