// RUN: fsdp-opt %s --plan-fold-copies --split-input-file | FileCheck %s

// A gradient is computed where it is needed, also if it is laid out the other
// way around and copied as its transpose; a view of it moves along.
// CHECK-LABEL: plan.module @gradients
plan.module @gradients mesh ["shard" = 1] device cpu {
  %a = plan.buffer transient : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %at = plan.view %a at 0 : tensor<4x6xf32>
  %b = plan.buffer transient : tensor<8xf32>
  %b0 = plan.view %b at 16 : tensor<4xf32>
  %y = plan.buffer transient : tensor<4xf32>
  // CHECK: %[[FLAT:.*]] = plan.buffer transient : tensor<32xf32>
  %flat = plan.buffer transient : tensor<32xf32>
  // CHECK-DAG: %[[A:.*]] = plan.view %[[FLAT]] at 0 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %placeA = plan.view %flat at 0 : tensor<4x6xf32>
  // CHECK-DAG: %[[B:.*]] = plan.view %[[FLAT]] at 96 : tensor<8xf32>
  %placeB = plan.view %flat at 96 : tensor<8xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.launch "rand.out"({{\[6, 4\]}}) -> %[[A]] <backward>
    plan.launch "rand.out"([6, 4]) -> %a <backward>
    // CHECK-NEXT: plan.launch "rand.out"({{\[8\]}}) -> %[[B]] <backward>
    plan.launch "rand.out"([8]) -> %b <backward>
    // CHECK-NEXT: plan.launch "neg.out"(%{{.*}}) -> %{{.*}} <backward>
    plan.launch "neg.out"(%b0) -> %y <backward>
    // CHECK-NEXT: }
    plan.copy %at to %placeA <backward>
    plan.copy %b to %placeB <backward>
  }
}

// -----

// What stays a copy: a window of other strides or another type, a part of a
// buffer, the second place of one gradient, and a place that is in use.
// CHECK-LABEL: plan.module @copies
plan.module @copies mesh ["shard" = 1] device cpu {
  %a = plan.buffer transient : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %b = plan.buffer transient : tensor<8xbf16>
  %c = plan.buffer transient : tensor<8xf32>
  %half = plan.view %c at 0 : tensor<4xf32>
  %d = plan.buffer transient : tensor<8xf32>
  %e = plan.buffer transient : tensor<4xf32>
  %flat = plan.buffer transient : tensor<64xf32>
  %mean = plan.buffer model_buffer "mean" : tensor<4xf32>
  %p0 = plan.view %flat at 0 : tensor<6x4xf32>
  %p1 = plan.view %flat at 96 : tensor<8xf32>
  %p2 = plan.view %flat at 128 : tensor<4xf32>
  %p3 = plan.view %flat at 160 : tensor<8xf32>
  %p4 = plan.view %flat at 192 : tensor<8xf32>
  plan.program @step {
    // CHECK-COUNT-5: plan.launch
    plan.launch "a"() -> %a <backward>
    plan.launch "b"() -> %b <backward>
    plan.launch "c"() -> %c <backward>
    plan.launch "d"() -> %d <backward>
    plan.launch "e"() -> %e <backward>
    // CHECK-COUNT-5: plan.copy
    // CHECK-NOT: plan.copy
    plan.copy %a to %p0 <backward>
    plan.copy %b to %p1 <backward>
    plan.copy %half to %p2 <backward>
    plan.copy %d to %p3 <backward>
    plan.copy %d to %p4 <backward>
    plan.launch "f"(%mean) -> %c <backward>
    plan.copy %e to %mean <backward>
  }
}

// -----

// What rounds once for each element does so anywhere: a transposed result is
// written as it is needed, and a window between zeros after the zeros.
// CHECK-LABEL: plan.module @exact
plan.module @exact mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %sum = plan.buffer transient : tensor<4x6xf32>
  %turned = plan.view %sum at 0 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  // CHECK-DAG: %[[OUT:.*]] = plan.buffer output @step number 0 : tensor<6x4xf32>
  // CHECK-DAG: %[[SUM:.*]] = plan.view %[[OUT]] at 0 : tensor<4x6xf32, #aten.strided<[1, 4]>>
  %out = plan.buffer output @step number 0 : tensor<6x4xf32>
  %half = plan.view %x at 0 : tensor<4x3xf32, #aten.strided<[6, 1]>>
  %minus = plan.buffer transient : tensor<4x3xf32>
  // CHECK-DAG: %[[WIDE:.*]] = plan.buffer transient : tensor<4x6xf32>
  // CHECK-DAG: %[[RIGHT:.*]] = plan.view %[[WIDE]] at 12 : tensor<4x3xf32, #aten.strided<[6, 1]>>
  %wide = plan.buffer transient : tensor<4x6xf32>
  %right = plan.view %wide at 12 : tensor<4x3xf32, #aten.strided<[6, 1]>>
  %y = plan.buffer output @step number 1 : tensor<4x6xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.launch "add.out"(%{{.*}}, %{{.*}}, 1) -> %[[SUM]] <forward>
    plan.launch "add.out"(%x, %x, 1) -> %sum <forward>
    plan.copy %turned to %out <forward>
    // CHECK-NEXT: plan.zero %[[WIDE]] <forward>
    // CHECK-NEXT: plan.launch "neg.out"(%{{.*}}) -> %[[RIGHT]] <forward>
    plan.launch "neg.out"(%half) -> %minus <forward>
    plan.zero %wide <forward>
    plan.copy %minus to %right <forward>
    // CHECK-NEXT: plan.launch "exp.out"(%[[WIDE]]) -> %{{.*}} <forward>
    plan.launch "exp.out"(%wide) -> %y <forward>
    // CHECK-NEXT: }
  }
}

// -----

// Other strides: not for a kernel that has its own way with vectors, nor for a
// sum with a factor, nor if somebody else reads the result. And zeros do not go
// ahead of what is needed of the buffer they are in.
// CHECK-LABEL: plan.module @inexact
plan.module @inexact mesh ["shard" = 1] device cpu {
  %x = plan.buffer input @step number 0 : tensor<4x6xf32>
  %a = plan.buffer transient : tensor<4x6xf32>
  %at = plan.view %a at 0 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %b = plan.buffer transient : tensor<4x6xf32>
  %bt = plan.view %b at 0 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %c = plan.buffer transient : tensor<4x6xf32>
  %ct = plan.view %c at 0 : tensor<6x4xf32, #aten.strided<[1, 6]>>
  %d = plan.buffer transient : tensor<4x3xf32>
  %half = plan.view %x at 0 : tensor<4x3xf32, #aten.strided<[6, 1]>>
  %0 = plan.buffer output @step number 0 : tensor<6x4xf32>
  %1 = plan.buffer output @step number 1 : tensor<6x4xf32>
  %2 = plan.buffer output @step number 2 : tensor<6x4xf32>
  %3 = plan.buffer output @step number 3 : tensor<4x6xf32>
  %wide = plan.buffer transient : tensor<4x6xf32>
  %right = plan.view %wide at 12 : tensor<4x3xf32, #aten.strided<[6, 1]>>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.launch "exp.out"
    // CHECK-NEXT: plan.copy
    plan.launch "exp.out"(%x) -> %a <forward>
    plan.copy %at to %0 <forward>
    // CHECK-NEXT: plan.launch "add.out"
    // CHECK-NEXT: plan.copy
    plan.launch "add.out"(%x, %x, 2) -> %b <forward>
    plan.copy %bt to %1 <forward>
    // CHECK-NEXT: plan.launch "neg.out"
    // CHECK-NEXT: plan.copy
    // CHECK-NEXT: plan.launch "exp.out"
    plan.launch "neg.out"(%x) -> %c <forward>
    plan.copy %ct to %2 <forward>
    plan.launch "exp.out"(%c) -> %wide <forward>
    // CHECK-NEXT: plan.launch "neg.out"
    // CHECK-NEXT: plan.launch "exp.out"
    // CHECK-NEXT: plan.zero
    // CHECK-NEXT: plan.copy
    plan.launch "neg.out"(%half) -> %d <forward>
    plan.launch "exp.out"(%wide) -> %3 <forward>
    plan.zero %wide <forward>
    plan.copy %d to %right <forward>
    plan.launch "exp.out"(%wide) -> %3 <forward>
  }
}
