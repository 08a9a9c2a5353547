// The root is what is in no other unit, whatever its name: a module that is called "root" is none, and is
// freed after the forward, gathered again for the backward and merged with others.
// RUN: fsdp-opt %s --fsdp-assign-units=wrap=scope:[a-z]+ --fsdp-shard=ranks=2 | FileCheck %s
// RUN: fsdp-opt %s --fsdp-assign-units=wrap=scope:[a-z]+ --fsdp-shard=ranks=2 --fsdp-reshard-policy=reshard-after-forward=false --fsdp-reshard-policy | FileCheck %s
// RUN: fsdp-opt %s --fsdp-assign-units=wrap=scope:[a-z]+ "--fsdp-bucket=bucket=merge:units:2" --fsdp-shard=ranks=2 | FileCheck %s --check-prefix=MERGE

// CHECK: fsdp.unit @root on {{.*}} <["root.w" : 4 at 0], {{.*}} {reshard_after_forward}
// CHECK: fsdp.unit @root_ on {{.*}} <["w" : 4 at 0], {{.*}} {root}
// CHECK: fsdp.unshard @root <forward>
// CHECK: fsdp.unshard @root_ <forward>
// CHECK: fsdp.unshard @root <backward>
// CHECK-NOT: fsdp.unshard @root_
// MERGE: fsdp.unit @other..root on {{.*}} {reshard_after_forward}
// MERGE: fsdp.unit @root_ on {{.*}} {root}
func.func @step(%r: tensor<4xf32> {aten.param = "root.w"},
                %o: tensor<4xf32> {aten.param = "other.w"},
                %w: tensor<4xf32> {aten.param = "w"},
                %x: tensor<4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "root.w"}, tensor<4xf32> {aten.grad_of = "other.w"},
        tensor<4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %a = aten.call "mul.Tensor"(%x, %o) {phase = #aten<phase forward>, scope = "other"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b = aten.call "mul.Tensor"(%a, %r) {phase = #aten<phase forward>, scope = "root"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %y = aten.call "mul.Tensor"(%b, %w) {phase = #aten<phase forward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<f32>
  %one = aten.call "full"([], 1.0) {phase = #aten<phase backward>} : () -> tensor<f32>
  %gy = aten.call "expand"(%one, [4]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<4xf32, #aten.strided<[0]>>
  %gw = aten.call "mul.Tensor"(%gy, %b) {phase = #aten<phase backward>} : (tensor<4xf32, #aten.strided<[0]>>, tensor<4xf32>) -> tensor<4xf32>
  %gb = aten.call "mul.Tensor"(%gy, %w) {phase = #aten<phase backward>} : (tensor<4xf32, #aten.strided<[0]>>, tensor<4xf32>) -> tensor<4xf32>
  %gr = aten.call "mul.Tensor"(%gb, %a) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %ga = aten.call "mul.Tensor"(%gb, %r) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %go = aten.call "mul.Tensor"(%ga, %x) {phase = #aten<phase backward>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %loss, %gr, %go, %gw : tensor<f32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
