// RUN: fsdp-opt %s -split-input-file -verify-diagnostics --fsdp-legalize | FileCheck %s

// A tensor that was cut out of another starts a storage of its own, and views of it count from there.
// CHECK-LABEL: func.func @offsets(
// CHECK-SAME: tensor<2x3xf32> {aten.param = "w"}, %{{.*}}: tensor<4xf32> {aten.input = 0 : i64}
// CHECK-SAME: -> (tensor<3xf32, #aten.strided<[1], offset = 3>>, tensor<3x2xf32, #aten.strided<[1, 3]>>, tensor<2xf32, #aten.strided<[1], offset = 1>>)
func.func @offsets(%w: tensor<2x3xf32, #aten.strided<[3, 1], offset = 6>> {aten.param = "w"},
                   %x: tensor<4xf32, #aten.strided<[1], offset = 2>> {aten.input = 0 : i64})
    -> (tensor<3xf32, #aten.strided<[1], offset = 9>>, tensor<3x2xf32, #aten.strided<[1, 3], offset = 6>>, tensor<2xf32, #aten.strided<[1], offset = 3>>) attributes {aten.program} {
  // CHECK: aten.call "transpose.int"({{.*}}) : (tensor<2x3xf32>) -> tensor<3x2xf32, #aten.strided<[1, 3]>>
  %t = aten.call "transpose.int"(%w, 0, 1) : (tensor<2x3xf32, #aten.strided<[3, 1], offset = 6>>) -> tensor<3x2xf32, #aten.strided<[1, 3], offset = 6>>
  // CHECK: -> tensor<3xf32, #aten.strided<[1], offset = 3>>
  %r = aten.call "select.int"(%t, 1, 1) : (tensor<3x2xf32, #aten.strided<[1, 3], offset = 6>>) -> tensor<3xf32, #aten.strided<[1], offset = 9>>
  %s = aten.call "slice.Tensor"(%x, 0, 1, 3) : (tensor<4xf32, #aten.strided<[1], offset = 2>>) -> tensor<2xf32, #aten.strided<[1], offset = 3>>
  return %r, %t, %s : tensor<3xf32, #aten.strided<[1], offset = 9>>, tensor<3x2xf32, #aten.strided<[1, 3], offset = 6>>, tensor<2xf32, #aten.strided<[1], offset = 3>>
}

// -----

func.func @ahead(%x: tensor<4xf32, #aten.strided<[1], offset = 2>> {aten.input = 0 : i64}) -> tensor<2xf32> attributes {aten.program} {
  // expected-error@+1 {{expected a view inside of a tensor with a storage of its own, found one that starts 2 elements ahead of it}}
  %s = aten.call "as_strided"(%x, [2], [1], 0) : (tensor<4xf32, #aten.strided<[1], offset = 2>>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// -----

// Nobody trains integers.
// CHECK-LABEL: func.func @integers(
// CHECK-SAME: tensor<3xi64> {aten.buffer = "order", aten.persistent}
// CHECK-SAME: tensor<3xi1> {aten.buffer = "mask", aten.persistent}
// CHECK-SAME: tensor<3xf32> {aten.param = "w"}
func.func @integers(%o: tensor<3xi64> {aten.param = "order", aten.aliases = ["also"]}, %m: tensor<3xi1> {aten.param = "mask"}, %w: tensor<3xf32> {aten.param = "w"}) attributes {aten.program} {
  return
}

// -----

// CHECK-LABEL: func.func @values(
// CHECK: "conj_physical"(
// CHECK: "neg"(
// CHECK: "clone"(
func.func @values(%z: tensor<3xcomplex<f32>>, %x: tensor<3xf32>) -> (tensor<3xcomplex<f32>>, tensor<3xf32>) attributes {aten.program} {
  %c = aten.call "_conj"(%z) : (tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>>
  %n = aten.call "_neg_view"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %r = aten.call "resolve_conj"(%c) : (tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>>
  return %r, %n : tensor<3xcomplex<f32>>, tensor<3xf32>
}

// -----

// CHECK-LABEL: func.func @broadcast(
// CHECK-SAME: %[[Z:.*]]: tensor<2x3xf32>, %[[X:.*]]: tensor<3xf32>
func.func @broadcast(%z: tensor<2x3xf32>, %x: tensor<3xf32>, %y: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) attributes {aten.program} {
  // CHECK: %[[E:.*]] = aten.call "expand"(%[[X]], [2, 3]) : (tensor<3xf32>) -> tensor<2x3xf32, #aten.strided<[0, 1]>>
  // CHECK: aten.call "copy"(%[[Z]], %[[E]])
  %0 = aten.call "copy"(%z, %x) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  // CHECK-NOT: expand
  %1 = aten.call "copy"(%z, %y) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<2x3xf32>
}

// -----

// All elements: those of the source in another layout.
// CHECK-LABEL: func.func @whole(
// CHECK-SAME: %{{.*}}: tensor<6xf32>, %[[S:.*]]: tensor<2x3xf32>
func.func @whole(%z: tensor<6xf32>, %s: tensor<2x3xf32>) -> tensor<6xf32> attributes {aten.program} {
  // CHECK: %[[C:.*]] = aten.call "clone"(%[[S]]) : (tensor<2x3xf32>) -> tensor<2x3xf32, #aten.strided<[1, 2]>>
  // CHECK: aten.call "as_strided"(%[[C]], [6], [1], 0) : (tensor<2x3xf32, #aten.strided<[1, 2]>>) -> tensor<6xf32>
  %0 = aten.call "as_strided_scatter"(%z, %s, [2, 3], [1, 2], 0) : (tensor<6xf32>, tensor<2x3xf32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}

// -----

// Some of them: by their numbers.
// CHECK-LABEL: func.func @part(
// CHECK-SAME: %[[Z:.*]]: tensor<4x3xf32>, %[[S:.*]]: tensor<2x2xf32>
func.func @part(%z: tensor<4x3xf32>, %s: tensor<2x2xf32>) -> tensor<4x3xf32> attributes {aten.program} {
  // CHECK: %[[N:.*]] = aten.call "arange"(12) : () -> tensor<12xi64>
  // CHECK: %[[W:.*]] = aten.call "as_strided"(%[[N]], [2, 2], [6, 1], 4) : (tensor<12xi64>) -> tensor<2x2xi64, #aten.strided<[6, 1], offset = 4>>
  // CHECK: %[[C:.*]] = aten.call "clone"(%[[Z]])
  // CHECK: %[[F:.*]] = aten.call "as_strided"(%[[C]], [12], [1], 0) : (tensor<4x3xf32>) -> tensor<12xf32>
  // CHECK: %[[P:.*]] = aten.call "index_put"(%[[F]], [%[[W]]], %[[S]])
  // CHECK: aten.call "as_strided"(%[[P]], [4, 3], [3, 1], 0) : (tensor<12xf32>) -> tensor<4x3xf32>
  %0 = aten.call "as_strided_scatter"(%z, %s, [2, 2], [6, 1], 4) : (tensor<4x3xf32>, tensor<2x2xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----

// A window that is not inside of the tensor stays for the kernel to reject.
// CHECK-LABEL: func.func @outside(
// CHECK: as_strided_scatter
func.func @outside(%z: tensor<6xf32>, %s: tensor<2x3xf32>) -> tensor<6xf32> attributes {aten.program} {
  %0 = aten.call "as_strided_scatter"(%z, %s, [2, 3], [6, 2], 0) : (tensor<6xf32>, tensor<2x3xf32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}

// -----

// Dropout is a mask and two products; the factor is an element, rounded as one. Of nothing to drop nothing is drawn.
// CHECK-LABEL: func.func @dropout(
// CHECK-SAME: %[[X:.*]]: tensor<2x3xbf16, #aten.strided<[1, 2]>>
func.func @dropout(%x: tensor<2x3xbf16, #aten.strided<[1, 2]>>, %y: tensor<4xf32>)
    -> (tensor<2x3xbf16, #aten.strided<[1, 2]>>, tensor<2x3xi1, #aten.strided<[1, 2]>>, tensor<4xf32>, tensor<4xf32>) attributes {aten.program} {
  // CHECK-NEXT: %[[E:.*]] = aten.call "empty_strided"([2, 3], [1, 2], dtype = i1) {phase = #aten<phase forward>, scope = "a"} : () -> tensor<2x3xi1, #aten.strided<[1, 2]>>
  // CHECK-NEXT: %[[M:.*]] = aten.call "bernoulli.p"(%[[E]], 0.9) {phase = #aten<phase forward>, scope = "a"}
  // CHECK-NEXT: %[[K:.*]] = aten.call "mul.Tensor"(%[[X]], %[[M]])
  // CHECK-NEXT: aten.call "mul.Scalar"(%[[K]], 1.109375)
  %0:2 = aten.call "native_dropout"(%x, 0.1, true) {phase = #aten<phase forward>, scope = "a"} : (tensor<2x3xbf16, #aten.strided<[1, 2]>>) -> (tensor<2x3xbf16, #aten.strided<[1, 2]>>, tensor<2x3xi1, #aten.strided<[1, 2]>>)
  // CHECK: aten.call "bernoulli.p"(%{{.*}}, 0.0)
  // CHECK-NEXT: %[[N:.*]] = aten.call "mul.Tensor"
  // CHECK-NEXT: aten.call "mul.Scalar"(%[[N]], 0.0)
  %1:2 = aten.call "native_dropout"(%y, 1, true) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi1>)
  // CHECK: aten.call "native_dropout"
  %2:2 = aten.call "native_dropout"(%y, 0.1, false) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi1>)
  return %0#0, %0#1, %1#0, %2#0 : tensor<2x3xbf16, #aten.strided<[1, 2]>>, tensor<2x3xi1, #aten.strided<[1, 2]>>, tensor<4xf32>, tensor<4xf32>
}

// -----

// What draws without a generator has an equal that takes one.
// CHECK-LABEL: func.func @draws(
func.func @draws(%x: tensor<2x3xf32>) -> (tensor<f32>, tensor<2x3xf64>, tensor<4xf32>, tensor<2x3xi64>, tensor<2x3xf32>, tensor<5xi64>) attributes {aten.program} {
  // CHECK: %[[E:.*]] = aten.call "empty_strided"([], [], dtype = f32) : () -> tensor<f32>
  // CHECK-NEXT: aten.call "uniform"(%[[E]], 0.0, 1.0) : (tensor<f32>) -> tensor<f32>
  %0 = aten.call "rand"([], pin_memory = false) : () -> tensor<f32>
  // CHECK: aten.call "normal_functional"(%{{.*}}, 0.0, 1.0) : (tensor<2x3xf64>) -> tensor<2x3xf64>
  %1 = aten.call "randn_like"(%x, dtype = f64) : (tensor<2x3xf32>) -> tensor<2x3xf64>
  // CHECK: aten.call "normal_functional"(%{{.*}}, 1.0, 2.0)
  %2 = aten.call "normal.float_float"(1.0, 2.0, [4]) : () -> tensor<4xf32>
  // CHECK: aten.call "random.from"(%{{.*}}, 0, 7)
  %3 = aten.call "randint"(7, [2, 3]) : () -> tensor<2x3xi64>
  // CHECK: aten.call "random.from"(%{{.*}}, -2, 7)
  %4 = aten.call "randint_like.low_dtype"(%x, -2, 7) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: aten.call "randperm.generator"(5, pin_memory = false, generator = none)
  %5 = aten.call "randperm"(5, pin_memory = false) : () -> tensor<5xi64>
  return %0, %1, %2, %3, %4, %5 : tensor<f32>, tensor<2x3xf64>, tensor<4xf32>, tensor<2x3xi64>, tensor<2x3xf32>, tensor<5xi64>
}
