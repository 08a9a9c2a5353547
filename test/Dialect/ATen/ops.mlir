// RUN: fsdp-opt %s | FileCheck %s
// RUN: fsdp-opt %s | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --mlir-print-op-generic | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --emit-bytecode | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC

// Roles of arguments and results, and the attributes of a module.
// CHECK: module attributes {aten.classes = {h.0 = "models.Block"}, aten.device = #aten<device cpu>
module attributes {
  aten.device = #aten<device cpu>, aten.parameter_order = "model",
  aten.source = {torch = "2.11.0"}, aten.classes = {h.0 = "models.Block"},
  aten.symbols = {s70 = [2, 64]}
} {

// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.aliases = ["lm_head.weight"], aten.param = "wte.weight"
// CHECK-SAME: aten.buffer = "inv_freq", aten.value = dense<[1.000000e+00, 5.000000e-01]> : tensor<2xf32>
// CHECK-SAME: aten.buffer = "running_mean", aten.persistent
// CHECK-SAME: aten.dims = ["s70", 16], aten.input = 0 : i64
// CHECK-SAME: -> (tensor<f32> {aten.loss}, tensor<4x8xf32> {aten.grad_of = "wte.weight"}
func.func @step(
    %w: tensor<4x8xf32> {aten.param = "wte.weight", aten.aliases = ["lm_head.weight"]},
    %b: tensor<2xf32> {aten.buffer = "inv_freq", aten.value = dense<[1.0, 0.5]> : tensor<2xf32>},
    %m: tensor<2xf32> {aten.buffer = "running_mean", aten.persistent},
    %c: tensor<f32> {aten.constant = "c0", aten.value = dense<2.0> : tensor<f32>},
    %x: tensor<?x16xi64> {aten.input = 0 : i64, aten.dims = ["s70", 16]})
    -> (tensor<f32> {aten.loss}, tensor<4x8xf32> {aten.grad_of = "wte.weight"},
        tensor<2xf32> {aten.buffer_mutation = "running_mean"}, tensor<2xf32> {aten.output = 0 : i64}) {
  return %c, %w, %m, %b : tensor<f32>, tensor<4x8xf32>, tensor<2xf32>, tensor<2xf32>
}

// Operands and constants in their places.
// CHECK-LABEL: func.func @places
func.func @places(%x: tensor<2x16x32xf32>, %i: tensor<3xi64>) {
  // CHECK: aten.call "transpose.int"(%{{.*}}, 0, 1) {phase = #aten<phase forward>, scope = "h.0"} : (tensor<2x16x32xf32>) -> tensor<16x2x32xf32, #aten.strided<[32, 512, 1]>>
  // GENERIC: "aten.call"(%{{.*}}) <{args = #aten.args<(?, 0, 1)>, callee = #aten.op<"transpose.int">, phase = #aten<phase forward>, scope = "h.0"}>
  %0 = aten.call "transpose.int"(%x, 0, 1) {scope = "h.0", phase = #aten<phase forward>}
    : (tensor<2x16x32xf32>) -> tensor<16x2x32xf32, #aten.strided<[32, 512, 1]>>
  // CHECK: %{{.*}}:2 = aten.call "max.dim"(%{{.*}}, 1, keepdim = false) :
  %1:2 = aten.call "max.dim"(%x, 1, keepdim = false)
    : (tensor<2x16x32xf32>) -> (tensor<2x32xf32>, tensor<2x32xi64>)
  // CHECK: aten.call "index.Tensor"(%{{.*}}, [none, %{{.*}}]) :
  // GENERIC: args = #aten.args<(?, [none, ?])>
  %2 = aten.call "index.Tensor"(%x, [none, %i])
    : (tensor<2x16x32xf32>, tensor<3xi64>) -> tensor<2x3x32xf32>
  // Operands by name, an empty argument list, a namespace, no results.
  // CHECK: aten.call "f"(%{{.*}}, mask = %{{.*}}, index = -1) :
  %3 = aten.call "f"(%x, mask = %x, index = -1) : (tensor<2x16x32xf32>, tensor<2x16x32xf32>) -> none
  // CHECK: aten.call "myns::twice.out"() : () -> ()
  aten.call "myns::twice.out"() : () -> ()
  return
}

// Every kind of constant.
// CHECK-LABEL: func.func @constants
func.func @constants(%n: i64) {
  // CHECK: aten.call "f"(none, true, false, 0, -9223372036854775808, 9223372036854775807, "a \22quoted\22 text")
  aten.call "f"(none, true, false, 0, -9223372036854775808, 9223372036854775807, "a \"quoted\" text") : () -> ()
  // CHECK: aten.call "f"(1.0, -0.0, 1.0e-06, -2.5e+300, 0.3535533905932738, inf, -inf, nan)
  aten.call "f"(1.0, -0.0, 1.0e-06, -2.5e+300, 0.3535533905932738, inf, -inf, nan) : () -> ()
  // CHECK: aten.call "f"(f32, bf16, i1, ui8, i64, complex<f32>, f8E4M3FN)
  aten.call "f"(f32, bf16, i1, ui8, i64, complex<f32>, f8E4M3FN) : () -> ()
  // CHECK: aten.call "f"(device = cuda, layout = strided, memory_format = channels_last_3d, dtype = f16)
  aten.call "f"(device = cuda, layout = strided, memory_format = channels_last_3d, dtype = f16) : () -> ()
  // CHECK: aten.call "f"([], [1, -2], [1.0, -inf], [true, false], [none, none], ["a", "b"], [%{{.*}}, 3])
  aten.call "f"([], [1, -2], [1.0, -inf], [true, false], [none, none], ["a", "b"], [%n, 3]) : (i64) -> ()
  return
}

// Layouts.
// CHECK-LABEL: func.func private @layouts
// CHECK-SAME: tensor<2x3xf32, #aten.strided<[4, 1], offset = 4>>
// CHECK-SAME: tensor<?x3xf32, #aten.strided<[?, 1], offset = ?>>
// CHECK-SAME: tensor<2x2xf32, #aten.strided<[0, 0]>>
// CHECK-SAME: tensor<f32, #aten.strided<[], offset = 1>>
func.func private @layouts(
  tensor<2x3xf32, #aten.strided<[4, 1], offset = 4>>, tensor<?x3xf32, #aten.strided<[?, 1], offset = ?>>,
  tensor<2x2xf32, #aten.strided<[0, 0]>>, tensor<f32, #aten.strided<[], offset = 1>>)
}
