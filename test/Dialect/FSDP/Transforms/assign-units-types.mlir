// RUN: fsdp-opt %s -split-input-file --fsdp-assign-units | FileCheck %s
// RUN: fsdp-opt %s -split-input-file --fsdp-assign-units --fsdp-shard=ranks=2 | FileCheck %s --check-prefix=SHARD
// RUN: fsdp-opt %s -split-input-file --fsdp-assign-units "--fsdp-shard=ranks=2 storage-dtype=f64 reduce-dtype=f32" | FileCheck %s --check-prefix=OPTIONS

// Parameters of one unit are stored, computed with and reduced in the same types.
// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.param = "a.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "b.w", {{[^}]*}}fsdp.root, fsdp.unit = "root.bf16"
// CHECK-SAME: aten.param = "c.w", {{[^}]*}}fsdp.root, fsdp.unit = "root.bf16_"
// CHECK-SAME: aten.param = "d.w", {{[^}]*}}fsdp.root, fsdp.unit = "root.bf16"
// SHARD: fsdp.unit @root on {{.*}} storage f32 reduce f32
// SHARD: fsdp.unit @root.bf16 on {{.*}} storage f32 reduce bf16
// SHARD: fsdp.unit @root.bf16_ on {{.*}} storage f32 reduce f32 {{[^{]*}} {root}{{$}}
// OPTIONS-COUNT-3: storage f64 reduce f32
func.func @step(%a: tensor<4xf32> {aten.param = "a.w"},
                %b: tensor<4xbf16> {aten.param = "b.w", aten.storage_dtype = f32},
                %c: tensor<4xbf16> {aten.param = "c.w", aten.storage_dtype = f32, aten.reduce_dtype = f32},
                %d: tensor<4xbf16> {aten.param = "d.w", aten.storage_dtype = f32}) -> (tensor<f32> {aten.loss}) attributes {aten.program} {
  %0 = aten.call "sum"(%a) : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Each program computes in types of its own; where two parameters differ in one of them, they differ.
// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.param = "a.w", {{[^}]*}}fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "b.w", {{[^}]*}}fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "c.w", {{[^}]*}}fsdp.root, fsdp.unit = "root.bf16"
// CHECK-LABEL: func.func @eval
// CHECK-SAME: aten.param = "a.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "b.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "c.w", {{[^}]*}}fsdp.root, fsdp.unit = "root.bf16"
// SHARD-LABEL: func.func @eval(
// SHARD: fsdp.unshard @root <forward> {{.*}} -> !fsdp.gathered<12xf32>
// SHARD: fsdp.unshard @root.bf16 <forward> {{.*}} -> !fsdp.gathered<4xf16>
func.func @step(%a: tensor<4xbf16> {aten.param = "a.w", aten.storage_dtype = f32},
                %b: tensor<4xbf16> {aten.param = "b.w", aten.storage_dtype = f32},
                %c: tensor<4xbf16> {aten.param = "c.w", aten.storage_dtype = f32}) -> (tensor<bf16> {aten.loss}) attributes {aten.program} {
  %0 = aten.call "sum"(%a) : (tensor<4xbf16>) -> tensor<bf16>
  return %0 : tensor<bf16>
}
func.func @eval(%a: tensor<4xf32> {aten.param = "a.w"}, %b: tensor<4xf32> {aten.param = "b.w"},
                %c: tensor<4xf16> {aten.param = "c.w", aten.storage_dtype = f32}) -> (tensor<f32> {aten.loss}) attributes {aten.program} {
  %0 = aten.call "mul.Tensor"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "mul.Tensor"(%0, %c) : (tensor<4xf32>, tensor<4xf16>) -> tensor<4xf32>
  %2 = aten.call "sum"(%1) : (tensor<4xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
