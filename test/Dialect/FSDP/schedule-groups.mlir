// Two groups that have several ranks in common take turns: a gather in a small group, and a reduction over all ranks.
// RUN: fsdp-opt %s --split-input-file --fsdp-schedule --remarks-filter=fsdp-schedule --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s
// RUN: sed -e '/^.. ---/,$d' -e 's/on @mesh for norm/on @other for norm/' %s > %t.mlir
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

// -----

// It waits for all that a group has launched before, on each stream: after the all-reduce there may still be the gather in front of it.
// CHECK: timeline | {{.*}} Step="4.0 us"
fsdp.mesh @mesh ["shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>

func.func @step(%piece: !fsdp.shard<8xf32, 2>, %flat: tensor<8xf32>, %x: tensor<f32>) attributes {aten.program} {
  %f = fsdp.async.unshard @u <backward> over ["local"] %piece {fsdp.cost = 3000 : i64} : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
  %g = fsdp.async.all_reduce on @mesh for norm over ["local"] divide <pre = 1, post = 1> via f32 %x {fsdp.cost = 1000 : i64} : tensor<f32> -> !fsdp.future<tensor<f32>>
  %h = fsdp.async.reduce_scatter @u over ["shard", "local"] divide <pre = 1, post = 4> via f32 %flat {fsdp.cost = 1000 : i64} : tensor<8xf32> -> !fsdp.future<!fsdp.shard<8xf32, 4>>
  %a = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<8xf32>> -> !fsdp.gathered<8xf32>
  %freed = fsdp.async.reshard %a : !fsdp.gathered<8xf32>
  %b = fsdp.async.wait %g : !fsdp.future<tensor<f32>> -> tensor<f32>
  %c = fsdp.async.wait %h : !fsdp.future<!fsdp.shard<8xf32, 4>> -> !fsdp.shard<8xf32, 4>
  return
}
