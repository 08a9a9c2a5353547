// RUN: fsdp-opt %s --plan-insert-sync --plan-assign-memory --split-input-file | FileCheck %s
// RUN: fsdp-opt %s --plan-insert-sync --plan-assign-memory --split-input-file --remarks-filter=plan-assign-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// What outlives the step comes first; after it buffers share a place when they
// are never alive at once. %c takes the place of %a, which another stream has
// touched: the compute stream has waited for that.
// CHECK-LABEL: plan.module @places
// REMARK: memory | Category:plan-assign-memory | Function=step | Bound=384, Peak=384
plan.module @places mesh ["shard" = 2] device cpu {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 20 at 0], numel = 20, padded = 20>
  // CHECK: plan.buffer shard @u at 0 : tensor<10xf32>
  %shard = plan.buffer shard @u : tensor<10xf32>
  // CHECK: plan.buffer input @step number 0 at 64 : tensor<3xf32>
  %x = plan.buffer input @step number 0 : tensor<3xf32>
  // CHECK: plan.buffer transient at 128 : tensor<20xf32>
  %a = plan.buffer transient : tensor<20xf32>
  // CHECK: plan.buffer transient at 256 : tensor<20xf32>
  %b = plan.buffer transient : tensor<20xf32>
  // CHECK: plan.buffer transient at 128 : tensor<20xf32>
  %c = plan.buffer transient : tensor<20xf32>
  // CHECK: plan.buffer transient at 256 : tensor<20xf32>
  %d = plan.buffer transient : tensor<20xf32>
  // CHECK: plan.buffer output @step number 0 at 128 : tensor<0xf32>
  %empty = plan.buffer output @step number 0 : tensor<0xf32>
  plan.program @step {
    plan.all_gather @shard_gather %shard to %a of @u <forward> on gather
    plan.launch "neg.out"(%a) -> %b <forward>
    plan.launch "neg.out"(%b) -> %c <forward>
    plan.launch "neg.out"(%c) -> %d <forward>
    plan.launch "neg.out"(%d) -> %empty <forward>
  }
}

// -----

// On a GPU places are coarser. A gradient is alive until the end: somebody may
// want to look at it.
// CHECK-LABEL: plan.module @cuda
plan.module @cuda mesh ["shard" = 1] device cuda {
  plan.unit @u shard [] replicate [0] storage f32 reduce f32
      layout <["w" : 20 at 0], numel = 20, padded = 20>
  // CHECK: plan.buffer shard @u at 0 : tensor<20xf32>
  %shard = plan.buffer shard @u : tensor<20xf32>
  // CHECK: plan.buffer gradient @u at [[G:512|1024]] : tensor<20xf32>
  %g = plan.buffer gradient @u : tensor<20xf32>
  // CHECK-NOT: at [[G]]
  // CHECK: plan.buffer transient at {{512|1024}} : tensor<20xf32>
  %t = plan.buffer transient : tensor<20xf32>
  plan.program @step {
    plan.launch "neg.out"(%shard) -> %g <backward>
    plan.launch "neg.out"(%shard) -> %t <backward>
  }
}

// -----

// Collectives of a group run at once: the second does not write where the first
// still reads.
// CHECK-LABEL: plan.module @group
// CHECK: plan.buffer transient at 64 : tensor<4xf32>
// CHECK: plan.buffer transient at 128 : tensor<8xf32>
// CHECK: plan.buffer transient at 192 : tensor<8xf32>
plan.module @group mesh ["shard" = 2] device cpu {
  plan.communicator @shard_gather axes [0] on gather
  %p = plan.buffer input @step number 0 at 0 : tensor<4xf32>
  %a = plan.buffer transient : tensor<4xf32>
  %full = plan.buffer transient : tensor<8xf32>
  %next = plan.buffer transient : tensor<8xf32>
  plan.program @step {
    plan.copy %p to %a <forward> on gather
    plan.all_gather @shard_gather %a to %full group 0 <forward> on gather
    plan.all_gather @shard_gather %p to %next group 0 <forward> on gather
  }
}

// -----

// The sum of the loss runs beside the backward, and the gather of the next unit
// beside all that is computed: nobody waits for their places, and nothing else
// takes them.
// CHECK-LABEL: plan.module @overlap
// CHECK: plan.buffer transient at [[LOCAL:[0-9]+]] : tensor<f32>
// CHECK: plan.buffer loss
// CHECK-NOT: at [[LOCAL]] :
// CHECK: plan.program
// CHECK-NOT: on gather{{$}}
// CHECK: plan.all_gather
plan.module @overlap mesh ["shard" = 2] device cpu {
  plan.communicator @shard_all_reduce axes [0] on all_reduce
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 20 at 0], numel = 20, padded = 20>
  %shard = plan.buffer shard @u : tensor<10xf32>
  %x = plan.buffer input @step number 0 : tensor<20xf32>
  %big = plan.buffer transient : tensor<200xf32>
  %local = plan.buffer transient : tensor<f32>
  %mean = plan.buffer loss @step : tensor<f32>
  %a = plan.buffer transient : tensor<20xf32>
  %b = plan.buffer transient : tensor<20xf32>
  %full = plan.buffer transient : tensor<20xf32>
  %c = plan.buffer transient : tensor<20xf32>
  plan.program @step {
    plan.zero %big <forward>
    plan.launch "sum.IntList_out"(%x, []) -> %local <forward>
    plan.all_reduce @shard_all_reduce divide <pre = 1, post = 2> via f32 %local to %mean for loss <forward> on all_reduce
    plan.launch "neg.out"(%x) -> %a <backward>
    plan.launch "neg.out"(%a) -> %b <backward>
    plan.all_gather @shard_gather %shard to %full of @u <backward> on gather
    plan.launch "neg.out"(%b) -> %c <backward>
    plan.launch "neg.out"(%full) -> %c <backward>
  }
}
