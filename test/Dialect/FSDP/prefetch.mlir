// FSDP1's BACKWARD_PRE on a model with three blocks: in PyTorch's trace,
//   noAG(root) wait AG(u3)* B(head) wait(u3) AG(u2)* B(u3) wait(u2) AG(u1)* B(u2)
// covers: _PrefetchMode, _prefetch_handle
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch --fsdp-apply-schedule --fsdp-verify-futures | FileCheck %s
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch=backward-prefetch=none --fsdp-apply-schedule | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch=backward-prefetch=backward_post --fsdp-apply-schedule --fsdp-verify-futures | FileCheck %s --check-prefix=POST
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch=forward-prefetch=2 --fsdp-apply-schedule --fsdp-verify-futures | FileCheck %s --check-prefix=AHEAD
// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch=forward-prefetch=-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch --remarks-filter=fsdp-prefetch --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// 22 launches in front of one operation, in the order in which they are needed: more than have room there without new numbers.
// RUN: fsdp-translate --import-pt2 %fixtures/bert.pt2 | fsdp-opt --fsdp-assign-units=wrap=size:1 --fsdp-shard=ranks=2 --fsdp-async --fsdp-prefetch=forward-prefetch=40 --fsdp-apply-schedule --fsdp-verify-futures | FileCheck %s --check-prefix=MANY
// MANY: fsdp.async.wait
// MANY-COUNT-19: fsdp.async.unshard
// MANY-NEXT: fsdp.async.unshard @m.cls.predictions.transform.dense <forward>
// MANY-NEXT: fsdp.async.unshard @m.cls.predictions.transform.LayerNorm <forward>
// MANY-NEXT: fsdp.async.unshard @m.cls.predictions <forward>

// CHECK: fsdp.async.all_reduce on @mesh
// CHECK: %[[U3:.*]] = fsdp.async.unshard @u3 <backward>
// CHECK-NEXT: aten.call "mul.Tensor"({{.*}}) {phase = #aten<phase backward>}
// CHECK: fsdp.async.wait %[[U3]]
// CHECK-NEXT: %[[U2:.*]] = fsdp.async.unshard @u2 <backward>
// CHECK: fsdp.async.reduce_scatter @u3
// CHECK: fsdp.async.wait %[[U2]]
// CHECK-NEXT: %[[U1:.*]] = fsdp.async.unshard @u1 <backward>
// CHECK: fsdp.async.reduce_scatter @u2
// CHECK-NEXT: fsdp.async.wait %[[U1]]
// CHECK: fsdp.async.reduce_scatter @u1

// BACKWARD_POST: AG(u3) wait(u3) B(u3) free(u3) AG(u2)* RS(u3) wait(u2)
// POST: %[[U3:.*]] = fsdp.async.unshard @u3 <backward>
// POST-NEXT: %[[FULL3:.*]] = fsdp.async.wait %[[U3]]
// POST: fsdp.async.reshard %[[FULL3]]
// POST: %[[U2:.*]] = fsdp.async.unshard @u2 <backward>
// POST-NEXT: fsdp.async.reduce_scatter @u3
// POST-NEXT: fsdp.async.wait %[[U2]]
// POST: %[[U1:.*]] = fsdp.async.unshard @u1 <backward>
// POST-NEXT: fsdp.async.reduce_scatter @u2
// POST-NEXT: fsdp.async.wait %[[U1]]

// Two units ahead, in the order of the forward.
// AHEAD: %[[U1:.*]] = fsdp.async.unshard @u1 <forward>
// AHEAD-NEXT: fsdp.async.wait %[[U1]]
// AHEAD-NEXT: %[[U2:.*]] = fsdp.async.unshard @u2 <forward>
// AHEAD-NEXT: %[[U3:.*]] = fsdp.async.unshard @u3 <forward>
// AHEAD: fsdp.async.wait %[[U2]]
// AHEAD-NEXT: %[[ROOT:.*]] = fsdp.async.unshard @root <forward>
// AHEAD: fsdp.async.wait %[[U3]]
// AHEAD-NOT: fsdp.async.unshard
// AHEAD: fsdp.async.wait %[[ROOT]]

// NEGATIVE: error: expected to gather at least 0 units ahead, got -1

// NONE: fsdp.async.reduce_scatter @u3
// NONE-NEXT: %[[U2:.*]] = fsdp.async.unshard @u2 <backward>
// NONE-NEXT: fsdp.async.wait %[[U2]]

// One unit's backward is two calls.
// REMARK: prefetch | Category:fsdp-prefetch | Function=step | Bytes=16, Calls=1, During=root, Unit=u3
// REMARK: prefetch | Category:fsdp-prefetch | Function=step | Bytes=16, Calls=2, During=u3, Unit=u2
// REMARK: prefetch | Category:fsdp-prefetch | Function=step | Bytes=16, Calls=2, During=u2, Unit=u1
func.func @step(%w0: tensor<4xf32> {aten.param = "w0"}, %w1: tensor<4xf32> {aten.param = "u1.w", fsdp.unit = "u1"},
                %w2: tensor<4xf32> {aten.param = "u2.w", fsdp.unit = "u2"},
                %w3: tensor<4xf32> {aten.param = "u3.w", fsdp.unit = "u3"}, %x: tensor<4xf32> {aten.input = 0 : i64})
    -> (tensor<4xf32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w0"}, tensor<4xf32> {aten.grad_of = "u1.w"},
        tensor<4xf32> {aten.grad_of = "u2.w"}, tensor<4xf32> {aten.grad_of = "u3.w"}) attributes {aten.program} {
  %h1 = aten.call "mul.Tensor"(%x, %w1) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %h2 = aten.call "mul.Tensor"(%h1, %w2) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %h3 = aten.call "mul.Tensor"(%h2, %w3) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "mul.Tensor"(%h3, %w0) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g3 = aten.call "mul.Tensor"(%loss, %w0) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g2 = aten.call "mul.Tensor"(%g3, %w3) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gw3 = aten.call "mul.Tensor"(%g3, %h2) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g1 = aten.call "mul.Tensor"(%g2, %w2) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gw2 = aten.call "mul.Tensor"(%g2, %h1) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gw1 = aten.call "mul.Tensor"(%g1, %w1) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gw0 = aten.call "mul.Tensor"(%gw1, %h3) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %gw0, %gw1, %gw2, %gw3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
