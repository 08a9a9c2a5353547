// A search decides what stays gathered, what is recomputed and when each collective is launched. What it says of the step is what the step
// takes: its time by the simulator, and its peak.
// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard=ranks=4 --fsdp-insert-optimizer -o %t.logical.mlir
// DEFINE: %{logical} = fsdp-opt %t.logical.mlir
// DEFINE: %{real} = --fsdp-annotate-costs=hardware=h100 --fsdp-apply-schedule --fsdp-schedule=algorithm=program --remarks-filter='fsdp-auto|fsdp-schedule' --remark-format=emitRemark

// RUN: %{logical} --fsdp-auto='auto hardware=h100 evaluations=500 decisions=%t.toml' %{real} -o %t.mlir 2> %t.txt
// RUN: FileCheck %s < %t.txt
// CHECK: step | {{.*}} Bound="{{.*}}", BoundBy={{.*}}, Evaluations={{[0-9]+}}, Peak="[[PEAK:.*]]", Step="[[STEP:.*]]"
// CHECK: timeline | {{.*}} Peak="[[PEAK]]", Step="[[STEP]]"
// RUN: FileCheck %s --check-prefix=ORDER < %t.mlir
// ORDER: fsdp.async.unshard @root <forward>
// ORDER: fsdp.async.unshard @m.transformer.h.0 <forward>

// Decisions that were found are carried out again, and those that people have edited.
// RUN: %{logical} --fsdp-auto='decisions=%t.toml hardware=h100' --fsdp-annotate-costs=hardware=h100 --fsdp-apply-schedule | diff - %t.mlir
// RUN: sed -e 's/keep = false/keep = true/' -e 's/recompute = .*/recompute = ["m.transformer.h.1"]/' %t.toml > %t.edited.toml
// RUN: %{logical} --fsdp-auto='decisions=%t.edited.toml hardware=h100' %{real} -o %t.edited.mlir 2> %t.txt
// RUN: FileCheck %s < %t.txt
// RUN: FileCheck %s --check-prefix=EDITED < %t.edited.mlir
// EDITED-COUNT-3: fsdp.async.unshard
// EDITED-NOT: fsdp.async.unshard
// EDITED: phase recompute{{.*}}m.transformer.h.1
// EDITED-NOT: phase recompute{{.*}}m.transformer.h.0

// Units may stay gathered from the first micro-batch to the last.
// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard=ranks=4 --fsdp-accumulate=accumulate=3 --fsdp-insert-optimizer -o %t.parts.mlir
// RUN: printf 'version = 2\nresident = ["m.transformer.h.0"]\n' > %t.stay.toml
// RUN: fsdp-opt %t.parts.mlir --fsdp-auto='decisions=%t.stay.toml hardware=h100' --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-equivalence | FileCheck %s --check-prefix=STAY
// STAY: fsdp.unit @m.transformer.h.0 {{.*}} {kept_after_backward}
// STAY-LABEL: func.func @first
// STAY-COUNT-1: fsdp.async.unshard @m.transformer.h.0
// STAY-NOT: fsdp.async.unshard @m.transformer.h.0
// STAY-LABEL: func.func @middle
// STAY-COUNT-2: fsdp.async.unshard @m.transformer.h.1
// STAY-NOT: fsdp.async.unshard @m.transformer.h.0
// STAY-LABEL: func.func @last
// STAY-NOT: fsdp.async.unshard @m.transformer.h.0

// Less memory takes time; too little is rejected with what would do.
// RUN: %{logical} --fsdp-auto='auto hardware=h100 evaluations=500 budget=440KiB' --fsdp-apply-schedule --fsdp-verify-memory=budget=440KiB | FileCheck %s --check-prefix=LESS
// LESS: phase recompute
// RUN: not %{logical} --fsdp-auto='auto hardware=h100 evaluations=500 budget=100KiB' 2>&1 | FileCheck %s --check-prefix=BUDGET
// BUDGET: error: no decisions hold at most 100.00 KiB: the smallest budget that is known to work is {{[0-9]+}} bytes, {{.*}} of it persistent; shard over more ranks, or allow more

// RUN: not %{logical} --fsdp-auto 2>&1 | FileCheck %s --check-prefix=NEITHER
// NEITHER: error: expected `auto`, or a file of decisions
// RUN: not %{logical} --fsdp-auto=decisions=%t.none.toml 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: {{.*}}.none.toml: cannot open
// RUN: sed -e 's/m.transformer.h.0/h.9/' %t.toml > %t.other.toml
// RUN: not %{logical} --fsdp-auto=decisions=%t.other.toml 2>&1 | FileCheck %s --check-prefix=OTHER
// OTHER: error: {{.*}}.other.toml: line {{[0-9]+}}: {{.*}}h.9
// RUN: sed -e 's/resident = .*/resident = ["root"]/' %t.toml > %t.resident.toml
// RUN: not %{logical} --fsdp-auto=decisions=%t.resident.toml 2>&1 | FileCheck %s --check-prefix=RESIDENT
// RESIDENT: error: {{.*}}expected in `resident` units that are gathered in a step of several micro-batches (--accumulate K), found "root"

// Copies stand in front of the call that takes them, and after the call that they take; those around updates stay.
// RUN: printf 'version = 2\n[programs."step".units]\n"m.transformer.h.0" = { keep = false, forward = { joins = true, ahead = 0 }, backward = { joins = false, ahead = 1 }, reduction = { joins = true, wait = 2 } }\n' > %t.joined.toml
// RUN: %{logical} --fsdp-offload=offload=all --fsdp-auto='decisions=%t.joined.toml hardware=h100' --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence | FileCheck %s --check-prefix=OFFLOAD
// OFFLOAD: fsdp.async.copy @root <forward>
// OFFLOAD-NEXT: fsdp.async.copy @m.transformer.h.0 <forward>
// OFFLOAD-NEXT: fsdp.async.unshard @root <forward>
// OFFLOAD-NEXT: fsdp.async.unshard @m.transformer.h.0 <forward>
// OFFLOAD: fsdp.async.reduce_scatter @m.transformer.h.1
// OFFLOAD-NEXT: fsdp.async.reduce_scatter @m.transformer.h.0
// OFFLOAD-NEXT: fsdp.async.copy @m.transformer.h.1 <backward>
// OFFLOAD-NEXT: fsdp.async.copy @m.transformer.h.0 <backward>
// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard="ranks=4 mesh=2x2 strategy=hybrid_shard" --fsdp-accumulate="accumulate=3 no-all-reduce" --fsdp-insert-optimizer --fsdp-offload=offload=all -o %t.partial.mlir
// RUN: not fsdp-opt %t.partial.mlir --fsdp-auto=auto 2>&1 | FileCheck %s --check-prefix=PARTIAL
// PARTIAL: error: --auto does not know offload of gradients that are all-reduced once for all micro-batches: leave out --no-all-reduce or --offload

// Where pieces may be kept, that is one more thing to decide of each unit: of h.0 a piece, of h.1 nothing.
// RUN: %{logical} --fsdp-reshard-policy=reshard-after-forward=2 --fsdp-auto='auto hardware=h100 evaluations=500 decisions=%t.pieces.toml' -o /dev/null
// RUN: sed -e '/h.1/s/keep = [^,]*/keep = false/' -e '/h.0/s/keep = [^,]*/keep = "piece"/' -e 's/recompute = .*/recompute = []/' -e 's/recompute_cheap = .*/recompute_cheap = []/' %t.pieces.toml > %t.piece.toml
// RUN: %{logical} --fsdp-reshard-policy=reshard-after-forward=2 --fsdp-auto='decisions=%t.piece.toml hardware=h100' %{real} -o %t.piece.mlir 2> %t.txt
// RUN: FileCheck %s < %t.txt
// RUN: FileCheck %s --check-prefix=PIECES < %t.piece.mlir
// PIECES: fsdp.unit @m.transformer.h.0 {{.*}} {piece_axes = ["local"], reshard_after_forward}
// PIECES: fsdp.unit @m.transformer.h.1 {{.*}} {reshard_after_forward}
// PIECES: fsdp.piece @m.transformer.h.0 over ["local"]
// PIECES-NEXT: fsdp.async.reshard
// PIECES-NOT: fsdp.piece
// PIECES-DAG: fsdp.async.unshard @m.transformer.h.1 <backward> over ["shard", "local"]
// PIECES-DAG: fsdp.async.unshard @m.transformer.h.0 <backward> over ["local"]

// RUN: not %{logical} --fsdp-auto='decisions=%t.piece.toml hardware=h100' 2>&1 | FileCheck %s --check-prefix=WHOLE
// WHOLE: error: {{.*}}.piece.toml: line {{[0-9]+}}: expected keep to be true or false, since no unit may keep a piece here (--reshard-after-forward N), found 'piece'
