// What another decision would cost is what the step costs when a pass has made it.
// DEFINE: %{logical} = fsdp-opt %S/remat.mlir --fsdp-shard=ranks=2
// DEFINE: %{remarks} = --remark-format=emitRemark -o /dev/null
// DEFINE: %{price} = --fsdp-price-decisions --remarks-filter=fsdp-price-decisions %{remarks}
// DEFINE: %{real} = --fsdp-async --fsdp-place-reduce-waits --fsdp-apply-schedule --fsdp-annotate-costs --fsdp-schedule --remarks-filter=fsdp-schedule %{remarks}

// RUN: %{logical} %{price} 2> %t.txt
// RUN: %{logical} %{real} 2>> %t.txt
// RUN: %{logical} --fsdp-reshard-policy=reshard-after-forward=false %{real} 2>> %t.txt
// RUN: %{logical} --fsdp-remat=remat=scope:b %{real} 2>> %t.txt
// RUN: FileCheck %s < %t.txt
// CHECK: step | {{.*}} Peak="[[PEAK:.*]]", Step="[[STEP:.*]]"
// CHECK-NEXT: decision | {{.*}} Decision="keep b", Peak="[[KEEP_PEAK:.*]]", PeakChange="+36 B", Step="[[KEEP_STEP:.*]]", StepChange="-{{[0-9.]+}} us"
// CHECK-NEXT: decision | {{.*}} Decision="recompute b", Peak="[[AGAIN_PEAK:.*]]", PeakChange="+36 B", Step="[[AGAIN_STEP:.*]]", StepChange="+{{[0-9.]+}} us"
// CHECK-NOT: decision
// CHECK: timeline | {{.*}} Peak="[[PEAK]]", Step="[[STEP]]"
// CHECK: timeline | {{.*}} Peak="[[KEEP_PEAK]]", Step="[[KEEP_STEP]]"
// CHECK: timeline | {{.*}} Peak="[[AGAIN_PEAK]]", Step="[[AGAIN_STEP]]"

// Of a unit that stays gathered, the other decision is to reshard it.
// RUN: %{logical} %{real} 2> %t.txt
// RUN: %{logical} --fsdp-reshard-policy=reshard-after-forward=false %{price} 2>> %t.txt
// RUN: FileCheck %s --check-prefix=RESHARD < %t.txt
// RESHARD: timeline | {{.*}} Peak="[[PEAK:.*]]", Step="[[STEP:.*]]"
// RESHARD: Decision="reshard b", Peak="[[PEAK]]", {{.*}} Step="[[STEP]]"

// The program does not change.
// RUN: %{logical} -o %t.mlir
// RUN: fsdp-opt %t.mlir --fsdp-price-decisions=hardware=h100 | diff - %t.mlir

// In a real graph: of two blocks, one is recomputed.
// DEFINE: %{gpt2} = fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt --fsdp-assign-units --fsdp-shard=ranks=4 --fsdp-insert-optimizer
// RUN: %{gpt2} %{price} 2> %t.txt
// RUN: %{gpt2} --fsdp-remat='remat=scope:transformer.h.1' %{real} 2>> %t.txt
// RUN: FileCheck %s --check-prefix=GPT2 < %t.txt
// GPT2: Decision="keep m.transformer.h.0"
// GPT2: Decision="keep m.transformer.h.1"
// GPT2: Decision="recompute m.transformer.h.0"
// GPT2: Decision="recompute m.transformer.h.1", Peak="[[PEAK:.*]]", PeakChange="-{{.*}}", Step="[[STEP:.*]]", StepChange="+
// GPT2: timeline | {{.*}} Peak="[[PEAK]]", Step="[[STEP]]"

// What is not sharded has no other decision about its memory.
// RUN: fsdp-translate --import-pt2 %fixtures/gpt2.pt2 | fsdp-opt '--fsdp-assign-units=ignore=.*h[.]1.*' --fsdp-shard=ranks=4 %{price} 2>&1 | FileCheck %s --check-prefix=IGNORED
// IGNORED: Decision="keep m.transformer.h.0"
// IGNORED-NOT: Decision="{{keep|reshard}}

// RUN: not fsdp-opt %S/remat.mlir --fsdp-shard=ranks=2 --fsdp-price-decisions=hardware=%S/none.toml 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: error: {{.*}}none.toml
// RUN: not fsdp-opt %S/remat.mlir --fsdp-price-decisions 2>&1 | FileCheck %s --check-prefix=LEVEL
// LEVEL: error: {{.*}}logical level
