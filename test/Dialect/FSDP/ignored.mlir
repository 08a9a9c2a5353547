// RUN: fsdp-opt %s --fsdp-assign-units="ignore=b$" --fsdp-shard="ranks=2" --fsdp-verify-equivalence | FileCheck %s
// RUN: fsdp-opt %s --fsdp-assign-units="ignore=w|b" --fsdp-shard="ranks=2" | FileCheck %s --check-prefix=ALL
// RUN: not fsdp-opt %s --fsdp-assign-units="ignore=c" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not fsdp-opt %s --fsdp-assign-units="ignore=b" --fsdp-shard="ranks=2" --fsdp-insert-optimizer --fsdp-clip-gradients="clip-grad-norm=1" 2>&1 | FileCheck %s --check-prefix=CLIP
// RUN: fsdp-opt %s --fsdp-assign-units="ignore=b" --fsdp-shard="ranks=1" --fsdp-insert-optimizer --fsdp-clip-gradients="clip-grad-norm=1" | FileCheck %s --check-prefix=ONE
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard="ranks=2 sync-buffers=mean" --fsdp-verify-equivalence | FileCheck %s --check-prefix=MEAN
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard="ranks=2 sync-buffers=broadcast" --fsdp-verify-equivalence | FileCheck %s --check-prefix=FIRST
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard="ranks=2 sync-buffers=mean" | sed 's/sync_buffers = "mean"/sync_buffers = "broadcast"/' | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard="ranks=2" | sed 's/{aten.program,/{aten.program, fsdp.sync_buffers = "mean",/' | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=LACKS
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard="ranks=2 sync-buffers=mean" | sed 's/, fsdp.sync_buffers = "mean"//' | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=UNSAID
// covers: ignored arguments

// A unit of ignored parameters is along no axis, and its gradient is a sum over one rank.
// CHECK: fsdp.unit @root on @mesh shard ["shard"] replicate ["replicate"]
// CHECK-SAME: "w"
// CHECK: fsdp.unit @root.ignored on @mesh shard [] replicate []
// CHECK-SAME: "b"
// CHECK: fsdp.all_reduce @root.ignored over [] divide <pre = 1, post = 1>
// CHECK: fsdp.reduce_scatter @root over ["shard"]
// ALL-NOT: fsdp.unit @root on
// NONE: error: ignore: expected 'c' to match a parameter, found none; there are 'w', 'b'

// Each rank would have a norm of its own, and shards of one parameter would be clipped by several.
// CLIP: error: clip-grad-norm: expected gradients that are means over all ranks, found those of unit 'root.ignored', which are each rank's own; ignore nothing that trains, or clip nothing
// ONE: fsdp.clip_factor

// What the step makes of a buffer is reduced over all ranks, of integers by a broadcast alone.
// MEAN: func.func @step
// MEAN-SAME: fsdp.sync_buffers = "mean"
// MEAN: %[[SUM:.*]] = fsdp.all_reduce on @mesh for buffer over ["replicate", "shard"] divide <pre = 1, post = 2> via f32
// MEAN-NOT: for buffer
// What the step says and what it does are the same.
// OTHER: error: expected the new content of buffer 'mean' of the first rank, found another reduction
// LACKS: error: expected the new content of buffer 'mean' to be summed over 2 ranks, found no sum
// UNSAID: error: the new content of buffer 'mean' depends on another value
// FIRST: func.func @step
// FIRST: fsdp.all_reduce on @mesh for buffer over ["replicate", "shard"] divide <pre = 1, post = 1> via i64 first
// FIRST: fsdp.all_reduce on @mesh for buffer over ["replicate", "shard"] divide <pre = 1, post = 1> via f32 first
func.func @step(%w: tensor<4xf32> {aten.param = "w"}, %b: tensor<4xf32> {aten.param = "b"}, %mean: tensor<4xf32> {aten.buffer = "mean"},
    %count: tensor<i64> {aten.buffer = "count"}, %x: tensor<4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w"}, tensor<4xf32> {aten.grad_of = "b"},
        tensor<4xf32> {aten.buffer_mutation = "mean"}, tensor<i64> {aten.buffer_mutation = "count"}) attributes {aten.program} {
  %next = aten.call "add.Tensor"(%count, 1) : (tensor<i64>) -> tensor<i64>
  %running = aten.call "add.Tensor"(%mean, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %0 = aten.call "mul.Tensor"(%w, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "add.Tensor"(%0, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "sum"(%1) : (tensor<4xf32>) -> tensor<f32>
  %gb = aten.call "ones_like"(%b) {phase = #aten<phase backward>} : (tensor<4xf32>) -> tensor<4xf32>
  %gw = aten.call "mul.Tensor"(%gb, %x) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %gw, %gb, %running, %next : tensor<f32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i64>
}
