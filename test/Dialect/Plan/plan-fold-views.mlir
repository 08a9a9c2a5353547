// covers: Tensor
// RUN: fsdp-opt %s --plan-fold-views --split-input-file --verify-diagnostics | FileCheck %s

// Offsets in types count from the start of the storage: that of %w is where the
// parameter lies in %full, and its views add up from there.
// CHECK-LABEL: plan.module @offsets
plan.module @offsets mesh ["shard" = 1] device cpu {
  // CHECK: %[[FULL:.*]] = plan.buffer transient : tensor<64xf32>
  %full = plan.buffer transient : tensor<64xf32>
  %w = plan.view %full at 32 : tensor<4x6xf32>
  // CHECK-NEXT: %[[T:.*]] = plan.view %[[FULL]] at 32 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %t = plan.buffer transient : tensor<6x4xf32, #aten.strided<[1, 6]>>
  // CHECK-NEXT: %[[S:.*]] = plan.view %[[FULL]] at 40 : tensor<3x4xf32, #aten.strided<[1, 6]>>
  %s = plan.buffer transient : tensor<3x4xf32, #aten.strided<[1, 6], offset = 2>>
  // CHECK-NEXT: %[[R:.*]] = plan.view %[[FULL]] at 44 : tensor<4xf32, #aten.strided<[6]>>
  %r = plan.buffer transient : tensor<4xf32, #aten.strided<[6], offset = 3>>
  // CHECK-NEXT: %[[Y:.*]] = plan.buffer transient : tensor<4xf32>
  %y = plan.buffer transient : tensor<4xf32>
  // CHECK-NEXT: plan.program @step
  plan.program @step {
    plan.launch "t"(%w) -> %t <forward>
    plan.launch "slice.Tensor"(%t, 0, 2, 5) -> %s <forward>
    plan.launch "select.int"(%s, 0, 1) -> %r <forward>
    // CHECK-NEXT: plan.launch "neg"(%[[R]]) -> %[[Y]] <forward>
    plan.launch "neg"(%r) -> %y <forward>
    // CHECK-NEXT: plan.launch "mm"(%[[T]], %[[S]]) -> %{{.*}} <forward>
    plan.launch "mm"(%t, %s) -> %y <forward>
  }
}

// -----

// The transpose of a transpose is the buffer itself; a list of views is a list
// of windows.
// CHECK-LABEL: plan.module @back
plan.module @back mesh ["shard" = 1] device cpu {
  // CHECK: %[[X:.*]] = plan.buffer input @step number 0 : tensor<4x6xf32>
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %t = plan.buffer transient : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %tt = plan.buffer transient : tensor<4x6xf32>
  // CHECK-DAG: %[[A:.*]] = plan.view %[[X]] at 0 : tensor<4x2xf32, #aten.strided<[6, 1]>>
  %a = plan.buffer transient : tensor<4x2xf32, #aten.strided<[6, 1]>>
  // CHECK-DAG: %[[B:.*]] = plan.view %[[X]] at 8 : tensor<4x4xf32, #aten.strided<[6, 1]>>
  %b = plan.buffer transient : tensor<4x4xf32, #aten.strided<[6, 1], offset = 2>>
  %y = plan.buffer transient : tensor<4x2xf32>
  plan.program @step {
    plan.launch "t"(%x) -> %t <forward>
    plan.launch "t"(%t) -> %tt <forward>
    plan.launch "split_with_sizes"(%tt, [2, 4], -1) -> %a, %b <forward>
    // CHECK: plan.launch "cat"([%[[A]], %[[B]], %[[X]]], 1) -> %{{.*}} <forward>
    plan.launch "cat"([%a, %b, %tt], 1) -> %y <forward>
  }
}

// -----

// A copy that changes nothing is its source, and a view of it has a storage of
// its own. One that changes the type or the strides stays, and so does one of
// what the step overwrites.
// CHECK-LABEL: plan.module @copies
plan.module @copies mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  // CHECK-DAG: %[[MEAN:.*]] = plan.buffer model_buffer "mean" : tensor<6xf32>
  %mean = plan.buffer model_buffer "mean" : tensor<6xf32>
  %row = plan.buffer transient : tensor<6xf32, #aten.strided<[1], offset = 12>>
  %copy = plan.buffer transient : tensor<6xf32>
  // CHECK-DAG: %[[TAIL:.*]] = plan.view %{{.*}} at 56 : tensor<4xf32>
  %tail = plan.buffer transient : tensor<4xf32, #aten.strided<[1], offset = 2>>
  %half = plan.buffer transient : tensor<4xbf16>
  %old = plan.buffer transient : tensor<6xf32>
  plan.program @step {
    plan.launch "select.int"(%x, 0, 2) -> %row <forward>
    plan.launch "clone"(%row) -> %copy <forward>
    plan.launch "slice.Tensor"(%copy, 0, 2, 6) -> %tail <forward>
    // CHECK: plan.launch "_to_copy"(%[[TAIL]], dtype = bf16) -> %{{.*}} <forward>
    plan.launch "_to_copy"(%tail, dtype = bf16) -> %half <forward>
    // CHECK-NEXT: plan.launch "clone"(%[[MEAN]]) -> %{{.*}} <forward>
    plan.launch "clone"(%mean) -> %old <forward>
  }
}

// -----

// What is asserted of a tensor holds, and is gone.
// CHECK-LABEL: plan.module @asserted
plan.module @asserted mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  // CHECK: plan.program @step {
  // CHECK-NEXT: }
  plan.program @step {
    plan.launch "_assert_tensor_metadata"(%x, [4, 6], [6, 1], f32) <forward>
    plan.launch "_assert_tensor_metadata"(%x, none, none, f32, device = cpu, layout = strided) <forward>
  }
}

// -----

// The first power is its base, in whatever way the exponent is spelled.
// CHECK-LABEL: plan.module @powers
plan.module @powers mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %y = plan.buffer transient : tensor<4x6xf32>
  %z = plan.buffer transient : tensor<4x6xf32>
  %a = plan.buffer transient : tensor<4x6xf32>
  %b = plan.buffer transient : tensor<4x6xf32>
  // CHECK: plan.program @step
  plan.program @step {
    plan.launch "pow.Tensor_Scalar"(%x, 1) -> %y <forward>
    plan.launch "pow.Tensor_Scalar"(%y, 1.0) -> %z <forward>
    // CHECK-NEXT: plan.launch "neg"(%[[X:.*]]) -> %{{.*}} <forward>
    plan.launch "neg"(%z) -> %a <forward>
    // CHECK-NEXT: plan.launch "pow.Tensor_Scalar"(%[[X]], 2) -> %{{.*}} <forward>
    plan.launch "pow.Tensor_Scalar"(%z, 2) -> %b <forward>
    // CHECK-NEXT: }
  }
}

// -----

plan.module @wrong mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  plan.program @step {
    // expected-error@+1 {{expected elements of 'bf16', found 'f32'}}
    plan.launch "_assert_tensor_metadata"(%x, none, none, bf16) <forward>
  }
}

// -----

plan.module @wrong mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  plan.program @step {
    // expected-error@+1 {{expected sizes [6, 4], found [4, 6]}}
    plan.launch "_assert_tensor_metadata"(%x, [6, 4]) <forward>
  }
}

// -----

// A type that says more than there is.
plan.module @outside mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  // expected-error@+1 {{C3: expected a window inside of 96 bytes, got [80, 104)}}
  %row = plan.buffer transient : tensor<6xf32, #aten.strided<[1], offset = 20>>
  %y = plan.buffer transient : tensor<6xf32>
  plan.program @step {
    plan.launch "select.int"(%x, 0, 2) -> %row <forward>
    plan.launch "neg"(%row) -> %y <forward>
  }
}

// -----

// A view of a buffer that is a view already, and one of itself.
plan.module @twice mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %y = plan.buffer transient : tensor<24xf32>
  plan.program @step {
    // expected-error@+1 {{expected each result of a view to be a transient buffer that nothing else writes}}
    plan.launch "view"(%x, [24]) -> %y <forward>
    plan.launch "view"(%x, [24]) -> %y <forward>
  }
}

// -----

plan.module @itself mesh ["shard" = 1] device cpu {
  %x = plan.buffer transient : tensor<24xf32>
  plan.program @step {
    // expected-error@+1 {{expected each result of a view to be a transient buffer that nothing else writes}}
    plan.launch "view"(%x, [24]) -> %x <forward>
  }
}

// -----

plan.module @pieces mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %y = plan.buffer transient : tensor<2x6xf32>
  plan.program @step {
    // expected-error@+1 {{expected each result of a view to be a transient buffer that nothing else writes}}
    plan.launch "split.Tensor"(%x, 2) -> %y, %y <forward>
  }
}

// -----

plan.module @number mesh ["shard" = 1] device cpu {
  plan.program @step {
    // expected-error@+1 {{expected a tensor, found a constant}}
    plan.launch "_assert_tensor_metadata"(3, [1]) <forward>
  }
}
