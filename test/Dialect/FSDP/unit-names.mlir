// A unit may be called like something that exists, such as the mesh or the program. Its symbol is another name then, which no other unit has, and rules
// know it by both.
// RUN: fsdp-opt %s --fsdp-shard="mesh=shard=4,local=2 unit='mesh: shard=shard; step_0: shard=local'" --fsdp-verify-logical | FileCheck %s
// CHECK: fsdp.unit @mesh_1 on @mesh shard ["shard"]
// CHECK: fsdp.unit @mesh_0 on @mesh shard ["shard", "local"]
// CHECK: fsdp.unit @step_0 on @mesh shard ["local"]
func.func @step(%a: tensor<8xf32> {aten.param = "a", fsdp.unit = "mesh"}, %b: tensor<8xf32> {aten.param = "b", fsdp.unit = "mesh_0"},
                %c: tensor<8xf32> {aten.param = "c", fsdp.unit = "step"}) -> (tensor<f32> {aten.loss}) attributes {aten.program} {
  %x = aten.call "mul.Tensor"(%a, %b) {phase = #aten<phase forward>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %y = aten.call "mul.Tensor"(%x, %c) {phase = #aten<phase forward>} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<8xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
