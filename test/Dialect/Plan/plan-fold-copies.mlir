// RUN: fsdp-opt %s --plan-fold-copies --split-input-file | FileCheck %s

// A gradient is computed where it is needed, also if it is laid out the other
// way around and copied as its transpose; a view of it moves along.
// CHECK-LABEL: plan.module @gradients
plan.module @gradients mesh ["shard" = 1] device "cpu" strategy "" {
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
    // CHECK-NEXT: plan.launch "mm.out"() -> %[[A]] <backward>
    plan.launch "mm.out"() -> %a <backward>
    // CHECK-NEXT: plan.launch "sum.out"() -> %[[B]] <backward>
    plan.launch "sum.out"() -> %b <backward>
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
plan.module @copies mesh ["shard" = 1] device "cpu" strategy "" {
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
