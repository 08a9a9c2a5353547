// What is offloaded has a type with its memory, and a copy for each use in the other one.
// covers: CPUOffload, _offload_grad, H2D
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-offload=offload=all -o %t
// RUN: FileCheck %s --check-prefix=ALL < %t
// RUN: fsdp-opt %t --cse --fsdp-verify-logical --fsdp-verify-equivalence --fsdp-async --fsdp-prefetch --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence | FileCheck %s --check-prefix=ASYNC
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-offload=offload=params | FileCheck %s --check-prefix=PARAMS
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-offload=offload=optimizer | FileCheck %s --check-prefix=STATES
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard="ranks=4 strategy=shard_grad_op" --fsdp-insert-optimizer --fsdp-offload=offload=all | FileCheck %s --check-prefix=KEPT
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-offload=offload=bytes=1 --remarks-filter=fsdp-offload --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK --implicit-check-not=Unit=
// RUN: fsdp-opt %t --fsdp-async --fsdp-annotate-costs=hardware=h100 | FileCheck %s --check-prefix=COST
// RUN: not fsdp-opt %t --fsdp-offload=offload=params 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: fsdp-opt %t --fsdp-async --fsdp-verify-memory --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=PEAK
// RUN: sed 's/fsdp.copy @b.0 <forward>/fsdp.copy @b.1 <forward>/' %t | not fsdp-opt 2>&1 | FileCheck %s --check-prefix=UNIT
// RUN: not fsdp-opt %s --split-input-file 2>&1 | FileCheck %s --check-prefix=INVALID

// A copy for each gather, the gradient after its reduction, and an update in host memory: nothing comes back.
// ALL: func.func @step
// ALL: %[[D0:[0-9]+]] = fsdp.copy @b.0 <forward> %{{.*}} : !fsdp.shard<[[N:[0-9]+]]xf32, 4, host> -> !fsdp.shard<[[N]]xf32, 4>
// ALL-NEXT: fsdp.unshard @b.0 <forward> over ["shard"] %[[D0]] :
// ALL: %[[AGAIN:[0-9]+]] = fsdp.copy @b.1 <backward> %{{.*}}, host> -> !fsdp.shard<{{[0-9]+}}xf32, 4>
// ALL-NEXT: fsdp.unshard @b.1 <backward> over ["shard"] %[[AGAIN]] :
// ALL: %[[R0:[0-9]+]] = fsdp.reduce_scatter @b.0
// ALL-NEXT: %[[G0:[0-9]+]] = fsdp.copy @b.0 <backward> %[[R0]] : {{.*}} -> !fsdp.shard<[[N]]xf32, 4, host>
// ALL-NOT: fsdp.copy
// ALL: fsdp.adamw @b.0 [0 to {{.*}}] %{{.*}}, %[[G0]], {{.*}} : !fsdp.shard<[[N]]xf32, 4, host>
// ALL-NOT: fsdp.copy

// A gather takes the copy in flight, and moves with it; so does the copy the reduction. Only updates wait.
// ASYNC: %[[C1:[0-9]+]] = fsdp.async.copy @b.1 <backward> %{{.*}} : !fsdp.shard<{{.*}}, host> ->
// ASYNC-NEXT: %[[F1:.*]] = fsdp.async.unshard @b.1 <backward> over ["shard"] %[[C1]] : !fsdp.future
// ASYNC: %[[R0:[0-9]+]] = fsdp.async.reduce_scatter @b.0
// ASYNC-NEXT: %[[G0:[0-9]+]] = fsdp.async.copy @b.0 <backward> %[[R0]] : !fsdp.future<!fsdp.shard<{{[0-9]+}}xf32, 4>> -> !fsdp.future<!fsdp.shard<{{[0-9]+}}xf32, 4, host>>
// ASYNC: %[[W0:[0-9]+]] = fsdp.async.wait %[[G0]]
// ASYNC-NEXT: fsdp.adamw @b.0 {{.*}} %[[W0]],

// The update is on the device: the shard comes and goes, one update ahead.
// PARAMS: %[[P0:[0-9]+]] = fsdp.copy @[[U0:[a-z.0-9]+]] <update> %{{.*}} : !fsdp.shard<{{.*}}, host> ->
// PARAMS-NEXT: %[[P1:[0-9]+]] = fsdp.copy @{{.*}} <update> %{{.*}} : !fsdp.shard<{{.*}}, host> ->
// PARAMS-NEXT: %[[N0:.*]], %{{.*}}, %{{.*}} = fsdp.adamw @[[U0]] [{{.*}}] %[[P0]],
// PARAMS-NEXT: fsdp.copy @[[U0]] <update> %[[N0]] : {{.*}} -> !fsdp.shard<{{.*}}, host>

// And on the host: it goes while the gradient is reduced.
// STATES: %[[H0:[0-9]+]] = fsdp.copy @b.0 <update> %{{.*}} -> !fsdp.shard<{{.*}}, host>
// STATES-NEXT: fsdp.reduce_scatter @b.0
// STATES: %[[N0:.*]], %{{.*}}, %{{.*}} = fsdp.adamw @b.0 [{{.*}}] %[[H0]], {{.*}} : !fsdp.shard<{{.*}}, host>
// STATES-NEXT: fsdp.copy @b.0 <update> %[[N0]] : !fsdp.shard<{{.*}}, host> ->

// What stays gathered is not copied a second time, as FSDP1 does.
// KEPT-COUNT-3: <forward>{{.*}}, host> -> !fsdp.shard
// KEPT-NOT: host> -> !fsdp.shard

// REMARK: offload | Category:fsdp-offload | Function=step | Bytes={{[0-9]+}}, Unit=b.{{[01]}}

// Four shards of each unit: of 4, 16 and 20 elements among four ranks.
// PEAK: peak | Category:fsdp-verify-memory
// PEAK: host | Category:fsdp-verify-memory | Function=step | Bytes=160

// Latency and link of the hardware's host: 10 us and 16 bytes at 50 GB/s.
// COST: fsdp.async.copy @b.0 <forward> {{.*}}fsdp.cost = 10000

// TWICE: error: offload: expected states on the device, found one of type '!fsdp.shard<{{.*}}, host>'

// UNIT: error: 'fsdp.copy' op expected an operand of type

// INVALID: error: 'fsdp.copy' op expected a result of type '!fsdp.shard<8xf32, 2, host>', as unit 'u' has it, got '!fsdp.shard<8xf32, 2>'
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @same(%p: !fsdp.shard<8xf32, 2>) {
  %0 = fsdp.copy @u <forward> %p : !fsdp.shard<8xf32, 2> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// INVALID: error: 'fsdp.unshard' op expected an operand of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got '!fsdp.shard<8xf32, 2, host>'
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @host(%p: !fsdp.shard<8xf32, 2, host>) {
  %0 = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2, host> -> !fsdp.gathered<8xf32>
  return
}

// -----

// INVALID: error: use of value '%g' expects different type
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @mixed(%p: !fsdp.shard<8xf32, 2>, %g: !fsdp.shard<8xf32, 2, host>, %h: tensor<7xf64>) {
  %0 = fsdp.sgd @u [0 to 8] %p, %g, %h : !fsdp.shard<8xf32, 2>, tensor<7xf64>
  return
}
