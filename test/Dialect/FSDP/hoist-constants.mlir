// What is the same in every step is computed once.
// RUN: fsdp-opt %s --fsdp-hoist-constants | FileCheck %s
// RUN: fsdp-opt %s --fsdp-hoist-constants --remarks-filter=fsdp-hoist-constants --remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: fsdp-opt %s --fsdp-hoist-constants=max-bytes=63 --remarks-filter=fsdp-hoist-constants --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=SMALL
// RUN: fsdp-opt %s --fsdp-hoist-constants=max-bytes=1 | FileCheck %s --check-prefix=NONE
// RUN: fsdp-opt %s --fsdp-hoist-constants | not fsdp-opt --fsdp-hoist-constants 2>&1 | FileCheck %s --check-prefix=TWICE

// Both layers' masks are one, and what has an embedded content counts as known.
// CHECK: func.func @init(%[[F:.*]]: tensor<4xf32> {aten.buffer = "freq", aten.value = {{.*}}}) -> (tensor<4xf32>, tensor<4x4xf32>) attributes {fsdp.init} {
// CHECK-NEXT: %[[RANGE:.*]] = aten.call "arange"(4)
// CHECK-NEXT: %[[TABLE:.*]] = aten.call "mul.Tensor"(%[[RANGE]], %[[F]])
// CHECK-NEXT: %[[ROW:.*]] = aten.call "unsqueeze"(%[[RANGE]], 0)
// CHECK-NEXT: %[[COLUMN:.*]] = aten.call "unsqueeze"(%[[RANGE]], 1)
// CHECK-NEXT: %[[MASK:.*]] = aten.call "sub.Tensor"(%[[ROW]], %[[COLUMN]])
// CHECK-NEXT: return %[[TABLE]], %[[MASK]] : tensor<4xf32>, tensor<4x4xf32>

// CHECK: func.func @step({{.*}}%[[T:[a-z0-9]*]]: tensor<4xf32> {fsdp.result = 0 : i64}, %[[M:[a-z0-9]*]]: tensor<4x4xf32> {fsdp.result = 1 : i64})
// A view stays where it is read.
// CHECK-NEXT: %[[WIDE:.*]] = aten.call "expand"(%[[T]], [4, 4])
// What is random, filled by draws, not known, or depends on the state of the model stays.
// CHECK-NEXT: aten.call "empty_strided"
// CHECK-NEXT: aten.call "uniform"
// CHECK-NEXT: aten.call "my::range"
// CHECK-NEXT: aten.call "neg"(%{{.*}}) {scope = "running"}
// CHECK-NEXT: aten.call "add.Tensor"(%{{.*}}, %[[WIDE]])
// CHECK-NEXT: aten.call "add.Tensor"(%{{.*}}, %[[M]])
// CHECK-NEXT: aten.call "add.Tensor"(%{{.*}}, %[[M]])

// REMARK: remark: [Passed] init | Category:fsdp-hoist-constants | Function=init | Bytes=80, Operations=3, Results=2

// The mask is too large: what it is made from persists in its place.
// SMALL: remark: [Missed] too-large | Category:fsdp-hoist-constants | Function=step | Bytes=64, MaxBytes=63
// SMALL: remark: [Passed] init | Category:fsdp-hoist-constants | Function=init | Bytes=32, Operations=2, Results=2
// SMALL: func.func @step
// SMALL: aten.call "sub.Tensor"
// SMALL-NOT: aten.call "sub.Tensor"

// NONE-NOT: @init
// TWICE: error: expected no function with 'fsdp.init' yet, found one

func.func @step(%x: tensor<4x4xf32> {aten.input = 0 : i64},
                %freq: tensor<4xf32> {aten.buffer = "freq", aten.value = dense<2.0> : tensor<4xf32>},
                %run: tensor<4xf32> {aten.buffer = "run", aten.value = dense<1.0> : tensor<4xf32>})
    -> (tensor<4x4xf32> {aten.output = 0 : i64}, tensor<4xf32> {aten.buffer_mutation = "run"},
        tensor<4xf32> {aten.output = 1 : i64}, tensor<4xf32> {aten.output = 2 : i64}) attributes {aten.program} {
  %range = aten.call "arange"(4) {scope = "a"} : () -> tensor<4xf32>
  %table = aten.call "mul.Tensor"(%range, %freq) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %wide = aten.call "expand"(%table, [4, 4]) : (tensor<4xf32>) -> tensor<4x4xf32, #aten.strided<[0, 1]>>
  %row0 = aten.call "unsqueeze"(%range, 0) {scope = "a"} : (tensor<4xf32>) -> tensor<1x4xf32>
  %column0 = aten.call "unsqueeze"(%range, 1) {scope = "a"} : (tensor<4xf32>) -> tensor<4x1xf32>
  %mask0 = aten.call "sub.Tensor"(%row0, %column0) {scope = "a"} : (tensor<1x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
  %again = aten.call "arange"(4) {scope = "b"} : () -> tensor<4xf32>
  %row1 = aten.call "unsqueeze"(%again, 0) {scope = "b"} : (tensor<4xf32>) -> tensor<1x4xf32>
  %column1 = aten.call "unsqueeze"(%again, 1) {scope = "b"} : (tensor<4xf32>) -> tensor<4x1xf32>
  %mask1 = aten.call "sub.Tensor"(%row1, %column1) {scope = "b", phase = #aten<phase backward>} : (tensor<1x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
  %empty = aten.call "empty_strided"([4], [1]) : () -> tensor<4xf32>
  %noise = aten.call "uniform"(%empty) : (tensor<4xf32>) -> tensor<4xf32>
  %own = aten.call "my::range"() : () -> tensor<4xf32>
  %new = aten.call "neg"(%run) {scope = "running"} : (tensor<4xf32>) -> tensor<4xf32>
  %y = aten.call "add.Tensor"(%x, %wide) : (tensor<4x4xf32>, tensor<4x4xf32, #aten.strided<[0, 1]>>) -> tensor<4x4xf32>
  %y0 = aten.call "add.Tensor"(%y, %mask0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y1 = aten.call "add.Tensor"(%y0, %mask1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y1, %new, %noise, %own : tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// What one program changes is no constant for another.
// CHECK: func.func @eval(
// CHECK-NEXT: aten.call "neg"(%{{.*}}) {scope = "evaluated"}
// CHECK-NEXT: return

func.func @eval(%run: tensor<4xf32> {aten.buffer = "run", aten.value = dense<1.0> : tensor<4xf32>})
    -> (tensor<4xf32> {aten.output = 0 : i64}) attributes {aten.program} {
  %old = aten.call "neg"(%run) {scope = "evaluated"} : (tensor<4xf32>) -> tensor<4xf32>
  return %old : tensor<4xf32>
}
