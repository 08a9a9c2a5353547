// Launches in place of collectives, waits at first uses, ends after last ones.
// covers: unshard(async_op)
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-async --fsdp-verify-scheduled --fsdp-verify-futures | FileCheck %s
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-async --cse --canonicalize | FileCheck %s
// RUN: not fsdp-opt %s --fsdp-async 2>&1 | FileCheck %s --check-prefix=RETURNED

// CHECK-LABEL: func.func @step
// CHECK: %[[F0:.*]] = fsdp.async.unshard @b.0 <forward>
// CHECK-NEXT: %[[FULL0:.*]] = fsdp.async.wait %[[F0]]
// CHECK: aten.call "mm"
// CHECK-NEXT: fsdp.async.reshard %[[FULL0]]
// CHECK-NEXT: %[[F1:.*]] = fsdp.async.unshard @b.1 <forward>
// CHECK-NEXT: %[[FULL1:.*]] = fsdp.async.wait %[[F1]]
// CHECK: aten.call "add.Tensor"
// CHECK-NEXT: fsdp.async.reshard %[[FULL1]]
// CHECK-NEXT: %[[FR:.*]] = fsdp.async.unshard @root <forward>
// CHECK-NEXT: %[[FULLR:.*]] = fsdp.async.wait %[[FR]]
// CHECK: %[[L:.*]] = fsdp.async.all_reduce on @mesh
// CHECK: %[[RR:.*]] = fsdp.async.reduce_scatter @root
// The root lives until its last use in the backward.
// CHECK: aten.call "mul.Tensor"
// CHECK-NEXT: fsdp.async.reshard %[[FULLR]]
// CHECK: %[[R1:.*]] = fsdp.async.reduce_scatter @b.1
// CHECK-NEXT: %[[B1:.*]] = fsdp.async.unshard @b.1 <backward>
// CHECK-NEXT: %[[AGAIN1:.*]] = fsdp.async.wait %[[B1]]
// CHECK: fsdp.async.reshard %[[AGAIN1]]
// CHECK: %[[R0:.*]] = fsdp.async.reduce_scatter @b.0
// CHECK-NEXT: %[[GR:.*]] = fsdp.async.wait %[[RR]]
// CHECK-NEXT: fsdp.adamw @root {{.*}}, %[[GR]],
// CHECK-NEXT: %[[G1:.*]] = fsdp.async.wait %[[R1]]
// CHECK-NEXT: fsdp.adamw @b.1 {{.*}}, %[[G1]],
// CHECK-NEXT: %[[G0:.*]] = fsdp.async.wait %[[R0]]
// CHECK-NEXT: fsdp.adamw @b.0 {{.*}}, %[[G0]],
// CHECK-NEXT: %[[LOSS:.*]] = fsdp.async.wait %[[L]]
// CHECK-NEXT: return %[[LOSS]], %[[GR]], %[[G0]], %[[G1]]

// RETURNED: error: the step returns memory of this gathered unit
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0 frozen], numel = 8, padded = 8>
func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>}) -> tensor<8xf32> attributes {aten.program} {
  %full = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  %a = fsdp.view %full[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
  return %a : tensor<8xf32>
}
