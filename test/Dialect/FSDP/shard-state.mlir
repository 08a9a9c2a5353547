// Buffers, aliases, frozen and unused units, types of units, odd results.
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-verify-logical -split-input-file | FileCheck %s

// A buffer that changes is state by its name; one that does not stays as it is.
// A tied parameter is stored once, under all its names.
// CHECK: fsdp.unit @root {{.*}} layout <["w" : 4 at 0 aliases ["head.w"]], numel = 4, padded = 4>
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[B:[^ ]*]]: tensor<4xf32> {aten.buffer = "mean"}, %{{[^ ]*}}: tensor<4xf32> {aten.buffer = "scale"})
// CHECK-SAME: -> (tensor<f32> {aten.loss}, !fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@root, gradient>},
// CHECK-SAME: tensor<4xf32> {aten.buffer_mutation = "mean"})
// CHECK: %[[NEW:.*]] = aten.call "add.Tensor"(%[[B]],
// CHECK: return %{{.*}}, %{{.*}}, %[[NEW]]
func.func @step(%w: tensor<4xf32> {aten.param = "w", aten.aliases = ["head.w"]},
                %mean: tensor<4xf32> {aten.buffer = "mean"}, %scale: tensor<4xf32> {aten.buffer = "scale"})
    -> (tensor<4xf32> {aten.buffer_mutation = "mean"}, tensor<f32> {aten.loss},
        tensor<4xf32> {aten.grad_of = "w"}, tensor<4xf32> {aten.grad_of_input = 0 : i64}) attributes {aten.program} {
  %y = aten.call "mul.Tensor"(%w, %scale) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %new = aten.call "add.Tensor"(%mean, %y) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<f32>
  return %new, %loss, %scale, %y : tensor<4xf32>, tensor<f32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A unit that only a dropped output needs is not gathered; one without gradient
// is gathered, and never reduced. A type of its own gives a unit of its own, and
// the root's stays gathered.
// CHECK: fsdp.unit @frozen {{.*}} frozen]
// CHECK: fsdp.unit @unused
// CHECK: fsdp.unit @root.bf16 on @mesh shard ["shard"] replicate ["replicate"] storage bf16 reduce bf16 {{.*}}padded = 4> {root}{{$}}
// CHECK-LABEL: func.func @step
// CHECK: fsdp.unshard @frozen <forward>
// CHECK-NOT: fsdp.unshard @unused
// CHECK: fsdp.unshard @root.bf16 <forward>
// The loss of a narrow type is summed in a wide one.
// CHECK: fsdp.all_reduce on @mesh {{.*}} via f32 %{{.*}} : tensor<bf16> -> tensor<bf16>
// The gradient of the root is a view of a parameter.
// CHECK: %[[V:.*]] = fsdp.view %{{.*}}[@root.bf16, "w"]
// CHECK: fsdp.flatten_grads @root.bf16(%[[V]])
// CHECK: return
func.func @step(%f: tensor<4xf32> {aten.param = "f", fsdp.unit = "frozen"},
                %u: tensor<4xf32> {aten.param = "u", fsdp.unit = "unused"},
                %w: tensor<4xbf16> {aten.param = "w", fsdp.root, fsdp.unit = "root.bf16"})
    -> (tensor<bf16> {aten.loss}, tensor<4xbf16> {aten.grad_of = "w"}, tensor<4xf32> {aten.output = 0 : i64}) attributes {aten.program} {
  %o = aten.call "neg"(%u) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<4xf32>
  %c = aten.call "_to_copy"(%f, dtype = bf16) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<4xbf16>
  %y = aten.call "mul.Tensor"(%c, %w) {phase = #aten<phase forward>} : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<4xbf16>) -> tensor<bf16>
  return %loss, %w, %o : tensor<bf16>, tensor<4xbf16>, tensor<4xf32>
}

// -----

// A parameter that is not row-major keeps its strides, as dense memory. A unit
// may be called like something that exists.
// CHECK: fsdp.unit @mesh_0 on @mesh {{.*}} layout <["k" : 2x3x1x2 at 0 frozen strides [6, 1, 6, 3]], numel = 12, padded = 12>
// CHECK: fsdp.view %{{.*}}[@mesh_0, "k"] : !fsdp.gathered<12xf32> -> tensor<2x3x1x2xf32, #aten.strided<[6, 1, 6, 3]>>
func.func @step(%k: tensor<2x3x1x2xf32, #aten.strided<[6, 1, 6, 3]>> {aten.param = "k", fsdp.unit = "mesh"})
    -> (tensor<f32> {aten.loss}) attributes {aten.program} {
  %loss = aten.call "sum"(%k) {phase = #aten<phase forward>} : (tensor<2x3x1x2xf32, #aten.strided<[6, 1, 6, 3]>>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// A unit whose parameters have no elements.

// CHECK: fsdp.unit @root.bf16 {{.*}} layout <["v" : 0 at 0], numel = 0, padded = 0>
// CHECK: func.func @step(
// CHECK-SAME: !fsdp.shard<0xbf16, 2>
// CHECK: fsdp.unshard @root.bf16 {{.*}} -> !fsdp.gathered<0xbf16>
// CHECK: fsdp.reduce_scatter @root.bf16
func.func @step(%w: tensor<4xf32> {aten.param = "w", fsdp.root, fsdp.unit = "root"},
                %v: tensor<0xbf16> {aten.param = "v", fsdp.root, fsdp.unit = "root.bf16"})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w"}, tensor<0xbf16> {aten.grad_of = "v"}) attributes {aten.program} {
  %loss = aten.call "sum"(%w) : (tensor<4xf32>) -> tensor<f32>
  %seed = aten.call "ones_like"(%loss, pin_memory = false) {aten.gradient_seed} : (tensor<f32>) -> tensor<f32>
  %dw = aten.call "expand"(%seed, [4]) : (tensor<f32>) -> tensor<4xf32, #aten.strided<[0]>>
  %dense = aten.call "clone"(%dw) : (tensor<4xf32, #aten.strided<[0]>>) -> tensor<4xf32>
  %dv = aten.call "sin"(%v) : (tensor<0xbf16>) -> tensor<0xbf16>
  return %loss, %dense, %dv : tensor<f32>, tensor<4xf32>, tensor<0xbf16>
}
