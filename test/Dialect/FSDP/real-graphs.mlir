// Real graphs, from the archive to the scheduled level: U gathers in the forward,
// U - 1 in the backward, as many ends as gathers, U reductions. As in PyTorch.
// DEFINE: %{verify} = --fsdp-verify-scheduled --fsdp-verify-futures

// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard=ranks=4 --fsdp-verify-logical --fsdp-insert-optimizer --fsdp-async --fsdp-prefetch --fsdp-apply-schedule %{verify} -o %t
// RUN: grep -c 'async.unshard .*<forward>' %t | FileCheck %s --check-prefix=THREE
// RUN: grep -c 'async.unshard .*<backward>' %t | FileCheck %s --check-prefix=TWO
// RUN: grep -c 'async.reduce_scatter' %t | FileCheck %s --check-prefix=THREE
// RUN: grep -c 'async.reshard' %t | FileCheck %s --check-prefix=FIVE
// RUN: fsdp-opt %t --cse --canonicalize %{verify} | grep -c 'async.unshard' | FileCheck %s --check-prefix=FIVE

// RUN: fsdp-translate --import-pt2 %fixtures/llama_bf16.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard="ranks=3 storage-dtype=f32 reduce-dtype=f32" --fsdp-insert-optimizer=optimizer=sgd --cse --canonicalize --fsdp-async %{verify} | FileCheck %s --check-prefix=MIXED

// RUN: fsdp-translate --import-pt2 %fixtures/frozen.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard="ranks=4 strategy=shard_grad_op" --fsdp-async --fsdp-prefetch --fsdp-apply-schedule %{verify} -o %t
// RUN: grep -c 'async.unshard' %t | FileCheck %s --check-prefix=THREE
// RUN: FileCheck %s --check-prefix=FROZEN --input-file=%t

// RUN: fsdp-translate --import-pt2 %fixtures/bert.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard="ranks=2 strategy=no_shard" --fsdp-async %{verify} -o %t
// RUN: grep -c 'async.all_reduce @' %t | FileCheck %s --check-prefix=THREE

// THREE: {{^}}3{{$}}
// TWO: {{^}}2{{$}}
// FIVE: {{^}}5{{$}}

// Masters and reductions in fp32, the rest in bf16.
// MIXED: fsdp.unit @{{.*}}layers.0 on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
// MIXED: fsdp.async.unshard @{{.*}} : !fsdp.shard<{{[0-9]+}}xf32, 3> -> !fsdp.future<!fsdp.gathered<{{[0-9]+}}xbf16>>
// MIXED: fsdp.async.reduce_scatter @{{.*}} via f32 %{{.*}} : tensor<{{[0-9]+}}xf32> -> !fsdp.future<!fsdp.shard<{{[0-9]+}}xf32, 3>>

// FROZEN: fsdp.unit @{{.*}}h.0 {{.*}}h.0.attn.c_attn.weight" : 32x96 at {{[0-9]+}} frozen
