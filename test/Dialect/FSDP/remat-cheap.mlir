// What is cheap is computed again from what is not; what moves much for little is kept.
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=cheap:b --cse --canonicalize --fsdp-verify-logical --fsdp-verify-equivalence | FileCheck %s
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=cheap:b --remarks-filter=fsdp-remat --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// The product and what is random are kept, and of the normalisation two elements.
// CHECK: %[[X:.*]] = aten.call "mm"({{.*}} {phase = #aten<phase forward>
// CHECK: %[[ROOT:.*]] = aten.call "rsqrt"({{.*}} {phase = #aten<phase forward>
// CHECK: %[[RANDOM:.*]] = aten.call "rand_like"({{.*}} {phase = #aten<phase forward>
// CHECK: aten.call "expand"
// CHECK-NEXT: %[[GN:.*]] = aten.call "mul.Tensor"(%{{.*}}, %[[RANDOM]]) {phase = #aten<phase backward>}
// CHECK-NEXT: %[[WIDE:.*]] = aten.call "_to_copy"(%[[X]], dtype = f32) {phase = #aten<phase recompute>, scope = "b"}
// CHECK-NEXT: %[[N:.*]] = aten.call "mul.Tensor"(%[[WIDE]], %[[ROOT]]) {phase = #aten<phase recompute>, scope = "b"}
// CHECK-NEXT: aten.call "mul.Tensor"(%[[GN]], %[[N]]) {phase = #aten<phase backward>}
// CHECK-NOT: phase recompute
// CHECK: return

// The normalised values and their 32-bit copy, of 512 bytes each, for the 256 bytes of the product.
// REMARK: remat | Category:fsdp-remat | Function=step | BytesSaved=768, Flops=128, Operations=2, Scope=b

// Where the module has nothing cheap, the step stays as it is, and a remark says so.
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-remat=remat=cheap:a --remarks-filter=fsdp-remat --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=NOTHING
// NOTHING: Reason="the backward reads nothing that may be repeated", Scope=a
// NOTHING-NOT: phase recompute

func.func @step(%w: tensor<64x64xbf16> {aten.param = "w", fsdp.unit = "b"}, %x: tensor<2x64xbf16> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<64x64xbf16> {aten.grad_of = "w"}) attributes {aten.program} {
  %t = aten.call "t"(%w) {phase = #aten<phase forward>, scope = "a"} : (tensor<64x64xbf16>) -> tensor<64x64xbf16, #aten.strided<[1, 64]>>
  %h = aten.call "mm"(%x, %t) {phase = #aten<phase forward>, scope = "a"} : (tensor<2x64xbf16>, tensor<64x64xbf16, #aten.strided<[1, 64]>>) -> tensor<2x64xbf16>
  %f = aten.call "_to_copy"(%h, dtype = f32) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xbf16>) -> tensor<2x64xf32>
  %p = aten.call "pow.Tensor_Scalar"(%f, 2) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xf32>) -> tensor<2x64xf32>
  %m = aten.call "mean.dim"(%p, [-1], true) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xf32>) -> tensor<2x1xf32>
  %s = aten.call "rsqrt"(%m) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %n = aten.call "mul.Tensor"(%f, %s) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xf32>, tensor<2x1xf32>) -> tensor<2x64xf32>
  %r = aten.call "rand_like"(%n) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xf32>) -> tensor<2x64xf32>
  %y = aten.call "mul.Tensor"(%n, %r) {phase = #aten<phase forward>, scope = "b"} : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x64xf32>) -> tensor<f32>
  %one = aten.call "full"([], 1.0) {phase = #aten<phase backward>} : () -> tensor<f32>
  %gy = aten.call "expand"(%one, [2, 64]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<2x64xf32, #aten.strided<[0, 0]>>
  %gn = aten.call "mul.Tensor"(%gy, %r) {phase = #aten<phase backward>} : (tensor<2x64xf32, #aten.strided<[0, 0]>>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %a = aten.call "mul.Tensor"(%gn, %n) {phase = #aten<phase backward>} : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %b = aten.call "mul.Tensor"(%a, %f) {phase = #aten<phase backward>} : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %c = aten.call "mul.Tensor"(%b, %s) {phase = #aten<phase backward>} : (tensor<2x64xf32>, tensor<2x1xf32>) -> tensor<2x64xf32>
  %gh = aten.call "_to_copy"(%c, dtype = bf16) {phase = #aten<phase backward>} : (tensor<2x64xf32>) -> tensor<2x64xbf16>
  %ut = aten.call "t"(%gh) {phase = #aten<phase backward>} : (tensor<2x64xbf16>) -> tensor<64x2xbf16, #aten.strided<[1, 64]>>
  %gw = aten.call "mm"(%ut, %x) {phase = #aten<phase backward>} : (tensor<64x2xbf16, #aten.strided<[1, 64]>>, tensor<2x64xbf16>) -> tensor<64x64xbf16>
  return %loss, %gw : tensor<f32>, tensor<64x64xbf16>
}
