// RUN: fsdp-opt %s --plan-select-kernels --split-input-file --verify-diagnostics | FileCheck %s

// An own kernel that writes its results; keywords that it lacks are dropped.
// Without such a kernel, or with a result that is not there, the hook.
// CHECK-LABEL: plan.module @overloads
plan.module @overloads mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x4xf32>
  %y = plan.buffer transient : tensor<4x4xf32>
  %i = plan.buffer transient : tensor<4xi64>
  %f = plan.buffer transient : tensor<4xf32>
  plan.program @step {
    // CHECK: plan.launch "mm.out"(%[[X:.*]], %[[X]]) -> %{{.*}} <forward> {scope = "m"}
    plan.launch "mm"(%x, %x) -> %y <forward> {scope = "m"}
    // CHECK-NEXT: plan.launch "add.out"(%[[X]], %[[X]], alpha = 2) -> %{{.*}} <forward>
    plan.launch "add.Tensor"(%x, %x, alpha = 2) -> %y <forward>
    // CHECK-NEXT: plan.launch "max.dim_max"(%[[X]], 1) -> %{{.*}}, %{{.*}} <forward>
    plan.launch "max.dim"(%x, 1) -> %f, %i <forward>
    // CHECK-NEXT: plan.launch "native_layer_norm"(%[[X]], [4], none, none, 1.0e-05) -> %{{.*}}, none, none <forward>
    plan.launch "native_layer_norm"(%x, [4], none, none, 1.0e-05) -> %y, none, none <forward>
  }
}

// -----

// Equivalents that write in place.
// CHECK-LABEL: plan.module @equivalents
plan.module @equivalents mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %i = plan.buffer input @step number 1 : tensor<2x3xi64>
  %half = plan.buffer transient : tensor<4x6xbf16>
  %y = plan.buffer transient : tensor<4x6xf32>
  %e = plan.buffer transient : tensor<2x3x6xf32>
  %m = plan.buffer transient : tensor<4x1xf32>
  %half2 = plan.buffer transient : tensor<4x6xbf16>
  plan.program @step {
    // CHECK: plan.copy %[[X:.*]] to %{{.*}} <forward>
    plan.launch "_to_copy"(%x, dtype = bf16) -> %half <forward>
    // CHECK-NEXT: plan.zero %{{.*}} <forward>
    plan.launch "zeros"([4, 6]) -> %y <forward>
    // CHECK-NEXT: plan.launch "fill_.Scalar"(1) -> %{{.*}} <forward>
    plan.launch "ones_like"(%x, pin_memory = false) -> %y <forward>
    // CHECK-NEXT: plan.launch "fill_.Scalar"(-inf) -> %{{.*}} <forward>
    plan.launch "full"([4, 6], -inf, dtype = f32) -> %y <forward>
    // CHECK-NEXT: plan.launch "index_select.out"(%[[X]], 0, %{{.*}}) -> %{{.*}} <forward>
    plan.launch "embedding"(%x, %i) -> %e <forward>
    // CHECK-NEXT: plan.launch "mul.out"(%[[X]], 2.5) -> %{{.*}} <forward>
    plan.launch "mul.Scalar"(%x, 2.5) -> %y <forward>
    // CHECK-NEXT: plan.launch "sum.IntList_out"(%[[X]], [-1], true, dtype = f32) -> %[[M:.*]] <forward>
    // CHECK-NEXT: plan.launch "div.out"(%[[M]], 6) -> %[[M]] <forward>
    plan.launch "mean.dim"(%x, [-1], true) -> %m <forward>
    // CHECK-NEXT: plan.launch "mul.out"(%[[X]], %[[X]]) -> %{{.*}} <forward>
    plan.launch "pow.Tensor_Scalar"(%x, 2) -> %y <forward>
    // CHECK-NEXT: plan.copy %[[X]] to %{{.*}} <forward>
    plan.launch "pow.Tensor_Scalar"(%x, 1.0) -> %y <forward>
    // CHECK-NEXT: plan.launch "pow.Tensor_Scalar_out"(%[[X]], 3) -> %{{.*}} <forward>
    plan.launch "pow.Tensor_Scalar"(%x, 3) -> %y <forward>
    // CHECK-NEXT: plan.launch "pow.Tensor_Scalar_out"(%{{.*}}, 2) -> %{{.*}} <forward>
    plan.launch "pow.Tensor_Scalar"(%half, 2) -> %half2 <forward>
  }
}

// -----

// The gradient of a slice: only what lies outside is zeroed where that is in one
// piece on each side.
// CHECK-LABEL: plan.module @windows
plan.module @windows mesh ["shard" = 1] device cpu {
  %rows = plan.buffer transient : tensor<2x6xf32>
  %columns = plan.buffer transient : tensor<4x3xf32>
  %column = plan.buffer transient : tensor<4x1xf32>
  %row = plan.buffer transient : tensor<6xf32>
  // CHECK-DAG: %[[Y:.*]] = plan.buffer transient : tensor<4x6xf32>
  // CHECK-DAG: %[[HEAD:.*]] = plan.view %[[Y]] at 0 : tensor<1x6xf32>
  // CHECK-DAG: %[[TAIL:.*]] = plan.view %[[Y]] at 72 : tensor<1x6xf32>
  // CHECK-DAG: %[[ROWS:.*]] = plan.view %[[Y]] at 24 : tensor<2x6xf32>
  // CHECK-DAG: %[[COLUMNS:.*]] = plan.view %[[Z:.*]] at 4 : tensor<4x3xf32, #aten.strided<[6, 2]>>
  // CHECK-DAG: %[[COLUMN:.*]] = plan.view %[[Z]] at 8 : tensor<4x1xf32, #aten.strided<[6, 6]>>
  // CHECK-DAG: %[[ROW:.*]] = plan.view %{{.*}} at 72 : tensor<6xf32>
  %y = plan.buffer transient : tensor<4x6xf32>
  %z = plan.buffer transient : tensor<4x6xf32>
  %s = plan.buffer transient : tensor<4x6xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.zero %[[HEAD]] <backward>
    // CHECK-NEXT: plan.zero %[[TAIL]] <backward>
    // CHECK-NEXT: plan.copy %{{.*}} to %[[ROWS]] <backward>
    plan.launch "slice_backward"(%rows, [4, 6], 0, 1, 3, 1) -> %y <backward>
    // CHECK-NEXT: plan.zero %[[Z]] <backward>
    // CHECK-NEXT: plan.copy %{{.*}} to %[[COLUMNS]] <backward>
    plan.launch "slice_backward"(%columns, [4, 6], 1, 1, 9223372036854775807, 2) -> %z <backward>
    // A step may be longer than what it goes through.
    // CHECK-NEXT: plan.zero %[[Z]] <backward>
    // CHECK-NEXT: plan.copy %{{.*}} to %[[COLUMN]] <backward>
    plan.launch "slice_backward"(%column, [4, 6], 1, 2, 6, 9223372036854775807) -> %z <backward>
    // CHECK-NEXT: plan.zero %{{.*}} <backward>
    // CHECK-NEXT: plan.copy %{{.*}} to %[[ROW]] <backward>
    plan.launch "select_backward"(%row, [4, 6], 0, -1) -> %s <backward>
    // CHECK-NEXT: plan.copy %[[Z]] to %[[Y]] <backward>
    // CHECK-NEXT: plan.copy %{{.*}} to %[[ROWS]] <backward>
    plan.launch "slice_scatter"(%z, %rows, 0, 1, 3) -> %y <backward>
  }
}

// -----

// A kernel that ignores the strides of `out` allocates its result, which is
// copied.
// CHECK-LABEL: plan.module @strided
plan.module @strided mesh ["shard" = 1] device cpu {
  %g = plan.buffer transient : tensor<2x3xf32>
  %y = plan.buffer transient : tensor<2x3xf32>
  %dense = plan.buffer transient : tensor<2x3xf32>
  %strided = plan.buffer transient : tensor<2x3xf32, #aten.strided<[1, 2]>>
  plan.program @step {
    // CHECK: plan.launch "_log_softmax_backward_data.out"
    plan.launch "_log_softmax_backward_data"(%g, %y, -1, f32) -> %dense <backward>
    // CHECK: plan.launch "_log_softmax_backward_data"(
    plan.launch "_log_softmax_backward_data"(%g, %y, -1, f32) -> %strided <backward>
    // What goes element by element keeps to them.
    // CHECK: plan.launch "mul.out"
    plan.launch "mul.Tensor"(%g, %y) -> %strided <backward>
  }
}

// -----

// The GPU's mean has a kernel of its own.
// CHECK-LABEL: plan.module @cuda
plan.module @cuda mesh ["shard" = 1] device cuda {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %m = plan.buffer transient : tensor<4x1xf32>
  plan.program @step {
    // CHECK: plan.launch "mean.out"(%{{.*}}, [-1], true) -> %{{.*}} <forward>
    plan.launch "mean.dim"(%x, [-1], true) -> %m <forward>
  }
}

// -----

plan.module @unsafe mesh ["shard" = 1] device cpu {
  %x = plan.buffer transient : tensor<4xf32>
  plan.program @step {
    // expected-error@+1 {{operator 'rand' is not one that a plan may run: it draws random numbers, but takes no generator; make what is drawn an input}}
    plan.launch "rand"([4]) -> %x <forward>
  }
}

// -----

// Draws fill their result in place; what they would fill need not be there, unless somebody reads it.
// CHECK-LABEL: plan.module @draws
plan.module @draws mesh ["shard" = 1] device cpu {
  // CHECK-NEXT: %[[P:.*]] = plan.buffer input
  %p = plan.buffer input @step number 0 : tensor<4xf32>
  // CHECK-NEXT: %[[X:.*]] = plan.buffer transient : tensor<4xf32>
  %e = plan.buffer transient : tensor<4xf32>
  %f = plan.buffer transient : tensor<4xf32>
  %x = plan.buffer transient : tensor<4xf32>
  %y = plan.buffer transient : tensor<4xf32>
  // CHECK: plan.program
  plan.program @step {
    // CHECK-NEXT: plan.launch "normal_"(0.0, 1.0) -> %[[Y:.*]] <forward>
    plan.launch "empty_strided"([4], [1], dtype = f32) -> %e <forward>
    plan.launch "normal_functional"(%e, 0.0, 1.0) -> %y <forward>
    // CHECK-NEXT: plan.launch "neg.out"(%[[P]])
    // CHECK-NEXT: plan.launch "bernoulli_.Tensor"(%[[P]], generator = none) -> %[[Y]] <forward>
    // CHECK-NEXT: plan.launch "add.out"
    plan.launch "neg"(%p) -> %f <forward>
    plan.launch "bernoulli.Tensor"(%f, %p, generator = none) -> %y <forward>
    plan.launch "add.Tensor"(%y, %f) -> %x <forward>
    // CHECK-NEXT: plan.launch "bernoulli.out"(%[[P]]) -> %{{.*}} <forward>
    plan.launch "bernoulli"(%p) -> %y <forward>
  }
}

// -----

// A call that no copy into a window can replace is the kernel's, which rejects it or knows better: a dimension or an index
// that is not there, a source of other sizes, a number for a tensor.
// CHECK-LABEL: plan.module @odd
plan.module @odd mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x3xf32>
  %row = plan.buffer input @step number 1 : tensor<3xf32>
  %y = plan.buffer transient : tensor<4x6xf32>
  plan.program @step {
    // CHECK: plan.launch "slice_backward"(%{{.*}}, [4, 6], 7, 0, 3, 1)
    plan.launch "slice_backward"(%x, [4, 6], 7, 0, 3, 1) -> %y <backward>
    // CHECK-NEXT: plan.launch "slice_backward"(%{{.*}}, [4, 6], 1, 4, 6, 1)
    plan.launch "slice_backward"(%x, [4, 6], 1, 4, 6, 1) -> %y <backward>
    // CHECK-NEXT: plan.launch "slice_backward"(%{{.*}}, [4, 6], 1, 0, 3, -1)
    plan.launch "slice_backward"(%x, [4, 6], 1, 0, 3, -1) -> %y <backward>
    // CHECK-NEXT: plan.launch "select_backward"(%{{.*}}, [4, 6], 0, 9)
    plan.launch "select_backward"(%row, [4, 6], 0, 9) -> %y <backward>
    // CHECK-NEXT: plan.launch "select_backward"(%{{.*}}, [4, 6], 0, 1)
    plan.launch "select_backward"(%row, [4, 6], 0, 1) -> %y <backward>
    // CHECK-NEXT: plan.launch "clone"(3)
    plan.launch "clone"(3) -> %y <forward>
    // CHECK-NEXT: plan.launch "copy"(%{{.*}}, 2.5
    plan.launch "copy"(%y, 2.5) -> %y <forward>
    // CHECK-NEXT: plan.launch "copy"
    plan.launch "copy"(%y, %row) -> %y <forward>
    // CHECK-NEXT: plan.launch "fill.Tensor"
    plan.launch "fill.Tensor"(%y, 2) -> %y <forward>
    // CHECK-NEXT: plan.launch "pow.Tensor_Scalar
    plan.launch "pow.Tensor_Scalar"(2, 1) -> %y <forward>
    // CHECK-NEXT: plan.launch "embedding"
    plan.launch "embedding"(%row, %x) -> %y <forward>
  }
}
