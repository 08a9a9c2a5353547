// What can't be sharded is rejected with a sentence.
// covers: layouts that cannot be made, StopIteration, dtypes of one group
// RUN: fsdp-opt %s --fsdp-shard=ranks=2 -split-input-file -verify-diagnostics
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=strategy=zero9 2>&1 | FileCheck %s --check-prefix=STRATEGY
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-pipeline=strategy=zero9 2>&1 | FileCheck %s --check-prefix=STRATEGY
// STRATEGY: strategy{{.*}}: expected one of full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2; found 'zero9'{{$}}
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard="ranks=4 mesh=auto" 2>&1 | FileCheck %s --check-prefix=AUTO
// AUTO: error: expected the sizes of a mesh, such as mesh=2x4; 'auto' is a decision of fsdp-plan{{$}}

// expected-error@+1 {{expected a program, which is a function with 'aten.program'; found none}}
module {
  func.func private @step()
}

// -----

// expected-error@+1 {{expected at least one parameter to shard}}
func.func @step(%x: tensor<f32> {aten.input = 0 : i64}) -> (tensor<f32> {aten.loss}) attributes {aten.program} {
  return %x : tensor<f32>
}

// -----

// expected-error@+1 {{expected a result with 'aten.loss'}}
func.func @step(%w: tensor<f32> {aten.param = "w"}) -> (tensor<f32> {aten.grad_of = "w"}) attributes {aten.program} {
  return %w : tensor<f32>
}

// -----

// expected-error@+1 {{expected sizes that are bound, as by --bind hint or --bind NAME=SIZE; got 'tensor<?x4xf32>'}}
func.func @parameter_of_unknown_size(%w: tensor<?x4xf32> {aten.param = "w", fsdp.root, fsdp.unit = "root"}) attributes {aten.program} {
  return
}

// -----

// expected-error@+1 {{expected sizes that are bound, as by --bind hint or --bind NAME=SIZE; got 'tensor<4xf32, #aten.strided<[?]>>'}}
func.func @parameter_of_unknown_strides(%w: tensor<4xf32, #aten.strided<[?]>> {aten.param = "w", fsdp.root, fsdp.unit = "root"}) attributes {aten.program} {
  return
}

// -----

func.func @step(%w: tensor<4xf32> {aten.param = "w"},
    // expected-error@+1 {{expected sizes that are bound, as by --bind hint or --bind NAME=SIZE; got 'tensor<?x4xf32>'}}
                %x: tensor<?x4xf32> {aten.input = 0 : i64}) -> (tensor<4xf32> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4xf32>
}

// -----

// expected-error@+1 {{expected parameter "w" to be a tensor of floats, got 'tensor<4xi64>'}}
func.func @step(%w: tensor<4xi64> {aten.param = "w"}) -> (tensor<4xi64> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4xi64>
}

// -----

// expected-error@+1 {{a result is the gradient of "v", which is no parameter}}
func.func @step(%w: tensor<4xf32> {aten.param = "w"}) -> (tensor<4xf32> {aten.loss}, tensor<4xf32> {aten.grad_of = "v"}) attributes {aten.program} {
  return %w, %w : tensor<4xf32>, tensor<4xf32>
}

// -----

func.func @step(%w: tensor<4xf32> {aten.param = "w"},
    // expected-error@+1 {{expected a gradient of parameter "w" of type 'tensor<4xf32>', got 'tensor<2xf32>'}}
                %x: tensor<2xf32> {aten.input = 0 : i64}) -> (tensor<4xf32> {aten.loss}, tensor<2xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  return %w, %x : tensor<4xf32>, tensor<2xf32>
}

// -----

// expected-error@+1 {{two results are the gradient of "w"}}
func.func @step(%w: tensor<4xf32> {aten.param = "w"}) -> (tensor<4xf32> {aten.loss}, tensor<4xf32> {aten.grad_of = "w"}, tensor<4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  return %w, %w, %w : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

func.func @step(%w: tensor<4xf32> {aten.param = "w"},
    // expected-error@+1 {{unit 'root' has parameters of two types: "w", stored as 'f32' and reduced as 'f32', and "v", stored as 'bf16' and reduced as 'bf16'}}
                %v: tensor<4xbf16> {aten.param = "v"}) -> (tensor<4xf32> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4xf32>
}

// -----

func.func @step(%w: tensor<4xf32> {aten.param = "w"},
    // expected-error@+1 {{unit 'root' has parameters of two types: "w", stored as 'f32' and reduced as 'f32', and "v", stored as 'f32' and reduced as 'bf16'}}
                %v: tensor<4xf32> {aten.param = "v", aten.reduce_dtype = bf16}) -> (tensor<4xf32> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4xf32>
}

// -----

func.func @step(%w: tensor<4xf32> {aten.param = "w"},
    // expected-error@+1 {{unit 'root' has parameters of two types: "w" of 'f32', "v" of 'bf16'}}
                %v: tensor<4xbf16> {aten.param = "v", aten.storage_dtype = f32, aten.reduce_dtype = f32}) -> (tensor<4xf32> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4xf32>
}

// -----

// expected-error@+1 {{expected the strides of a dense tensor of parameter "w"}}
func.func @step(%w: tensor<4x2xf32, #aten.strided<[4, 1]>> {aten.param = "w"}) -> (tensor<4x2xf32, #aten.strided<[4, 1]>> {aten.loss}) attributes {aten.program} {
  return %w : tensor<4x2xf32, #aten.strided<[4, 1]>>
}
