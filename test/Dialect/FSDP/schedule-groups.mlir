// Two groups that have several ranks in common take turns: a gather in a small group, and a reduction over all ranks.
// RUN: fsdp-opt %s --fsdp-schedule --remarks-filter=fsdp-schedule --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s
// RUN: sed -e 's/on @mesh for norm/on @other for norm/' %s > %t.mlir
// RUN: fsdp-opt %t.mlir --fsdp-schedule --remarks-filter=fsdp-schedule --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=APART
// CHECK: timeline | {{.*}} Step="2.0 us"
// Of two meshes nothing is known to be in common.
// APART: timeline | {{.*}} Step="1.0 us"

fsdp.mesh @mesh ["shard" = 2, "local" = 2]
fsdp.mesh @other ["shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>

func.func @step(%piece: !fsdp.shard<8xf32, 2>, %x: tensor<f32>) attributes {aten.program} {
  %f = fsdp.async.all_reduce on @mesh for norm over ["shard", "local"] divide <pre = 1, post = 1> via f32 %x {fsdp.cost = 1000 : i64} : tensor<f32> -> !fsdp.future<tensor<f32>>
  %g = fsdp.async.unshard @u <backward> over ["local"] %piece {fsdp.cost = 1000 : i64} : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
  %a = fsdp.async.wait %f : !fsdp.future<tensor<f32>> -> tensor<f32>
  %b = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
  %freed = fsdp.async.reshard %b : !fsdp.gathered<8xf32>
  return
}
