// Where the backward waits for reductions: a real chain of four units and a root.
// covers: one reduction input at a time, _post_backward_use_sharded_grad_views
// DEFINE: %{shard} = fsdp-translate --import-pt2 %fixtures/role_chain.pt2 | fsdp-opt --fsdp-assign-units='wrap=scope:u\.\d+' --fsdp-shard=ranks=2 --fsdp-insert-optimizer --fsdp-async
// RUN: %{shard} --fsdp-place-reduce-waits=reduce-wait=backward --fsdp-apply-schedule --fsdp-verify-futures --fsdp-verify-equivalence | FileCheck %s --check-prefix=BACKWARD
// RUN: %{shard} --fsdp-place-reduce-waits=reduce-wait=next --fsdp-apply-schedule --fsdp-verify-futures --fsdp-verify-equivalence | FileCheck %s --check-prefix=NEXT
// RUN: %{shard} -o %t && fsdp-opt %t --fsdp-place-reduce-waits=reduce-wait=use | diff %t -
// RUN: %{shard} --fsdp-place-reduce-waits=reduce-wait=next --remarks-filter=fsdp-place-reduce-waits --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// At the end of the backward; the updates follow.
// BACKWARD: %[[U3:.*]] = fsdp.async.reduce_scatter @u.3
// BACKWARD: %[[U2:.*]] = fsdp.async.reduce_scatter @u.2
// BACKWARD: %[[ROOT:.*]] = fsdp.async.reduce_scatter @root
// BACKWARD-NEXT: fsdp.async.wait %[[U3]]
// BACKWARD-NEXT: fsdp.async.wait %[[U2]]
// BACKWARD: fsdp.async.wait %[[ROOT]]
// BACKWARD-NEXT: fsdp.adamw
// BACKWARD-NOT: fsdp.async.wait {{.*}}fsdp.shard

// FSDP2, and the default: the copy-in of a gradient waits for the reduction before it.
// NEXT: %[[U3:.*]] = fsdp.async.reduce_scatter @u.3
// NEXT: fsdp.async.wait %[[U3]]
// NEXT-NEXT: fsdp.flatten_grads @u.2
// NEXT-NEXT: %[[U2:.*]] = fsdp.async.reduce_scatter @u.2
// NEXT: fsdp.async.wait %[[U2]]
// NEXT-NEXT: fsdp.flatten_grads @u.1
// NEXT: fsdp.flatten_grads @root
// NEXT-NEXT: %[[ROOT:.*]] = fsdp.async.reduce_scatter @root
// NEXT-NEXT: fsdp.async.wait %[[ROOT]]
// NEXT-NEXT: fsdp.adamw

// REMARK: reduce | Category:fsdp-place-reduce-waits | Function=step | Unit=u.3, Wait="in front of the next reduction"
// REMARK: reduce | Category:fsdp-place-reduce-waits | Function=step | Unit=u.2, Wait="in front of the next reduction"

// A plan waits where the schedule does, and not once more for the update.
// RUN: %{shard} --fsdp-place-reduce-waits=reduce-wait=next --fsdp-apply-schedule --lower-to-plan | FileCheck %s --check-prefix=PLAN
// PLAN: plan.reduce_scatter {{.*}} of @u.3 <backward> on reduce
// PLAN-NEXT: %[[E:.*]] = plan.record <backward> on reduce
// PLAN: plan.launch "sum.IntList_out"{{.*}}scope = "u.2.0"
// PLAN: plan.wait %[[E]] <backward>{{$}}
// PLAN: plan.reduce_scatter {{.*}} of @u.2 <backward> on reduce
// PLAN: plan.adamw @u.3
// PLAN-NOT: plan.wait
// PLAN: plan.adamw @root
// RUN: %{shard} --fsdp-place-reduce-waits=reduce-wait=backward --fsdp-apply-schedule --lower-to-plan | FileCheck %s --check-prefix=END
// END: plan.reduce_scatter {{.*}} of @root <backward> on reduce
// END-NEXT: %[[E:.*]] = plan.record <backward> on reduce
// END: plan.wait %[[E]] <update>
// END-NOT: plan.wait
// END: plan.adamw @u.3
// Where the updates alone wait, nothing is added: no place in memory makes the backward wait.
// RUN: %{shard} --lower-to-plan | FileCheck %s --check-prefix=USE
// USE: plan.reduce_scatter {{.*}} of @u.3 <backward> on reduce
// USE-NEXT: %[[E:.*]] = plan.record <backward> on reduce
// USE-NOT: plan.wait %[[E]] <backward>
// USE: plan.reduce_scatter {{.*}} of @root <backward> on reduce
// USE: plan.wait %[[E]] <update>
// USE-NEXT: plan.adamw @u.3
// USE-NEXT: plan.wait {{.*}} <update>
// USE-NEXT: plan.adamw @u.2
