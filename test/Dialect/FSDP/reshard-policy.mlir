// What stays gathered behind the forward: the strategies are the two policies, whichever comes first.
// DEFINE: %{shard} = fsdp-opt %S/Inputs/two_blocks.mlir
// RUN: %{shard} --fsdp-shard="ranks=2 strategy=full_shard" -o %t.full.mlir
// RUN: %{shard} --fsdp-shard="ranks=2 strategy=shard_grad_op" -o %t.grad.mlir
// RUN: fsdp-opt %t.grad.mlir --fsdp-reshard-policy | diff %t.full.mlir -
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=after-forward=false | diff %t.grad.mlir -
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=after-forward=true | diff %t.full.mlir -

// Views that CSE has merged are parted again.
// RUN: fsdp-opt %t.grad.mlir --cse --fsdp-reshard-policy --fsdp-verify-logical --fsdp-verify-equivalence | grep -c 'fsdp.unshard' | FileCheck %s --check-prefix=FOUR
// FOUR: 4

// RUN: fsdp-opt %t.grad.mlir --fsdp-reshard-policy --remarks-filter=fsdp-reshard-policy --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=TRUE
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesKept=16, Reason="the backward starts with it", Unit=root
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesGatheredAgain=64, Reason="freed behind the forward", Unit=b.0
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesGatheredAgain=80, Reason="freed behind the forward", Unit=b.1
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=after-forward=false --remarks-filter=fsdp-reshard-policy --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=FALSE
// FALSE: BytesKept=64, Reason="gathered once for both phases", Unit=b.0

// RUN: not fsdp-opt %t.full.mlir --fsdp-reshard-policy=after-forward=2 2>&1 | FileCheck %s --check-prefix=NUMBER
// NUMBER: error: expected after-forward to be 'true' or 'false', got '2': resharding to a group of fewer ranks is not built{{$}}
