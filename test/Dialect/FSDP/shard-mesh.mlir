// A mesh of several axes: units are sharded over all but "replicate", or over those that a rule names; along the others their gradients are summed.
// DEFINE: %{shard} = fsdp-opt %S/Inputs/two_blocks.mlir
// RUN: %{shard} --fsdp-shard="mesh=replicate=4,shard=8,local=2 strategy=hybrid_shard" --fsdp-verify-logical --fsdp-verify-equivalence | FileCheck %s --check-prefix=ALL
// ALL: fsdp.mesh @mesh ["replicate" = 4, "shard" = 8, "local" = 2]
// ALL: fsdp.unit @b.0 on @mesh shard ["shard", "local"] replicate ["replicate"]
// ALL: fsdp.all_reduce on @mesh for loss over ["replicate", "shard", "local"]
// ALL: fsdp.reduce_scatter @root over ["shard", "local"] divide <pre = 8, post = 1>
// ALL: fsdp.all_reduce @root over ["replicate"] divide <pre = 1, post = 8>

// The order of the names in a rule says nothing; that of the mesh counts.
// RUN: %{shard} --fsdp-shard="mesh=replicate=4,shard=8,local=2 strategy=hybrid_shard unit='b.0: shard=local; b.1: shard=local+replicate'" --fsdp-verify-logical --fsdp-verify-equivalence | FileCheck %s --check-prefix=RULES
// RULES: fsdp.unit @b.0 on @mesh shard ["local"] replicate ["replicate", "shard"]
// RULES: fsdp.unit @b.1 on @mesh shard ["replicate", "local"] replicate ["shard"]
// RULES: fsdp.unshard @b.0 <forward> over ["local"]
// RULES: fsdp.reduce_scatter @b.0 over ["local"]
// RULES: fsdp.all_reduce @b.0 over ["replicate", "shard"]

// Axes that are not said have one rank.
// RUN: %{shard} --fsdp-shard="mesh=a=2,b=3" | FileCheck %s --check-prefix=NAMES
// NAMES: fsdp.mesh @mesh ["replicate" = 1, "a" = 2, "b" = 3]
// RUN: %{shard} --fsdp-shard="mesh=replicate=4" | FileCheck %s --check-prefix=COPIES
// COPIES: fsdp.mesh @mesh ["replicate" = 4, "shard" = 1]

// A small group is an axis that has as many ranks; several axes; or part of one.
// DEFINE: %{group} = --fsdp-verify-logical --fsdp-verify-equivalence
// RUN: %{shard} --fsdp-shard=mesh=shard=4,node=4,local=2 -o %t.mlir
// RUN: fsdp-opt %t.mlir --fsdp-reshard-policy=reshard-after-forward=2 %{group} | FileCheck %s --check-prefix=TWO
// TWO: fsdp.mesh @mesh ["replicate" = 1, "shard" = 4, "node" = 4, "local" = 2]
// TWO: fsdp.unshard @b.1 <backward> over ["local"]
// RUN: fsdp-opt %t.mlir --fsdp-reshard-policy=reshard-after-forward=8 %{group} | FileCheck %s --check-prefix=EIGHT
// EIGHT: fsdp.mesh @mesh ["replicate" = 1, "shard" = 4, "node" = 4, "local" = 2]
// EIGHT: fsdp.unshard @b.1 <backward> over ["node", "local"]
// RUN: fsdp-opt %t.mlir --fsdp-reshard-policy=reshard-after-forward=4 %{group} | FileCheck %s --check-prefix=PART
// PART: fsdp.mesh @mesh ["replicate" = 1, "shard" = 4, "node" = 2, "local_" = 2, "local" = 2]
// PART: fsdp.unshard @b.1 <backward> over ["local_", "local"]
// RUN: not fsdp-opt %t.mlir --fsdp-reshard-policy=reshard-after-forward=3 2>&1 | FileCheck %s --check-prefix=THREE
// THREE: error: expected reshard-after-forward to be a number of ranks that divides the 32 shards, got 3{{$}}
// RUN: not %{shard} --fsdp-shard=mesh=shard=3,local=4 --fsdp-reshard-policy=reshard-after-forward=6 2>&1 | FileCheck %s --check-prefix=UNEVEN
// UNEVEN: error: expected reshard-after-forward to be the ranks of the innermost of the axes ["shard", "local"], or of equal parts of one, got 6{{$}}

// A unit that is not sharded over more than the group is gathered again over all of its axes.
// RUN: %{shard} --fsdp-shard="mesh=shard=4,local=2 unit='b.1: shard=local'" --fsdp-reshard-policy=reshard-after-forward=2 %{group} | FileCheck %s --check-prefix=INNER
// INNER-NOT: fsdp.piece
// INNER: fsdp.unshard @b.1 <backward> over ["local"] %{{.*}} : !fsdp.shard<{{.*}}, 2>

// RUN: not %{shard} --fsdp-shard="mesh=shard=4,local=2 unit='root: shard=node'" 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: error: expected 'shard=node' of 'root' to name an axis of the mesh; there are 'replicate', 'shard', 'local'{{$}}
// RUN: not %{shard} --fsdp-shard="mesh=shard=4,local=2 unit='root: shard=auto'" 2>&1 | FileCheck %s --check-prefix=DECIDED
// DECIDED: error: expected the axes of units, such as shard=local; 'auto' is a decision of fsdp-plan{{$}}
// RUN: not %{shard} --fsdp-shard="ranks=4 mesh=shard=4,local=2" 2>&1 | FileCheck %s --check-prefix=RANKS
// RANKS: error: expected a mesh of 4 ranks, got shard=4,local=2{{$}}
// RUN: not %{shard} --fsdp-shard=mesh=a=70000,b=70000 2>&1 | FileCheck %s --check-prefix=LARGE
// LARGE: error: expected less than 2^31 ranks, got more{{$}}
// RUN: not %{shard} --fsdp-shard=mesh=shard=4,shard=2 2>&1 | FileCheck %s --check-prefix=TWICE
// TWICE: for the --mesh option: expected each axis once, and 'shard' is there twice; found 'shard=4,shard=2'
