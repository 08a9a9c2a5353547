// Bytes of values, gathered memory from its launch to its reshard; the budget is
// exact: the figure that the error names fits, one byte less does not.
// RUN: not fsdp-opt %s --fsdp-verify-memory=budget=367 2>&1 | FileCheck %s --check-prefix=OVER
// RUN: fsdp-opt %s --fsdp-verify-memory=budget=368 --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: fsdp-opt %s --fsdp-bucket=bucket=copy:units:2 --fsdp-apply-schedule --fsdp-verify-memory=budget=384 --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=COPIED
// RUN: not fsdp-opt %s --fsdp-bucket=bucket=copy:units:2 --fsdp-apply-schedule --fsdp-verify-memory=budget=383 2>&1 | FileCheck %s --check-prefix=COPY

// COPIED: peak | Category:fsdp-verify-memory | Function=step | Bytes=384, Persistent=128
// Copied, both units have one buffer until the first wait, and their own memory from there on.
// COPY: error: memory peaks at 384 B, 128 B of it persistent, and the budget is 383 B: this schedule fits into 384 bytes, and not into less
// COPY: note: buffers and casts of collectives: 128 B in 2 values
// COPY: note: gathered unit 'u': 64 B in 1 value
// COPY: note: gathered unit 'v': 64 B in 1 value

// Arguments: two shards of 32 bytes and an input of 64, not the scalars: 128.
// At the second launch: both units (64 each), the product and a part of it (64
// and 48).
// OVER: verify-memory.mlir:[[#@LINE+24]]:{{[0-9]+}}: error: memory peaks at 368 B, 128 B of it persistent, and the budget is 367 B: this schedule fits into 368 bytes, and not into less
// OVER: note: gathered unit 'u': 64 B in 1 value
// OVER: note: gathered unit 'v': 64 B in 1 value
// OVER: note: made in 'm.h': 64 B in 1 value
// OVER: note: made by 'constant_pad_nd': 48 B in 1 value
// OVER-NOT: note

// REMARK: peak | Category:fsdp-verify-memory | Function=step | Bytes=368, Persistent=128
// REMARK: alive | Category:fsdp-verify-memory | Function=step | Bytes=64, Values=1, What="gathered unit 'u'"

!p = !fsdp.shard<16xf32, 2>
!g = !fsdp.gathered<16xf32>
!f = !fsdp.future<!g>
!t = tensor<16xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["u" : 16 at 0 frozen], numel = 16, padded = 16>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["v" : 16 at 0 frozen], numel = 16, padded = 16>
func.func @step(%pu: !p {fsdp.state = #fsdp.state<@u, parameter>}, %pv: !p {fsdp.state = #fsdp.state<@v, parameter>},
                %x: !t {aten.input = 0 : i64}, %hyper: tensor<7xf64> {fsdp.hyper = 0 : i64}) -> !t attributes {aten.program} {
  %fu = fsdp.async.unshard @u <forward> over ["shard"] %pu : !p -> !f
  %gu = fsdp.async.wait %fu : !f -> !g
  %u = fsdp.view %gu[@u, "u"] : !g -> !t
  %a = aten.call "mul.Tensor"(%u, %x) {scope = "m.h"} : (!t, !t) -> !t
  %b = aten.call "constant_pad_nd"(%a, [0, -4]) : (!t) -> tensor<12xf32>
  %fv = fsdp.async.unshard @v <forward> over ["shard"] %pv : !p -> !f
  %freed = fsdp.async.reshard %gu : !g
  %gv = fsdp.async.wait %fv : !f -> !g
  %v = fsdp.view %gv[@v, "v"] : !g -> !t
  %c = aten.call "addcmul"(%a, %v, %b) : (!t, !t, tensor<12xf32>) -> !t
  fsdp.async.reshard %gv : !g
  return %c : !t
}
