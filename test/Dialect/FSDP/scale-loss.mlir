// The backward starts with the scale, updates divide by it and stop where something is found, and the scale is updated.
// RUN: sed -e 's/"full"(\[\], 1.0) {/"full"([], 1.0) {aten.gradient_seed, /' %S/Inputs/two_blocks.mlir > %t.seed.mlir
// RUN: fsdp-opt %t.seed.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-scale-loss=grad-scaler=init_scale=8 -o %t
// RUN: FileCheck %s < %t
// RUN: fsdp-opt %t --fsdp-verify-logical --fsdp-verify-equivalence --fsdp-async --fsdp-apply-schedule --fsdp-verify-scheduled --fsdp-verify-futures --fsdp-verify-order --fsdp-verify-equivalence -o /dev/null
// RUN: fsdp-opt %t --fsdp-clip-gradients=clip-grad-norm=0.5 | FileCheck %s --check-prefix=CLIP
// RUN: fsdp-opt %t.seed.mlir --fsdp-shard=ranks=4 --fsdp-accumulate=accumulate=2 --fsdp-insert-optimizer --fsdp-scale-loss=grad-scaler=default --fsdp-verify-equivalence -o %t.parts
// RUN: FileCheck %s --check-prefix=PARTS < %t.parts
// RUN: sed '/func @first/,/return/s/"mul.Tensor"(\(%%[0-9]*\), %%arg4)/"mul.Tensor"(\1, \1)/' %t.parts | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=UNSCALED
// RUN: fsdp-opt %t.seed.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer=optimizer=none --fsdp-scale-loss=grad-scaler=default | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %t.seed.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-scale-loss=grad-scaler=default --remarks-filter=fsdp-scale-loss --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-insert-optimizer --fsdp-scale-loss=grad-scaler=default 2>&1 | FileCheck %s --check-prefix=SEED
// RUN: sed -e 's/ found_inf %%[^ ]* / /' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=STOP
// RUN: sed -e 's/measure found_inf @b.1/measure found_inf @b.0/' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=UNIT
// RUN: sed -e 's/, 2.0, 0.5, 2000) /, 3.0, 0.5, 2000) /' %t | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=GROWTH

// CHECK: func.func @step({{.*}}%[[SCALE:[^ ]*]]: tensor<f32> {aten.buffer = "grad_scaler.scale", aten.value = dense<8.000000e+00> : tensor<f32>}
// CHECK-SAME: fsdp.grad_scaler = array<f64: 8.000000e+00, 2.000000e+00, 5.000000e-01, 2.000000e+03>
// CHECK: %[[ONE:.*]] = aten.call "full"
// CHECK: %[[SCALED:.*]] = aten.call "mul.Tensor"(%[[ONE]], %[[SCALE]])
// CHECK: aten.call "expand"(%[[SCALED]]
// CHECK-COUNT-3: fsdp.measure found_inf
// CHECK: fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 1> via f64 max
// CHECK: %[[FOUND:.*]] = aten.call "_to_copy"
// CHECK-COUNT-3: fsdp.adamw {{.*}} scale %[[SCALE]] found_inf %[[FOUND]] skipped %{{.*}} :
// CHECK: aten.call "_amp_update_scale"(%[[SCALE]], %{{.*}}, %[[FOUND]], 2.0, 0.5, 2000)

// The norm is that of gradients that are not scaled.
// CLIP: fsdp.clip_factor squared_norm {{.*}} scale %{{.*}}
// CLIP: fsdp.adamw {{.*}} clip %{{.*}} scale %{{.*}} found_inf

// Each micro-batch has the scale; the last one changes it.
// PARTS: func.func @first({{.*}}grad_scaler.scale
// PARTS-NOT: _amp_update_scale
// PARTS: func.func @last(
// PARTS: _amp_update_scale

// NONE-NOT: {{found_inf|grad_scaler}}
// REMARK: scale | Category:fsdp-scale-loss | Function=step | Elements=36, Reductions=1, Units=3
// SEED: error: {{.*}}expected an archive that says where the backward of a loss of one number starts
// STOP: error: {{.*}}expected an update that divides by the scale of the loss
// UNIT: error:
// UNSCALED: error: {{.*}}the gradient of 'scale' depends on another value
// GROWTH: error: {{.*}}expected the scale to grow and to back off
