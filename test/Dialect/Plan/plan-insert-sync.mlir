// RUN: fsdp-opt %s --plan-insert-sync --split-input-file | FileCheck %s

// The compute stream waits for the gather at its first use, once.
// CHECK-LABEL: plan.module @gather
plan.module @gather mesh ["shard" = 2] device cpu {
  plan.communicator @shard_gather axes [0] on gather
  %p = plan.buffer transient at 0 : tensor<4xf32>
  %full = plan.buffer transient at 64 : tensor<8xf32>
  %w = plan.view %full at 0 : tensor<4xf32>
  %x = plan.buffer transient at 128 : tensor<4xf32>
  %y = plan.buffer transient at 192 : tensor<4xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.all_gather
    plan.all_gather @shard_gather %p to %full <forward> on gather
    // CHECK-NEXT: %[[E:.*]] = plan.record <forward> on gather
    // CHECK-NEXT: plan.launch "a"
    plan.launch "a"() -> %x <forward>
    // CHECK-NEXT: plan.wait %[[E]] <forward>
    // CHECK-NEXT: plan.launch "mul.out"
    plan.launch "mul.out"(%x, %w) -> %y <forward>
    // CHECK-NEXT: plan.launch "mul.out"
    // CHECK-NEXT: }
    plan.launch "mul.out"(%y, %w) -> %x <forward>
  }
}

// -----

// A place that another stream has used is taken over only when that is done:
// the second gather waits for the last reader of what was there.
// CHECK-LABEL: plan.module @reuse
plan.module @reuse mesh ["shard" = 2] device cpu {
  plan.communicator @shard_gather axes [0] on gather
  %p = plan.buffer transient at 0 : tensor<4xf32>
  %full = plan.buffer transient at 64 : tensor<8xf32>
  %next = plan.buffer transient at 64 after %full : tensor<8xf32>
  %y = plan.buffer transient at 128 : tensor<8xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK: plan.launch "neg.out"
    // CHECK-NEXT: plan.launch "neg.out"
    // CHECK-NEXT: %[[E:.*]] = plan.record <backward>
    // CHECK-NEXT: plan.wait %[[E]] <backward> on gather
    // CHECK-NEXT: plan.all_gather
    plan.all_gather @shard_gather %p to %full <forward> on gather
    plan.launch "neg.out"(%full) -> %y <forward>
    plan.launch "neg.out"(%full) -> %y <backward>
    plan.all_gather @shard_gather %p to %next <backward> on gather
  }
}

// -----

// Three streams in a row: the third knows through the second what the first has
// done, and does not wait for it as well.
// CHECK-LABEL: plan.module @chain
plan.module @chain mesh ["shard" = 2] device cpu {
  plan.communicator @shard axes [0] on gather
  %a = plan.buffer transient at 0 : tensor<8xf32>
  %b = plan.buffer transient at 64 : tensor<8xf32>
  %c = plan.buffer transient at 128 : tensor<4xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.launch "x"
    // CHECK-NEXT: %[[E1:.*]] = plan.record <forward>
    plan.launch "x"() -> %a <forward>
    // CHECK-NEXT: plan.wait %[[E1]] <forward> on reduce
    // CHECK-NEXT: plan.copy
    // CHECK-NEXT: %[[E2:.*]] = plan.record <forward> on reduce
    plan.copy %a to %b <forward> on reduce
    // CHECK-NEXT: plan.wait %[[E2]] <forward> on all_reduce
    // CHECK-NEXT: plan.launch "y"
    // CHECK-NEXT: }
    plan.launch "y"(%a, %b) -> %c <forward> on all_reduce
  }
}

// -----

// Two readers are not ordered among each other; who overwrites what they read
// waits for the one on the other stream.
// CHECK-LABEL: plan.module @readers
plan.module @readers mesh ["shard" = 2] device cpu {
  %a = plan.buffer input @step number 0 at 0 : tensor<8xf32>
  %b = plan.buffer transient at 64 : tensor<8xf32>
  %c = plan.buffer transient at 128 : tensor<8xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.copy
    // CHECK-NEXT: %[[E:.*]] = plan.record <forward> on copy
    plan.copy %a to %b <forward> on copy
    // CHECK-NEXT: plan.copy
    plan.copy %a to %c <forward>
    // CHECK-NEXT: plan.wait %[[E]] <forward>
    // CHECK-NEXT: plan.zero
    // CHECK-NEXT: }
    plan.zero %a <forward>
  }
}

// -----

// Collectives of a group start together, when all may, and are done together.
// CHECK-LABEL: plan.module @group
plan.module @group mesh ["shard" = 2] device cpu {
  plan.communicator @shard_reduce axes [0] on reduce
  %a = plan.buffer transient at 0 : tensor<8xf32>
  %b = plan.buffer transient at 64 : tensor<8xf32>
  %x = plan.buffer transient at 128 : tensor<4xf32>
  %y = plan.buffer transient at 192 : tensor<4xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.launch "a"
    // CHECK-NEXT: plan.launch "b"
    // CHECK-NEXT: %[[MADE:.*]] = plan.record <backward>
    // CHECK-NEXT: plan.wait %[[MADE]] <backward> on reduce
    // CHECK-NEXT: plan.reduce_scatter {{.*}} group 0
    // CHECK-NEXT: plan.reduce_scatter {{.*}} group 0
    // CHECK-NEXT: %[[DONE:.*]] = plan.record <backward> on reduce
    // CHECK-NEXT: plan.wait %[[DONE]] <backward>
    // CHECK-NEXT: plan.launch "c"
    // CHECK-NEXT: plan.launch "c"
    // CHECK-NEXT: }
    plan.launch "a"() -> %a <backward>
    plan.launch "b"() -> %b <backward>
    plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %a to %x group 0 <backward> on reduce
    plan.reduce_scatter @shard_reduce divide <pre = 2, post = 1> via f32 %b to %y group 0 <backward> on reduce
    plan.launch "c"(%x) <backward>
    plan.launch "c"(%y) <backward>
  }
}

// -----

// Groups of four and of two share ranks: their collectives wait for each other,
// though they have no memory in common. A sum over the other axis does not.
// CHECK-LABEL: plan.module @groups
plan.module @groups mesh ["replicate" = 2, "shard" = 2, "local" = 2] device cpu {
  plan.communicator @all_reduce axes [1, 2] on reduce
  plan.communicator @local_gather axes [2] on gather
  plan.communicator @replicate_all_reduce axes [0] on all_reduce
  %piece = plan.buffer transient at 0 : tensor<4xf32>
  %full = plan.buffer transient at 64 : tensor<8xf32>
  %flat = plan.buffer transient at 128 : tensor<8xf32>
  %g = plan.buffer transient at 192 : tensor<2xf32>
  %x = plan.buffer transient at 256 : tensor<4xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.all_gather @local_gather
    plan.all_gather @local_gather %piece to %full <backward> on gather
    // CHECK-NEXT: %[[GATHERED:.*]] = plan.record <backward> on gather
    // CHECK-NEXT: plan.wait %[[GATHERED]] <backward> on reduce
    // CHECK-NEXT: plan.reduce_scatter @all_reduce
    plan.reduce_scatter @all_reduce divide <pre = 1, post = 4> via f32 %flat to %g <backward> on reduce
    // CHECK-NEXT: %[[REDUCED:.*]] = plan.record <backward> on reduce
    // CHECK-NEXT: plan.all_reduce @replicate_all_reduce
    plan.all_reduce @replicate_all_reduce divide <pre = 1, post = 2> via f32 %x to %x <backward> on all_reduce
    // CHECK-NEXT: plan.wait %[[REDUCED]] <backward> on gather
    // CHECK-NEXT: plan.all_gather @local_gather
    // CHECK-NEXT: }
    plan.all_gather @local_gather %piece to %full <backward> on gather
  }
}

// -----

// The forward waits for its own gather, though it has waited for a later one:
// that is the backward's, and not there when the forward runs alone.
// CHECK-LABEL: plan.module @alone
plan.module @alone mesh ["shard" = 2] device cpu {
  plan.communicator @shard_gather axes [0] on gather
  %p = plan.buffer transient at 0 : tensor<4xf32>
  %q = plan.buffer transient at 32 : tensor<4xf32>
  %full = plan.buffer transient at 64 : tensor<8xf32>
  %again = plan.buffer transient at 128 : tensor<8xf32>
  %y = plan.buffer transient at 256 : tensor<8xf32>
  // CHECK: plan.program @step
  plan.program @step {
    // CHECK-NEXT: plan.all_gather
    // CHECK-NEXT: %[[FULL:.*]] = plan.record <forward> on gather
    plan.all_gather @shard_gather %p to %full <forward> on gather
    // CHECK-NEXT: plan.all_gather
    // CHECK-NEXT: %[[AGAIN:.*]] = plan.record <backward> on gather
    plan.all_gather @shard_gather %q to %again <backward> on gather
    // CHECK-NEXT: plan.wait %[[AGAIN]] <forward>
    // CHECK-NEXT: plan.launch "a"
    plan.launch "a"() -> %q <forward>
    // CHECK-NEXT: plan.wait %[[FULL]] <forward>
    // CHECK-NEXT: plan.launch "neg.out"
    plan.launch "neg.out"(%full) -> %y <forward>
  }
}

// -----

// An output that is copied after the update does not rely on what the update
// has waited for: a step may run without it.
// CHECK-LABEL: plan.module @without_update
plan.module @without_update mesh ["shard" = 2] device cpu {
  plan.communicator @shard_reduce axes [0] on reduce
  %x = plan.buffer transient at 0 : tensor<8xf32>
  %flat = plan.buffer transient at 64 : tensor<8xf32>
  %g = plan.buffer transient at 128 : tensor<4xf32>
  %p = plan.buffer transient at 192 : tensor<4xf32>
  %y = plan.buffer transient at 64 after %flat : tensor<8xf32>
  // CHECK: plan.program @step
  plan.program @step {
    plan.launch "neg.out"(%x) -> %flat <backward>
    // CHECK: plan.reduce_scatter
    plan.reduce_scatter @shard_reduce divide <pre = 1, post = 2> via f32 %flat to %g <backward> on reduce
    // CHECK-NEXT: %[[REDUCED:.*]] = plan.record <backward> on reduce
    // CHECK-NEXT: plan.wait %[[REDUCED]] <update>
    // CHECK-NEXT: plan.launch "neg.out"
    plan.launch "neg.out"(%g) -> %p <update>
    // CHECK-NEXT: plan.wait %[[REDUCED]] <forward>
    // CHECK-NEXT: plan.copy
    plan.copy %x to %y <forward>
  }
}
