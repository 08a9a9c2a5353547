// What moved into @init counts as if it were computed in the step.
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 --fsdp-hoist-constants --fsdp-verify-equivalence -o %t.mlir
// RUN: FileCheck %s < %t.mlir
// RUN: fsdp-translate --import-pt2 %fixtures/llama.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard=ranks=2 --fsdp-hoist-constants --cse --fsdp-verify-equivalence | FileCheck %s --check-prefix=LLAMA

// Another operator, constant or buffer in it; results exchanged; none; an effect.
// RUN: sed '/@init/,/return/s/"cos"/"sin"/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=OPERATOR
// OPERATOR: error: the loss depends on another value: expected a result of 'cos' of type 'tensor<4xf32>', found a result of 'sin'
// RUN: sed '/@init/,/return/s/"arange"(4)/"arange"(5)/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=CONSTANT
// CONSTANT: error: the loss depends on another value: expected a result of 'arange'
// RUN: sed '/@init/s/"freq"/"other"/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=BUFFER
// BUFFER: error: the loss depends on another value: expected buffer "freq" of type 'tensor<4xf32>', found buffer "other"
// RUN: sed '/@init/,/return/s/return %%\(.*\), %%\(.*\) :/return %%\2, %%\1 :/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=EXCHANGED
// EXCHANGED: error: the loss depends on another value: expected a result of 'cos' of type 'tensor<4xf32>', found a result of 'mul.Tensor'
// RUN: sed '/@step(/s/fsdp.result = 1 :/fsdp.result = 2 :/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=MISSING
// MISSING: error: expected result 2 of '@init', found none
// RUN: sed '/@init/,/return/s/"arange"(4)/"rand"([4])/' %t.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=EFFECT
// EFFECT: error: expected '@init' to have no effects, found one

// CHECK: func.func @init
// CHECK: fsdp.result = 1 : i64
// LLAMA: func.func @init(%{{.*}}: tensor<4xf32> {aten.buffer = "m.model.rotary_emb.inv_freq"
// LLAMA-COUNT-1: aten.call "where.self"
// LLAMA: func.func @step(
// LLAMA-NOT: aten.call "{{cos|arange|where.self}}"
// LLAMA: func.func private @step.source

func.func @step(%w: tensor<4xf32> {aten.param = "w"}, %x: tensor<4xf32> {aten.input = 0 : i64},
                %freq: tensor<4xf32> {aten.buffer = "freq", aten.value = dense<2.0> : tensor<4xf32>})
    -> (tensor<f32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %range = aten.call "arange"(4) : () -> tensor<4xf32>
  %angles = aten.call "mul.Tensor"(%range, %freq) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %table = aten.call "cos"(%angles) : (tensor<4xf32>) -> tensor<4xf32>
  %y = aten.call "mul.Tensor"(%x, %table) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %z = aten.call "mul.Tensor"(%y, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s = aten.call "add.Tensor"(%z, %angles) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %loss = aten.call "sum"(%s) : (tensor<4xf32>) -> tensor<f32>
  return %loss, %y : tensor<f32>, tensor<4xf32>
}
