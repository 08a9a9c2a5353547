// RUN: fsdp-opt %s -split-input-file --aten-fold-parameter-casts | FileCheck %s
// RUN: fsdp-opt %s -split-input-file --aten-fold-parameter-casts --remarks-filter=aten-fold-parameter-casts -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// A parameter that is only cast is taken in the type of the cast, and its gradient returned as it was computed.
// CHECK-LABEL: func.func @trained(
// CHECK-SAME: %[[W:.*]]: tensor<2x3xbf16, #aten.strided<[1, 2]>> {aten.param = "w", aten.reduce_dtype = f32, aten.storage_dtype = f32}
// CHECK-SAME: -> (tensor<3x2xbf16> {aten.output = 0 : i64}, tensor<2x3xbf16> {aten.grad_of = "w"})
func.func @trained(%w: tensor<2x3xf32, #aten.strided<[1, 2]>> {aten.param = "w", aten.param_dtype = bf16, aten.reduce_dtype = f32},
                   %x: tensor<2x3xbf16> {aten.input = 0 : i64})
    -> (tensor<3x2xbf16> {aten.output = 0 : i64}, tensor<2x3xf32> {aten.grad_of = "w"}) attributes {aten.program} {
  // CHECK-NEXT: %[[T:.*]] = aten.call "t"(%[[W]])
  %0 = aten.call "_to_copy"(%w, dtype = bf16) : (tensor<2x3xf32, #aten.strided<[1, 2]>>) -> tensor<2x3xbf16, #aten.strided<[1, 2]>>
  %1 = aten.call "t"(%0) : (tensor<2x3xbf16, #aten.strided<[1, 2]>>) -> tensor<3x2xbf16>
  // CHECK-NEXT: %[[G:.*]] = aten.call "relu"
  %2 = aten.call "relu"(%x) : (tensor<2x3xbf16>) -> tensor<2x3xbf16>
  %3 = aten.call "_to_copy"(%2, dtype = f32, layout = strided, device = cpu) : (tensor<2x3xbf16>) -> tensor<2x3xf32>
  // CHECK-NEXT: return %[[T]], %[[G]]
  return %1, %3 : tensor<3x2xbf16>, tensor<2x3xf32>
}

// -----

// One that does not train, one that is not used, and one that nobody asks for.
// CHECK-LABEL: func.func @others(
// CHECK-SAME: tensor<3xf16> {aten.param = "frozen", aten.storage_dtype = f32}
// CHECK-SAME: tensor<3xf16> {aten.param = "unused", aten.storage_dtype = f32}
// CHECK-SAME: %[[O:.*]]: tensor<3xf32> {aten.param = "other"}
func.func @others(%f: tensor<3xf32> {aten.param = "frozen", aten.param_dtype = f16},
                  %u: tensor<3xf32> {aten.param = "unused", aten.param_dtype = f16},
                  %o: tensor<3xf32> {aten.param = "other"}) -> (tensor<3xf16> {aten.output = 0 : i64}) attributes {aten.program} {
  %0 = aten.call "_to_copy"(%f, dtype = f16) : (tensor<3xf32>) -> tensor<3xf16>
  // CHECK: "_to_copy"(%[[O]]
  %1 = aten.call "_to_copy"(%o, dtype = f16) : (tensor<3xf32>) -> tensor<3xf16>
  %2 = aten.call "mul.Tensor"(%0, %1) : (tensor<3xf16>, tensor<3xf16>) -> tensor<3xf16>
  return %2 : tensor<3xf16>
}

// -----

// Used in full precision as well; cast to another type; returned; a gradient that no cast computes.
// CHECK-LABEL: func.func @kept(
// CHECK-SAME: tensor<3xf32> {aten.param = "used"}
// CHECK-SAME: tensor<3xf32> {aten.param = "cast"}
// CHECK-SAME: tensor<3xf32> {aten.param = "returned"}
// CHECK-SAME: tensor<3xf32> {aten.param = "trained"}
// REMARK: [Missed] kept | Category:aten-fold-parameter-casts | Function=kept | {{.*}}Parameter=used
// REMARK: Parameter=cast
// REMARK: Parameter=returned
// REMARK: Parameter=trained
func.func @kept(%u: tensor<3xf32> {aten.param = "used", aten.param_dtype = f16},
                %c: tensor<3xf32> {aten.param = "cast", aten.param_dtype = f16},
                %r: tensor<3xf32> {aten.param = "returned", aten.param_dtype = f16},
                %t: tensor<3xf32> {aten.param = "trained", aten.param_dtype = f16})
    -> (tensor<3xf32> {aten.output = 0 : i64}, tensor<3xf32> {aten.output = 1 : i64}, tensor<3xf32> {aten.grad_of = "trained"}) attributes {aten.program} {
  %0 = aten.call "_to_copy"(%u, dtype = f16) : (tensor<3xf32>) -> tensor<3xf16>
  %1 = aten.call "_to_copy"(%c, dtype = bf16) : (tensor<3xf32>) -> tensor<3xbf16>
  %2 = aten.call "_to_copy"(%t, dtype = f16) : (tensor<3xf32>) -> tensor<3xf16>
  %3 = aten.call "relu"(%u) : (tensor<3xf32>) -> tensor<3xf32>
  return %3, %r, %3 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}
