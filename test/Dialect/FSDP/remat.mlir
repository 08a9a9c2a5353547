// What the backward reads of a scope is computed again, from the gather of the backward.
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=scope:b --cse --canonicalize --fsdp-verify-logical --fsdp-verify-equivalence -o %t.mlir
// RUN: FileCheck %s < %t.mlir
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=scope:b --remarks-filter=fsdp-remat --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// CHECK: %[[FULL:.*]] = fsdp.unshard @b <forward>
// CHECK: %[[KEPT:.*]] = aten.call "rand_like"
// CHECK: fsdp.all_reduce on @mesh
// The gather comes to where the recomputation needs it; what is random is not repeated.
// CHECK: aten.call "expand"
// CHECK-NEXT: %[[BACK:.*]] = fsdp.unshard @b <backward>
// CHECK-NEXT: %[[W:.*]] = fsdp.view %[[BACK]][@b, "w"]
// CHECK-NEXT: %[[WT:.*]] = aten.call "t"(%[[W]]) {phase = #aten<phase recompute>, scope = "b"}
// CHECK-NEXT: %[[H:.*]] = aten.call "mm"(%{{.*}}, %[[WT]]) {phase = #aten<phase recompute>, scope = "b"}
// CHECK-NEXT: %[[N:.*]] = aten.call "mul.Tensor"(%[[H]], %[[KEPT]]) {phase = #aten<phase recompute>, scope = "b"}
// CHECK-NEXT: aten.call "tanh_backward"(%{{.*}}, %[[N]]) {phase = #aten<phase backward>}
// CHECK-NOT: fsdp.unshard

// 8 products of 4 and a mul; %n is no longer kept.
// REMARK: remat | Category:fsdp-remat | Function=step | BytesSaved=32, Flops=72, Operations=2, Scope=b
// REMARK: peak | Category:fsdp-remat | Function=step | After=232, Before=196, Flops=72, Scopes=1

// A recomputation that reads the gather of the forward would keep it alive.
// RUN: sed 's/= fsdp.unshard @b <backward>/= fsdp.unshard @b <forward>/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PHASE
// PHASE: error: the backward reads unit @b as gathered for the forward

// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=scope:c 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: no module of the forward has path 'c'; there are 'b'{{$}}
// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=scope:[ 2>&1 | FileCheck %s --check-prefix=REGEX
// REGEX: error: expected a regular expression, found '[': brackets ([ ]) not balanced{{$}}
// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// NEGATIVE: for the --remat option: expected none, scope:REGEX, cheap:REGEX or budget:SIZE, {{.*}}; found 'budget:-1'
// RUN: not fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:16 2>&1 | FileCheck %s --check-prefix=BUDGET
// BUDGET: error: expected a step that holds at most 16 bytes, found one of 232 with 1 of 1 scopes recomputed, which is all that helps; shard over more ranks, or allow more{{$}}

// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:16 2>&1 | FileCheck %s --check-prefix=UNITS
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=2 --fsdp-remat=remat=scope:b 2>&1 | FileCheck %s --check-prefix=UNITS
// UNITS: error: expected modules inside of the model, which are what is recomputed, found none: make modules of its parts, or capture it with fsdp_mlir.capture
// RUN: sed 's/scope = "b"/scope = "c"/' %s | not fsdp-opt --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:16 2>&1 | FileCheck %s --check-prefix=OTHERS
// OTHERS: error: no module of the forward repeats or is a unit, to be recomputed; say which ones may be, with remat=scope:REGEX{{$}}

// What fits is left alone, also where there is no choice.
// RUN: fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:100000 | FileCheck %s --check-prefix=FITS
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=budget:100000 | FileCheck %s --check-prefix=FITS
// FITS: fsdp.flatten_grads
// FITS-NOT: phase recompute

func.func @step(%w: tensor<4x4xf32> {aten.param = "w", fsdp.unit = "b"}, %x: tensor<2x4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4x4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %t = aten.call "t"(%w) {phase = #aten<phase forward>, scope = "b"} : (tensor<4x4xf32>) -> tensor<4x4xf32, #aten.strided<[1, 4]>>
  %h = aten.call "mm"(%x, %t) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x4xf32>, tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<2x4xf32>
  %r = aten.call "rand_like"(%h) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %n = aten.call "mul.Tensor"(%h, %r) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %y = aten.call "tanh"(%n) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x4xf32>) -> tensor<f32>
  %one = aten.call "full"([], 1.0) {phase = #aten<phase backward>} : () -> tensor<f32>
  %gy = aten.call "expand"(%one, [2, 4]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<2x4xf32, #aten.strided<[0, 0]>>
  %gn = aten.call "tanh_backward"(%gy, %n) {phase = #aten<phase backward>} : (tensor<2x4xf32, #aten.strided<[0, 0]>>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %gh = aten.call "mul.Tensor"(%gn, %r) {phase = #aten<phase backward>} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %u = aten.call "mm"(%gh, %w) {phase = #aten<phase backward>} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %ut = aten.call "t"(%u) {phase = #aten<phase backward>} : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  %gw = aten.call "mm"(%ut, %x) {phase = #aten<phase backward>} : (tensor<4x2xf32, #aten.strided<[1, 4]>>, tensor<2x4xf32>) -> tensor<4x4xf32>
  return %loss, %gw : tensor<f32>, tensor<4x4xf32>
}
