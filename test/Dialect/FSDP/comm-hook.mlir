// A pass of a library stands between sharding and the optimizer; what it decides
// reaches the launches.
// RUN: fsdp-opt %s --load-pass-plugin=%compress_replicas \
// RUN:   --pass-pipeline='builtin.module(fsdp-assign-units,fsdp-shard{mesh=2x2 strategy=hybrid_shard},compress-replicas,fsdp-name-reductions,fsdp-insert-optimizer,fsdp-verify-logical,fsdp-async,fsdp-apply-schedule,fsdp-verify-scheduled,fsdp-verify-equivalence)' \
// RUN:   | FileCheck %s
// RUN: fsdp-opt %s --load-pass-plugin=%compress_replicas --fsdp-pipeline='mesh=2x2 comm-hook=compress-replicas' | FileCheck %s --check-prefix=PLAN
// RUN: not fsdp-opt %s --fsdp-pipeline='ranks=2 comm-hook=compress-replicas' 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// CHECK: fsdp.unit @root {{.*}} {fsdp.reductions = [#fsdp.reduction<over ["shard"] divide <pre = 2, post = 1> via f32 to f32>,
// CHECK-SAME: #fsdp.reduction<over ["replicate"] divide <pre = 1, post = 2> via bf16 to f32>], root}
// CHECK: fsdp.async.reduce_scatter @root {{.*}} via f32
// CHECK: fsdp.async.all_reduce @root over ["replicate"] {{.*}} via bf16

// The shard is cast, summed and cast back.
// PLAN: plan.reduce_scatter @shard_reduce {{.*}} via f32 %{{.*}} to %[[SHARD:.*]] of @root
// PLAN: plan.copy %[[SHARD]] to %[[LOW:[^ ]*]]
// PLAN: plan.all_reduce @replicate_all_reduce {{.*}} via bf16 %[[LOW]] to %[[SUM:.*]] of @root
// PLAN: plan.copy %[[SUM]] to %[[SHARD]]

// What nothing names is an error.
// RUN: not fsdp-opt %s --load-pass-plugin=%compress_replicas \
// RUN:   --pass-pipeline='builtin.module(fsdp-assign-units,fsdp-shard{mesh=2x2 strategy=hybrid_shard},compress-replicas,fsdp-verify-equivalence)' 2>&1 \
// RUN:   | FileCheck %s --check-prefix=UNNAMED
// UNNAMED: expected a sum in 'f32', the reduce type of unit "root", unless its 'fsdp.reductions' say otherwise; got 'bf16'

// UNKNOWN: --comm-hook: expected passes of --load-pass-plugin, found 'compress-replicas'
func.func @step(%w: tensor<3x4xf32> {aten.param = "w"}, %x: tensor<2x4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<3x4xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  %one = aten.call "full"([], 1.0, dtype = f32, device = cpu, pin_memory = false) {aten.gradient_seed, phase = #aten<phase backward>} : () -> tensor<f32>
  %t = aten.call "t"(%w) {phase = #aten<phase forward>} : (tensor<3x4xf32>) -> tensor<4x3xf32, #aten.strided<[1, 4]>>
  %y = aten.call "mm"(%x, %t) {phase = #aten<phase forward>} : (tensor<2x4xf32>, tensor<4x3xf32, #aten.strided<[1, 4]>>) -> tensor<2x3xf32>
  %loss = aten.call "sum"(%y) {phase = #aten<phase forward>} : (tensor<2x3xf32>) -> tensor<f32>
  %gy = aten.call "expand"(%one, [2, 3]) {phase = #aten<phase backward>} : (tensor<f32>) -> tensor<2x3xf32, #aten.strided<[0, 0]>>
  %gt = aten.call "t"(%gy) {phase = #aten<phase backward>} : (tensor<2x3xf32, #aten.strided<[0, 0]>>) -> tensor<3x2xf32, #aten.strided<[0, 0]>>
  %gw = aten.call "mm"(%gt, %x) {phase = #aten<phase backward>} : (tensor<3x2xf32, #aten.strided<[0, 0]>>, tensor<2x4xf32>) -> tensor<3x4xf32>
  return %loss, %gw : tensor<f32>, tensor<3x4xf32>
}
