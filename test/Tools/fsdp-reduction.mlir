// A program becomes what a script wants of it: here, a valid program with a tanh in it.
// RUN: printf '#!/bin/sh\n%fsdp_tools/fsdp-opt "$1" >/dev/null 2>&1 && grep -q tanh "$1" && exit 1\nexit 0\n' > %t.sh
// RUN: chmod +x %t.sh
// RUN: fsdp-reduce %s --fsdp-reduction="test=%t.sh" | FileCheck %s
// RUN: not fsdp-reduce %s --fsdp-reduction="test=/bin/true" 2>&1 | FileCheck %s --check-prefix=BORING
// RUN: not fsdp-reduce %s --fsdp-reduction 2>&1 | FileCheck %s --check-prefix=BORING

// BORING: error: expected a script with test=FILE that ends with 1 for the whole program
// CHECK-NOT: fsdp.unit
// CHECK: func.func @step() -> tensor<2x4xf32>
// CHECK-NEXT: %[[X:.*]] = aten.call "empty_strided"([2, 4], [4, 1], dtype = f32)
// CHECK-NEXT: %[[Y:.*]] = aten.call "tanh"(%[[X]])
// CHECK-NEXT: return %[[Y]] : tensor<2x4xf32>
// CHECK-NOT: func.func

!p = !fsdp.shard<8xf32, 2>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @step(%p: !p, %x: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %full = fsdp.unshard @u <forward> over ["shard"] %p : !p -> !fsdp.gathered<8xf32>
  %w = fsdp.view %full[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
  %0 = aten.call "mul.Tensor"(%x, %w) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = aten.call "sin"(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = aten.call "tanh"(%1) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = aten.call "add.Tensor"(%2, %x) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %3, %0 : tensor<2x4xf32>, tensor<2x4xf32>
}
func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
