// A step of several micro-batches becomes a program for each kind of them.
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard='ranks=4' --fsdp-accumulate='accumulate=3' --fsdp-verify-equivalence | FileCheck %s
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard='ranks=4' --fsdp-accumulate='accumulate=3 no-sync=true' --fsdp-verify-equivalence | FileCheck %s --check-prefix=NOSYNC
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard='ranks=4' --fsdp-accumulate='accumulate=2:mean' --fsdp-verify-equivalence -o %t.two
// RUN: FileCheck %s --check-prefix=TWO < %t.two
// RUN: sed '/func @first/,/return/s/\[\], 0.5/[], 1.0/' %t.two | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=SEED
// RUN: sed 's/fsdp.mean_loss, //' %t.two | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=SEED
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard='mesh=2x4 strategy=hybrid_shard reduce-dtype=bf16' --fsdp-accumulate='accumulate=3 no-all-reduce=true' --fsdp-verify-equivalence | FileCheck %s --check-prefix=PARTIAL
// RUN: fsdp-opt %s --fsdp-assign-units --fsdp-shard='ranks=4 reshard-after-backward=false' --fsdp-accumulate='accumulate=3' --fsdp-insert-optimizer --fsdp-verify-logical --fsdp-async --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-equivalence | FileCheck %s --check-prefix=KEPT
// RUN: not fsdp-opt %s --fsdp-assign-units --fsdp-shard='ranks=4' --fsdp-accumulate='accumulate=3 no-all-reduce=true' 2>&1 | FileCheck %s --check-prefix=NONE

// Synchronised: every micro-batch reduces, and shards are summed.
// CHECK: module attributes {{.*}}fsdp.micro_batches = 3
// CHECK: func.func @first(
// CHECK-SAME: fsdp.part = #fsdp.part<first>
// CHECK-NOT: fsdp.accumulate
// CHECK: %[[S:.*]] = fsdp.reduce_scatter @root
// CHECK: return %{{.*}}, %[[S]]
// CHECK: func.func @middle(
// CHECK-SAME: %[[BEFORE:[a-z0-9]+]]: !fsdp.shard<12xf32, 4> {fsdp.state = #fsdp.state<@root, sharded_gradient>}
// CHECK: %[[S:.*]] = fsdp.reduce_scatter @root
// CHECK: %[[SUM:.*]] = fsdp.accumulate @root %[[BEFORE]], %[[S]] : !fsdp.shard<12xf32, 4>
// CHECK: return %{{.*}}, %[[SUM]]
// The last one has the gradient in its own place.
// CHECK: func.func @last(
// CHECK: %[[S:.*]] = fsdp.reduce_scatter @root
// CHECK: %[[SUM:.*]] = fsdp.accumulate @root %[[S]], %{{.*}} : !fsdp.shard<12xf32, 4>
// CHECK: return %{{.*}}, %[[SUM]]

// Unsharded: the last one reduces the sum.
// NOSYNC: func.func @first(
// NOSYNC-NOT: fsdp.reduce_scatter
// NOSYNC: %[[FLAT:.*]] = fsdp.flatten_grads @root
// NOSYNC-NOT: fsdp.reduce_scatter
// NOSYNC: return %{{.*}}, %[[FLAT]]
// NOSYNC: func.func @middle(
// NOSYNC-SAME: %[[BEFORE:[a-z0-9]+]]: tensor<12xf32> {fsdp.state = #fsdp.state<@root, unsharded_gradient>}
// NOSYNC: %[[SUM:.*]] = fsdp.accumulate @root %[[BEFORE]], %{{.*}} : tensor<12xf32>
// NOSYNC-NOT: fsdp.reduce_scatter
// NOSYNC: return %{{.*}}, %[[SUM]]
// NOSYNC: func.func @last(
// NOSYNC: %[[SUM:.*]] = fsdp.accumulate @root
// NOSYNC: fsdp.reduce_scatter @root over ["shard"] divide <pre = 2, post = 2> via f32 %[[SUM]]

// Over the shards in each micro-batch, over the copies in the last; in between, sums of the reduce type.
// PARTIAL: func.func @first(
// PARTIAL: %[[S:.*]] = fsdp.reduce_scatter @root over ["shard"] divide <pre = 4, post = 1>
// PARTIAL-NOT: fsdp.all_reduce @root
// PARTIAL: return %{{.*}}, %[[S]] : tensor<f32>, !fsdp.shard<12xbf16, 4>
// PARTIAL: func.func @middle(
// PARTIAL-SAME: %[[BEFORE:[a-z0-9]+]]: !fsdp.shard<12xbf16, 4> {fsdp.state = #fsdp.state<@root, partial_gradient>}
// PARTIAL: %[[S:.*]] = fsdp.reduce_scatter @root
// PARTIAL-NOT: fsdp.all_reduce @root
// PARTIAL: %[[SUM:.*]] = fsdp.accumulate @root %[[BEFORE]], %[[S]] : !fsdp.shard<12xbf16, 4>
// PARTIAL: return %{{.*}}, %[[SUM]]
// PARTIAL: func.func @last(
// PARTIAL: %[[S:.*]] = fsdp.reduce_scatter @root
// PARTIAL: %[[SUM:.*]] = fsdp.accumulate @root %[[S]], %{{.*}} : !fsdp.shard<12xbf16, 4>
// PARTIAL: fsdp.all_reduce @root over ["replicate"] divide <pre = 1, post = 2> via bf16 %[[SUM]]

// NONE: no-all-reduce: expected a unit that is sharded and replicated, whose all-reduce can wait for the last micro-batch, found none: give a mesh of several copies, such as --mesh 2x4

// The first program gathers, and returns what it has gathered; the others have it as an argument.
// KEPT: fsdp.unit @root {{.*}} {kept_after_backward, root}
// KEPT: func.func @first(
// KEPT: %[[FUTURE:.*]] = fsdp.async.unshard @root
// KEPT: %[[FULL:.*]] = fsdp.async.wait %[[FUTURE]]
// KEPT-NOT: fsdp.async.reshard
// KEPT: return {{.*}}%[[FULL]]
// KEPT: func.func @middle(
// KEPT-SAME: %[[FULL:[a-z0-9]+]]: !fsdp.gathered<12xf32> {fsdp.state = #fsdp.state<@root, unsharded_parameter>}
// KEPT-NOT: fsdp.async.unshard
// KEPT: fsdp.view %[[FULL]][@root, "w"]
// KEPT: func.func @last(
// KEPT-NOT: fsdp.async.unshard
// KEPT: fsdp.adamw @root

// Of two micro-batches, none is between; the backward starts with one half, and the model that both share with 1.
// TWO: module attributes {{.*}}fsdp.mean_loss, fsdp.micro_batches = 2
// TWO: func.func @first(
// TWO-SAME: fsdp.source = @step.source
// TWO: "full"([], {{0\.5|5\.0*e-01}}
// TWO-NOT: @middle
// TWO: func.func @last(
// TWO-SAME: fsdp.source = @step.source
// TWO: "full"([], {{0\.5|5\.0*e-01}}
// TWO: func.func private @step.source(
// TWO: "full"([], 1.0

// SEED: error: the gradient of 'w' depends on another value: expected a result of 'full'
func.func @step(%w: tensor<3x4xf32> {aten.param = "w"}, %x: tensor<2x4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<3x4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %one = aten.call "full"([], 1.0, dtype = f32, device = cpu, pin_memory = false) {aten.gradient_seed, phase = #aten<phase backward>} : () -> tensor<f32>
  %t = aten.call "t"(%w) {phase = #aten<phase forward>} : (tensor<3x4xf32>) -> tensor<4x3xf32, #aten.strided<[1, 4]>>
  %y = aten.call "mm"(%x, %t) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4x3xf32, #aten.strided<[1, 4]>>) -> tensor<2x3xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x3xf32>) -> tensor<f32>
  %gy = aten.call "expand"(%one, [2, 3]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<2x3xf32, #aten.strided<[0, 0]>>
  %gt = aten.call "t"(%gy) {phase = #aten<phase backward>} : (tensor<2x3xf32, #aten.strided<[0, 0]>>) -> tensor<3x2xf32, #aten.strided<[0, 0]>>
  %gw = aten.call "mm"(%gt, %x) {phase = #aten<phase backward>} : (tensor<3x2xf32, #aten.strided<[0, 0]>>, tensor<2x4xf32>) -> tensor<3x4xf32>
  return %loss, %gw : tensor<f32>, tensor<3x4xf32>
}
