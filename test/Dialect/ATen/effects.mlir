// RUN: fsdp-opt %s --cse --canonicalize | FileCheck %s

// Equal calls are computed once, and a result that nobody wants not at all.
// CHECK-LABEL: func.func @pure
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
func.func @pure(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %[[SIN:.*]] = aten.call "sin"(%[[X]])
  %0 = aten.call "sin"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "sin"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = aten.call "cos"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  aten.call "_assert_tensor_metadata"(%x, none, none, f32) : (tensor<4xf32>) -> ()
  // CHECK-NEXT: return %[[SIN]], %[[SIN]]
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// Calls of different phases, scopes or constants are different calls.
// CHECK-LABEL: func.func @different
func.func @different(%x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  // CHECK-COUNT-4: aten.call "mul.Scalar"
  %0 = aten.call "mul.Scalar"(%x, 2) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "mul.Scalar"(%x, 2) {phase = #aten<phase recompute>} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = aten.call "mul.Scalar"(%x, 2.0) {phase = #aten<phase forward>} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = aten.call "mul.Scalar"(%x, 2) {phase = #aten<phase forward>, scope = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Every draw is another, and moves the generator on even if it is not used.
// CHECK-LABEL: func.func @random
func.func @random(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %[[A:.*]] = aten.call "bernoulli"
  // CHECK-NEXT: %[[B:.*]] = aten.call "bernoulli"
  // CHECK-NEXT: aten.call "rand"
  %0 = aten.call "bernoulli"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "bernoulli"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = aten.call "rand"([4]) : () -> tensor<4xf32>
  // CHECK-NEXT: return %[[A]], %[[B]]
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// An operator that nobody knows may do anything.
// CHECK-LABEL: func.func @unknown
func.func @unknown(%x: tensor<4xf32>) {
  // CHECK-NEXT: aten.call "myns::log"
  // CHECK-NEXT: aten.call "myns::log"
  aten.call "myns::log"(%x) : (tensor<4xf32>) -> ()
  aten.call "myns::log"(%x) : (tensor<4xf32>) -> ()
  return
}
