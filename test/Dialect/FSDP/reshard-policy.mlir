// What stays gathered after the forward: the strategies are the two policies, whichever comes first.
// covers: _post_forward_reshard, RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES
// covers: _should_free_in_backward, reshard_after_forward=None
// DEFINE: %{shard} = fsdp-opt %S/Inputs/two_blocks.mlir
// RUN: %{shard} --fsdp-shard="ranks=2 strategy=full_shard" -o %t.full.mlir
// RUN: %{shard} --fsdp-shard="ranks=2 strategy=shard_grad_op" -o %t.grad.mlir
// RUN: fsdp-opt %t.grad.mlir --fsdp-reshard-policy | diff %t.full.mlir -
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=reshard-after-forward=false | diff %t.grad.mlir -
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=reshard-after-forward=true | diff %t.full.mlir -

// Views that CSE has merged are parted again.
// RUN: fsdp-opt %t.grad.mlir --cse --fsdp-reshard-policy --fsdp-verify-logical --fsdp-verify-equivalence | grep -c 'fsdp.unshard' | FileCheck %s --check-prefix=FOUR
// FOUR: {{^}}4{{$}}

// RUN: fsdp-opt %t.grad.mlir --fsdp-reshard-policy --remarks-filter=fsdp-reshard-policy --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=TRUE
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesKept=16, Reason="the backward starts with it", Unit=root
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesGatheredAgain=64, Reason="freed after the forward", Unit=b.0
// TRUE: reshard | Category:fsdp-reshard-policy | Function=step | BytesGatheredAgain=80, Reason="freed after the forward", Unit=b.1
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=reshard-after-forward=false --remarks-filter=fsdp-reshard-policy --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=FALSE
// FALSE: BytesKept=64, Reason="gathered once for both phases", Unit=b.0


// A number of ranks: the mesh is split, what is over all ranks is over both parts, and the backward gathers the pieces
// that the forward keeps. The root, with which the backward begins, stays gathered, and b.0 is not read again.
// RUN: %{shard} --fsdp-shard=ranks=4 -o %t.four.mlir
// RUN: fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=2 --fsdp-verify-logical --fsdp-verify-equivalence -o %t.two.mlir
// RUN: FileCheck %s --check-prefix=TWO --input-file=%t.two.mlir
// TWO: fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
// TWO-LABEL: func.func @step(
// TWO: fsdp.unshard @b.0 <forward> over ["shard", "local"] %{{.*}} : !fsdp.shard<16xf32, 4> -> !fsdp.gathered<16xf32>
// TWO: %[[FULL:.*]] = fsdp.unshard @b.1 <forward> over ["shard", "local"]
// TWO-NEXT: %[[PIECE:.*]] = fsdp.piece @b.1 over ["local"] %[[FULL]] : !fsdp.gathered<[[N:.*]]xf32> -> !fsdp.shard<[[N]]xf32, 2>
// TWO: fsdp.all_reduce on @mesh for loss over ["replicate", "shard", "local"] divide <pre = 1, post = 4>
// TWO: fsdp.reduce_scatter @root over ["shard", "local"]
// TWO: fsdp.unshard @b.1 <backward> over ["local"] %[[PIECE]] : !fsdp.shard<[[N]]xf32, 2> -> !fsdp.gathered<[[N]]xf32>
// TWO-NOT: fsdp.unshard

// What is recomputed reads the same: nobody gathers a resharded unit over all ranks in the backward.
// RUN: fsdp-opt %t.two.mlir --cse --canonicalize --fsdp-verify-logical --fsdp-verify-equivalence | grep -c 'fsdp.piece\|<backward> over \["local"\]' | FileCheck %s --check-prefix=KEPT
// KEPT: {{^}}2{{$}}

// At the scheduled level, a piece is taken where its unit ends, and its bytes count until it is gathered again.
// RUN: fsdp-opt %t.two.mlir --fsdp-async --fsdp-prefetch --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence | FileCheck %s --check-prefix=ASYNC
// ASYNC: %[[FULL:.*]] = fsdp.async.wait {{.*}}gathered
// ASYNC: aten.call "add.Tensor"
// ASYNC-NEXT: %[[PIECE:.*]] = fsdp.piece @b.1 over ["local"] %[[FULL:.*]] :
// ASYNC-NEXT: fsdp.async.reshard %[[FULL]]
// ASYNC: fsdp.async.unshard @b.1 <backward> over ["local"] %[[PIECE]]

// RUN: fsdp-opt %t.two.mlir --fsdp-async --fsdp-verify-memory --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=MEMORY
// MEMORY: alive | Category:fsdp-verify-memory | Function=step | Bytes=40, Values=1, What="piece of unit 'b.1'"

// It costs a copy: 500 + 2 * 40 / 50.
// RUN: fsdp-opt %t.two.mlir --fsdp-async --fsdp-annotate-costs | FileCheck %s --check-prefix=COST
// COST: fsdp.piece @b.1 {{.*}} {fsdp.cost = 502 : i64}

// RUN: fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=2 --remarks-filter=fsdp-reshard-policy --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=SMALL
// SMALL: BytesKept=16, Reason="the backward starts with it", Unit=root
// SMALL: BytesGatheredAgain=64, Reason="freed after the forward", Unit=b.0
// SMALL: BytesGatheredAgain=80, BytesKept=40, Ranks=2, Reason="a piece is kept, and gathered again in a small group", Unit=b.1

// All ranks are one group: the same as true. One rank keeps all: the same as false.
// RUN: fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=4 | diff %t.four.mlir -
// RUN: fsdp-opt %t.full.mlir --fsdp-reshard-policy=reshard-after-forward=1 | diff %t.grad.mlir -

// RUN: not fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=3 2>&1 | FileCheck %s --check-prefix=THREE
// THREE: error: expected reshard-after-forward to be a number of ranks that divides the 4 shards, got 3{{$}}
// RUN: not fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=0 2>&1 | FileCheck %s --check-prefix=ZERO
// ZERO: for the --reshard-after-forward option: expected true, false, auto or a number of ranks; found '0'
// RUN: not fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=auto 2>&1 | FileCheck %s --check-prefix=AUTO
// AUTO: error: expected reshard-after-forward to be true, false or a number of ranks, got auto
// RUN: not fsdp-opt %t.four.mlir --fsdp-reshard-policy=reshard-after-forward=maybe 2>&1 | FileCheck %s --check-prefix=MAYBE
// MAYBE: for the --reshard-after-forward option: expected true, false, auto or a number of ranks; found 'maybe'
// RUN: not fsdp-opt %t.two.mlir --fsdp-reshard-policy 2>&1 | FileCheck %s --check-prefix=AGAIN
// AGAIN: error: expected a step without a policy of small groups, found one that keeps pieces{{$}}
// RUN: not %{shard} --fsdp-shard="ranks=2 strategy=no_shard" --fsdp-reshard-policy=reshard-after-forward=2 2>&1 | FileCheck %s --check-prefix=WHOLE
// WHOLE: error: expected parameters in several shards to keep some of them, got one{{$}}
// RUN: not %{shard} --fsdp-reshard-policy 2>&1 | FileCheck %s --check-prefix=MESH
// MESH: error: expected a program of the logical level, found one of the aten level{{$}}
