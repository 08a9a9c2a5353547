// At most so many units are gathered and not yet resharded: a chain of four, and the root, which is kept and does not count.
// DEFINE: %{shard} = fsdp-translate --import-pt2 %fixtures/role_chain.pt2 | fsdp-opt --fsdp-assign-units='wrap=scope:u\.\d+' --fsdp-shard=ranks=2 --fsdp-async
// DEFINE: %{verify} = --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-equivalence
// RUN: %{shard} --fsdp-prefetch --fsdp-limit-in-flight %{verify} | FileCheck %s --check-prefix=TWO
// RUN: %{shard} --fsdp-prefetch=forward-prefetch=3 --fsdp-limit-in-flight %{verify} | FileCheck %s --check-prefix=AHEAD
// RUN: %{shard} --fsdp-prefetch --fsdp-limit-in-flight=limit-all-gathers=1 %{verify} | FileCheck %s --check-prefix=ONE
// RUN: %{shard} --fsdp-prefetch=forward-prefetch=3 -o %t.prefetched
// RUN: fsdp-opt %t.prefetched --fsdp-limit-in-flight="limit-all-gathers=0 bytes=160" --fsdp-apply-schedule | FileCheck %s --check-prefix=AHEAD
// RUN: fsdp-opt %t.prefetched --fsdp-limit-in-flight=limit-all-gathers=0 | diff %t.prefetched -
// RUN: fsdp-opt %t.prefetched --fsdp-limit-in-flight=limit-all-gathers=100 | sed 's/ ahead / /' | diff %t.prefetched -
// RUN: not fsdp-opt %t.prefetched --fsdp-limit-in-flight="limit-all-gathers=0 bytes=79" 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: not fsdp-opt %t.prefetched --fsdp-limit-in-flight=limit-all-gathers=-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not fsdp-opt %t.prefetched --fsdp-bucket=bucket=units:3 --fsdp-limit-in-flight=limit-all-gathers=2 2>&1 | FileCheck %s --check-prefix=UNITS
// RUN: fsdp-opt %t.prefetched --fsdp-bucket=bucket=units:3 --fsdp-limit-in-flight --remarks-filter=fsdp-limit-in-flight --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=RAISED
// RUN: fsdp-opt %t.prefetched --fsdp-bucket=bucket=units:2 --fsdp-limit-in-flight %{verify} --fsdp-verify-order | FileCheck %s --check-prefix=BUCKET
// RUN: %{shard} --fsdp-prefetch --fsdp-limit-in-flight --remarks-filter=fsdp-limit-in-flight --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// Nothing moves: gathers are issued where PyTorch issues them. The host runs ahead, and the third gather may start when the
// first unit ends, however far the streams are apart.
// TWO: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 ahead :
// TWO: %[[END0:.*]] = fsdp.async.reshard
// TWO: fsdp.async.unshard @u.1 <forward> over ["shard"] %arg2 ahead :
// TWO: %[[END1:.*]] = fsdp.async.reshard
// TWO: fsdp.async.unshard @u.2 <forward> over ["shard"] %arg3 ahead after %[[END0]]
// TWO: %[[END2:.*]] = fsdp.async.reshard
// TWO: fsdp.async.unshard @u.3 <forward> over ["shard"] %arg4 ahead after %[[END1]]
// TWO: %[[END3:.*]] = fsdp.async.reshard
// TWO: fsdp.async.unshard @u.3 <backward> over ["shard"] %arg4 ahead after %[[END2]]
// TWO: fsdp.async.unshard @u.2 <backward> over ["shard"] %arg3 ahead after %[[END3]]

// Three ahead is too far for two: each moves after the end that makes room for it.
// AHEAD: fsdp.async.wait
// AHEAD-NEXT: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 ahead :
// AHEAD-NEXT: fsdp.async.unshard @u.1 <forward> over ["shard"] %arg2 ahead :
// AHEAD-NOT: fsdp.async.unshard
// AHEAD: %[[END0:.*]] = fsdp.async.reshard
// AHEAD-NEXT: fsdp.async.unshard @u.2 <forward> over ["shard"] %arg3 ahead after %[[END0]]
// AHEAD-NOT: fsdp.async.unshard
// AHEAD: %[[END1:.*]] = fsdp.async.reshard
// AHEAD-NEXT: fsdp.async.unshard @u.3 <forward> over ["shard"] %arg4 ahead after %[[END1]]

// With one, the backward's prefetch comes when the unit before has ended.
// ONE: %[[END3:.*]] = fsdp.async.reshard
// ONE: %[[AGAIN3:.*]] = fsdp.async.unshard @u.3 <backward> over ["shard"] %arg4 ahead after
// ONE: %[[FULL3:.*]] = fsdp.async.wait %[[AGAIN3]]
// ONE: %[[END:.*]] = fsdp.async.reshard %[[FULL3]]
// ONE-NEXT: fsdp.async.unshard @u.2 <backward> over ["shard"] %arg3 ahead after %[[END]]

// BYTES: error: expected room for 80 bytes of gathered units, which the step needs at once, got a limit of 79
// UNITS: error: expected room for 3 gathered units, which the step needs at once, got a limit of 2

// A default rejects no step, and is of two calls.
// RAISED: raised | Category:fsdp-limit-in-flight | Function=step | From=2, Reason="one call is in use while the next is launched", To=4, Unit=

// A bucket is one call, and waits for all its room; the root is not counted.
// BUCKET: fsdp.async.unshard @root <forward> over ["shard"] %arg0 bucket 0 ahead :
// BUCKET-NEXT: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 bucket 0 ahead :
// BUCKET: %[[END0:.*]] = fsdp.async.reshard
// BUCKET: %[[END2:.*]] = fsdp.async.reshard
// NEGATIVE: for the --limit-all-gathers option: expected a number of at least 0; found '-1'
// REMARK: limit | Category:fsdp-limit-in-flight | Function=step | After=u.0, Bytes=80, Moved=no, Unit=u.2
