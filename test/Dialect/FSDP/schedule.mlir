// When collectives are issued, on the model of prefetch.mlir: every computation takes 20 us and every collective 30 us.
// DEFINE: %{input} = fsdp-opt %S/prefetch.mlir --fsdp-shard=ranks=2 --fsdp-async --fsdp-place-reduce-waits --fsdp-apply-schedule --fsdp-annotate-costs=hardware=%S/Inputs/round.toml
// DEFINE: %{verify} = --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence
// DEFINE: %{remarks} = --remarks-filter=fsdp-schedule --remark-format=emitRemark -o /dev/null

// Program order is what it was.
// RUN: %{input} -o %t.before
// RUN: fsdp-opt %t.before --fsdp-schedule=algorithm=program --fsdp-apply-schedule | diff - %t.before

// 11 calls and 4 flat gradients compute for 300 us; nothing hides 7 gathers, the last reduction, and 10 us of another.
// RUN: fsdp-opt %t.before --fsdp-schedule=algorithm=program %{remarks} 2>&1 | FileCheck %s --check-prefix=PROGRAM
// PROGRAM: gather | {{.*}} Hidden="0.0 us", Of="30.0 us", Phase=forward, Reason="nothing comes before it", Unit=u1, UnitsAhead=0
// PROGRAM: gather | {{.*}} Hidden="0.0 us", Of="30.0 us", Phase=forward, Reason="one unit more would hold 112 B there", Unit=u2, UnitsAhead=0
// PROGRAM: timeline | {{.*}} Exposed="250.0 us", Peak="184 B", Step="550.0 us"

// Each unit is gathered during the one before: of 30 us a call of the forward hides 20, the two of the backward all. More would
// not help, since gathers follow each other.
// RUN: fsdp-opt %t.before --fsdp-schedule --fsdp-apply-schedule %{verify} | FileCheck %s
// RUN: fsdp-opt %t.before --fsdp-schedule %{remarks} 2>&1 | FileCheck %s --check-prefix=LIST
// CHECK: fsdp.async.wait
// CHECK: %[[U2:.*]] = fsdp.async.unshard @u2 <forward> over ["shard"] %{{[^ ]*}} {fsdp.cost = 30000 : i64} :
// CHECK-NEXT: aten.call "mul.Tensor"
// CHECK: fsdp.async.wait %[[U2]]
// CHECK: fsdp.async.unshard @u3 <forward>
// CHECK-NEXT: aten.call "mul.Tensor"
// CHECK: fsdp.async.unshard @u3 <backward>
// What takes memory is launched late: the sum of the loss is for the end.
// CHECK: fsdp.async.all_reduce on @mesh
// CHECK: fsdp.async.reduce_scatter @u1
// LIST: gather | {{.*}} Reason="nothing comes before it", Unit=u1, UnitsAhead=0
// LIST: gather | {{.*}} Hidden="20.0 us", Of="30.0 us", Phase=forward, Reason="the gather before it ends as it starts", Unit=u2, UnitsAhead=0
// LIST: gather | {{.*}} Hidden="30.0 us", Of="30.0 us", Phase=backward, Reason="all of it is hidden", Unit=u3, UnitsAhead=0
// LIST: timeline | {{.*}} Exposed="110.0 us", Peak="200 B", Step="410.0 us"

// A limit: as much is hidden as fits.
// RUN: fsdp-opt %t.before --fsdp-schedule=budget=184 --fsdp-apply-schedule %{verify} --fsdp-verify-memory=budget=184 --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=PEAK184
// RUN: fsdp-opt %t.before --fsdp-schedule=budget=184 %{remarks} 2>&1 | FileCheck %s --check-prefix=LIMIT
// LIMIT: Hidden="20.0 us", Of="30.0 us", Phase=backward, Reason="one unit more would exceed the limit by 8 B", Unit=u2, UnitsAhead=0
// LIMIT: timeline |
// PEAK184: peak | Category:fsdp-verify-memory | Function=step | Bytes=184,
// PEAK176: peak | Category:fsdp-verify-memory | Function=step | Bytes=176,

// The smallest limit that can be met is named, and can be met.
// RUN: not fsdp-opt %t.before --fsdp-schedule=budget=175 -o /dev/null 2>&1 | FileCheck %s --check-prefix=SMALL
// RUN: not fsdp-opt %t.before --fsdp-schedule='budget=10 algorithm=program' -o /dev/null 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: fsdp-opt %t.before --fsdp-schedule=budget=176 --fsdp-apply-schedule %{verify} --fsdp-verify-memory=budget=176 --remarks-filter=fsdp-verify-memory --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=PEAK176
// SMALL: error: memory peaks at 176 B in the leanest order, 64 B of it persistent, and the limit is 175 B: the smallest that can be met is 176 bytes
// SMALL: note: made by 'mul.Tensor': 96 B in 6 values
// SMALL: note: gathered unit 'u3': 16 B in 1 value
// ORDER: error: memory peaks at 184 B in program order, 64 B of it persistent, and the limit is 10 B: the smallest that can be met is 184 bytes

// RUN: not fsdp-opt %t.before --fsdp-schedule=budget=-1 -o /dev/null 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// NEGATIVE: for the --budget option: expected bytes, or a decimal number with KiB, MiB, GiB, KB, MB or GB; found '-1'
// RUN: not fsdp-opt %S/prefetch.mlir --fsdp-shard=ranks=2 --fsdp-schedule -o /dev/null 2>&1 | FileCheck %s --check-prefix=LOGICAL
// LOGICAL: error: expected a program of the scheduled level, found one of the logical level

// On a core that all streams share nothing is hidden, and launching early only takes memory: the peak is the smallest that there is.
// RUN: sed -e 's/^launch_us/shared_core = true\nlaunch_us/' %S/Inputs/round.toml > %t.toml
// RUN: fsdp-opt %t.before --fsdp-annotate-costs=hardware=%t.toml --fsdp-schedule %{remarks} 2>&1 | FileCheck %s --check-prefix=SHARED
// SHARED: gather | {{.*}} Hidden="0.0 us", Of="30.0 us", Phase=forward, Reason="all streams share a core", Unit=u2, UnitsAhead=0
// SHARED: timeline | {{.*}} Exposed="360.0 us", Peak="176 B", Step="660.0 us"

// Decisions have a price before anything moves: it is that of the step in which they are applied.
// DEFINE: %{decide} = fsdp-opt %t.before --fsdp-prefetch=forward-prefetch=1 --fsdp-limit-in-flight=limit-all-gathers=3 --fsdp-place-reduce-waits=reduce-wait=next
// RUN: %{decide} -o %t.decided && fsdp-opt %t.decided --fsdp-apply-schedule -o %t.applied
// RUN: fsdp-opt %t.decided --fsdp-schedule=algorithm=program %{remarks} 2>&1 | sed -n 's/.*timeline/timeline/p' > %t.price
// RUN: fsdp-opt %t.applied --fsdp-schedule=algorithm=program %{remarks} 2>&1 | sed -n 's/.*timeline/timeline/p' | diff %t.price -
// RUN: FileCheck %s --check-prefix=PRICE --input-file %t.price
// PRICE: Exposed="110.0 us", Peak="208 B", Step="410.0 us"
// RUN: fsdp-opt %t.before --fsdp-prefetch=forward-prefetch=1 -o %t.decided && not fsdp-opt %t.decided --fsdp-verify-memory 2>&1 | FileCheck %s --check-prefix=OPEN
// RUN: not fsdp-opt %t.decided --lower-to-plan 2>&1 | FileCheck %s --check-prefix=OPEN
// OPEN: error: expected the schedule to be applied with --fsdp-apply-schedule, found 'fsdp.issue'
