// A training step of two blocks and a root: y = ((x w0' w1') + bias) * scale, loss = sum(y).
// The bias is frozen, y is an output, and the backward reads a saved view of w1.
func.func @step(%s: tensor<4xf32> {aten.param = "scale"},
                %w0: tensor<4x4xf32> {aten.param = "b.0.w", fsdp.unit = "b.0"},
                %w1: tensor<4x4xf32> {aten.param = "b.1.w", fsdp.unit = "b.1"},
                %f: tensor<4xf32> {aten.param = "b.1.bias", fsdp.unit = "b.1"},
                %x: tensor<2x4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "scale"},
        tensor<4x4xf32> {aten.grad_of = "b.0.w"}, tensor<4x4xf32> {aten.grad_of = "b.1.w"},
        tensor<2x4xf32> {aten.output = 0 : i64}) attributes {aten.program} {
  %t0 = aten.call "t"(%w0) {phase = #aten<phase forward>} : (tensor<4x4xf32>) -> tensor<4x4xf32, #aten.strided<[1, 4]>>
  %h0 = aten.call "mm"(%x, %t0) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<2x4xf32>
  %t1 = aten.call "t"(%w1) {phase = #aten<phase forward>} : (tensor<4x4xf32>) -> tensor<4x4xf32, #aten.strided<[1, 4]>>
  %h1 = aten.call "mm"(%h0, %t1) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<2x4xf32>
  %h2 = aten.call "add.Tensor"(%h1, %f) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %y = aten.call "mul.Tensor"(%h2, %s) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x4xf32>) -> tensor<f32>
  %one = aten.call "full"([], 1.0) {phase = #aten<phase backward>} : () -> tensor<f32>
  %gy = aten.call "expand"(%one, [2, 4]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<2x4xf32, #aten.strided<[0, 0]>>
  %gs2 = aten.call "mul.Tensor"(%gy, %h2) {phase = #aten<phase backward>} : (tensor<2x4xf32, #aten.strided<[0, 0]>>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %gs = aten.call "sum.dim_IntList"(%gs2, [0]) {phase = #aten<phase backward>} : (tensor<2x4xf32>) -> tensor<4xf32>
  %gh = aten.call "mul.Tensor"(%gy, %s) {phase = #aten<phase backward>} : (tensor<2x4xf32, #aten.strided<[0, 0]>>, tensor<4xf32>) -> tensor<2x4xf32>
  %h0t = aten.call "t"(%h0) {phase = #aten<phase backward>} : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  %gw1t = aten.call "mm"(%h0t, %gh) {phase = #aten<phase backward>} : (tensor<4x2xf32, #aten.strided<[1, 4]>>, tensor<2x4xf32>) -> tensor<4x4xf32>
  %gw1 = aten.call "t"(%gw1t) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4x4xf32, #aten.strided<[1, 4]>>
  %gw1c = aten.call "clone"(%gw1) {phase = #aten<phase backward>} : (tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<4x4xf32>
  %t1t = aten.call "t"(%t1) {phase = #aten<phase backward>} : (tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<4x4xf32>
  %gh0 = aten.call "mm"(%gh, %t1t) {phase = #aten<phase backward>} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %xt = aten.call "t"(%x) {phase = #aten<phase backward>} : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  %gw0t = aten.call "mm"(%xt, %gh0) {phase = #aten<phase backward>} : (tensor<4x2xf32, #aten.strided<[1, 4]>>, tensor<2x4xf32>) -> tensor<4x4xf32>
  %gw0 = aten.call "t"(%gw0t) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4x4xf32, #aten.strided<[1, 4]>>
  %gw0c = aten.call "clone"(%gw0) {phase = #aten<phase backward>} : (tensor<4x4xf32, #aten.strided<[1, 4]>>) -> tensor<4x4xf32>
  return %loss, %gs, %gw0c, %gw1c, %y : tensor<f32>, tensor<4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>
}
