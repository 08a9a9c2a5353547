// Several collectives in one call: gathers where the first of them was, reductions where the last was.
// DEFINE: %{shard} = fsdp-translate --import-pt2 %fixtures/role_chain.pt2 | fsdp-opt --fsdp-assign-units='wrap=scope:u\.\d+' --fsdp-shard=ranks=2 --fsdp-insert-optimizer --fsdp-async --fsdp-prefetch
// DEFINE: %{verify} = --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence
// RUN: %{shard} --fsdp-bucket=bucket=units:2 %{verify} | FileCheck %s
// RUN: %{shard} --fsdp-bucket=bucket=bytes:160 %{verify} | FileCheck %s --check-prefix=BYTES
// RUN: %{shard} -o %t && fsdp-opt %t --fsdp-bucket | diff %t -
// RUN: fsdp-opt %t --fsdp-bucket=bucket=bytes:100 | diff %t -
// A unit that exceeds the limit alone is copied alone, and nothing stands before it.
// RUN: fsdp-opt %t --fsdp-bucket=bucket=copy:bytes:1 %{verify} | FileCheck %s --check-prefix=ALONE
// RUN: not fsdp-opt %t --fsdp-bucket=bucket=units:-2 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: fsdp-opt %t --fsdp-bucket=bucket=units:2 --remarks-filter=fsdp-bucket --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// CHECK: fsdp.async.unshard @root <forward> over ["shard"] %arg0 bucket [[A:[0-9]+]] :
// CHECK-NEXT: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 bucket [[A]] :
// CHECK: fsdp.async.unshard @u.1 <forward> over ["shard"] %arg2 bucket [[B:[0-9]+]] :
// CHECK-NEXT: fsdp.async.unshard @u.2 <forward> over ["shard"] %arg3 bucket [[B]] :
// The last one is alone.
// CHECK: fsdp.async.unshard @u.3 <forward> over ["shard"] %arg4 :
// CHECK: fsdp.async.unshard @u.3 <backward> over ["shard"] %arg4 bucket [[C:[0-9]+]] :
// CHECK-NEXT: fsdp.async.unshard @u.2 <backward> over ["shard"] %arg3 bucket [[C]] :
// CHECK: fsdp.flatten_grads @u.2
// CHECK-NEXT: fsdp.async.reduce_scatter @u.3 {{.*}} bucket [[D:[0-9]+]] :
// CHECK-NEXT: fsdp.async.reduce_scatter @u.2 {{.*}} bucket [[D]] :

// The root's 96 bytes and a unit's 80 are more than 160.
// BYTES: fsdp.async.unshard @root <forward> over ["shard"] %arg0 :
// BYTES: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 bucket [[A:[0-9]+]] :
// BYTES-NEXT: fsdp.async.unshard @u.1 <forward> over ["shard"] %arg2 bucket [[A]] :

// NEGATIVE: for the --bucket option: expected none, units:N or bytes:SIZE, {{.*}}; found 'units:-2'
// REMARK: bucket | Category:fsdp-bucket | Function=step | Bytes=176, Calls=2, First=root, Launch=async.unshard

// Units that join before they are sharded have one flat parameter; the root stays alone.
// DEFINE: %{merge} = fsdp-translate --import-pt2 %fixtures/role_chain.pt2 | fsdp-opt --fsdp-assign-units='wrap=scope:u\.\d+'
// RUN: %{merge} --fsdp-bucket=bucket=merge:bytes:200 --fsdp-shard=ranks=2 --fsdp-verify-logical --fsdp-verify-equivalence | FileCheck %s --check-prefix=MERGE
// RUN: %{merge} --fsdp-bucket=bucket=merge:units:3 --remarks-filter=fsdp-bucket --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=MERGED
// RUN: not fsdp-opt %t --fsdp-bucket=bucket=merge:units:3 2>&1 | FileCheck %s --check-prefix=LATE
// RUN: not fsdp-opt %t --fsdp-bucket=bucket=move:units:3 2>&1 | FileCheck %s --check-prefix=MODE

// MERGE: fsdp.unit @root on @mesh {{.*}}"head.bias" : 4 at 20], numel = 24
// MERGE: fsdp.unit @u.0..u.1 on @mesh {{.*}} layout <["u.0.0.weight" : 4x4 at 0, "u.0.0.bias" : 4 at 16, "u.1.0.weight" : 4x4 at 20, "u.1.0.bias" : 4 at 36], numel = 40, padded = 40> {reshard_after_forward}
// MERGE: fsdp.unit @u.2..u.3 on @mesh
// MERGE-NOT: fsdp.unit @
// MERGED: merge | Category:fsdp-bucket | Function=step | Bytes=240, Unit=u.0..u.2, Units=3
// LATE: error: expected a program of the aten level, found one of the scheduled level{{$}}
// MODE: for the --bucket option: expected none, units:N or bytes:SIZE, {{.*}}; found 'move:units:3'

// Launches that are copied into one buffer: also those that are alone.
// RUN: fsdp-opt %t --fsdp-bucket=bucket=copy:units:2 %{verify} | FileCheck %s --check-prefix=COPY
// COPY: fsdp.async.unshard @root <forward> over ["shard"] %arg0 bucket [[A:[0-9]+]] copy :
// COPY-NEXT: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 bucket [[A]] copy :
// COPY: fsdp.async.unshard @u.3 <forward> over ["shard"] %arg4 copy :
// COPY: fsdp.async.all_reduce on @mesh {{.*}} via f32 %{{[0-9]+}} : tensor<f32>
// COPY: fsdp.async.reduce_scatter @u.3 {{.*}} bucket [[D:[0-9]+]] copy :
// COPY-NEXT: fsdp.async.reduce_scatter @u.2 {{.*}} bucket [[D]] copy :

// ALONE: fsdp.async.unshard @root <forward> over ["shard"] %arg0 copy :
// ALONE: fsdp.async.unshard @u.0 <forward> over ["shard"] %arg1 copy :
// ALONE: fsdp.async.reduce_scatter @root {{.*}} copy :
