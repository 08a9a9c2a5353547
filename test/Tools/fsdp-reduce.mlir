// Schedules with control flow can be reduced, too.
// RUN: fsdp-reduce %s | FileCheck %s

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
// CHECK-LABEL: func.func @loop
// CHECK: scf.for
// CHECK: fsdp.async.unshard
func.func @loop(%p: !p, %n: index) attributes {aten.program} {
  scf.for %i = %n to %n step %n {
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  }
  return
}
