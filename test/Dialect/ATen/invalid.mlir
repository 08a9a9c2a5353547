// RUN: fsdp-opt %s -split-input-file -verify-diagnostics

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

func.func @places(%x: tensor<4xf32>) {
  // expected-error@+1 {{C1: expected 2 operands, one per place among the arguments, got 1}}
  "aten.call"(%x) <{args = #aten.args<(?, [?, none])>, callee = #aten.op<"f">}> : (tensor<4xf32>) -> ()
  return
}

// -----

func.func @in_place(%x: tensor<4xf32>) {
  // expected-error@+1 {{C2: operator 'copy_' changes its arguments in place}}
  %0 = aten.call "copy_"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @missing(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: operator 'mm' needs an argument 'mat2'}}
  %0 = aten.call "mm"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @kind(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: expected 'dim0' of operator 'transpose.int' to be of type int, got another constant}}
  %0 = aten.call "transpose.int"(%x, 0.5, 1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @operand(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: expected 'dim0' of operator 'transpose.int' to be of type int, got an operand of another type}}
  %0 = aten.call "transpose.int"(%x, %x, 1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @list(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: expected 'size' of operator 'view' to be of type SymInt[], got another constant}}
  %0 = aten.call "view"(%x, [true]) : (tensor<4x4xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @optional(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: expected 'dim0' of operator 'transpose.int' to be of type int, got another constant}}
  %0 = aten.call "transpose.int"(%x, none, 1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @twice(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: operator 'transpose.int' needs an argument 'dim1'}}
  %0 = aten.call "transpose.int"(%x, 1, dim0 = 1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @unknown(%x: tensor<4x4xf32>) {
  // expected-error@+1 {{C4: operator 'cumsum' has no such arguments, or is given one of them twice}}
  %0 = aten.call "cumsum"(%x, 1, axis = 1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @elements(%x: tensor<4xindex>) {
  // expected-error@+1 {{must be variadic of tensor, symbolic scalar, or nothing, but got 'tensor<4xindex>'}}
  %0 = aten.call "sin"(%x) : (tensor<4xindex>) -> tensor<4xf32>
  return
}

// -----

func.func @arguments(%x: tensor<4xf32>) {
  // expected-error@+1 {{C3: operator 'sin' takes 1 arguments, got 2}}
  %0 = aten.call "sin"(%x, 1) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @results(%x: tensor<4xf32>) {
  // expected-error@+1 {{C3: operator 'sin' has 1 results, got 0}}
  aten.call "sin"(%x) : (tensor<4xf32>) -> ()
  return
}

// -----

func.func @operator_name() {
  // expected-error@+1 {{N1: expected [namespace::]operator[.overload], found 'a::b::c'}}
  aten.call "a::b::c"() : () -> ()
  return
}

// -----

func.func @default_overload() {
  // expected-error@+1 {{N2: the default overload and the namespace aten are not spelled out, found 'mm.default'}}
  aten.call "mm.default"() : () -> ()
  return
}

// -----

func.func @aten_namespace() {
  // expected-error@+1 {{N2: the default overload and the namespace aten are not spelled out, found 'aten::mm'}}
  aten.call "aten::mm"() : () -> ()
  return
}

// -----

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

func.func @word() {
  // expected-error@+1 {{unknown argument 'nothing'}}
  aten.call "f"(nothing) : () -> ()
  return
}

// -----

func.func @large() {
  // expected-error@+1 {{integer does not fit into 64 bits}}
  aten.call "f"(9223372036854775808) : () -> ()
  return
}

// -----

func.func @order() {
  // expected-error@+1 {{positional argument after a named one}}
  aten.call "f"(dim = 1, 2) : () -> ()
  return
}

// -----

func.func @nested() {
  // expected-error@+1 {{G2: [array<i64: 1>, array<i64: 2>] is not a canonical list}}
  aten.call "f"([[1], [2]]) : () -> ()
  return
}

// -----

func.func @twice() {
  // expected-error@+1 {{G3: "dim" is no identifier, or occurs twice}}
  aten.call "f"(dim = 1, dim = 2) : () -> ()
  return
}

// -----

// expected-error@+1 {{unknown argument 'index'}}
func.func private @f() attributes {x = #aten.args<(index)>}

// -----

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

// expected-error@+1 {{S1: expected one stride per dimension, found 1 strides and 2 dimensions}}
func.func private @f(tensor<2x3xf32, #aten.strided<[3]>>)

// -----

// expected-error@+1 {{S2: expected strides and offset that are not negative}}
func.func private @f(tensor<2x3xf32, #aten.strided<[-3, 1]>>)

// -----

// expected-error@+1 {{S3: a dense row-major tensor has no layout}}
func.func private @f(tensor<2x3xf32, #aten.strided<[3, 1]>>)

// -----

//===----------------------------------------------------------------------===//
// Roles
//===----------------------------------------------------------------------===//

// expected-error@+1 {{A1: attribute "aten.parm" is unknown on an argument}}
func.func private @f(tensor<f32> {aten.parm = "w"})

// -----

// expected-error@+1 {{A1: attribute "aten.param" is unknown on a result}}
func.func private @f() -> (tensor<f32> {aten.param = "w"})

// -----

// expected-error@+1 {{A1: attribute "aten.loss" is unknown on an operation}}
module attributes {aten.loss} {}

// -----

// expected-error@+1 {{A2: expected "aten.param" to have a string, found 0 : i64}}
func.func private @f(tensor<f32> {aten.param = 0})

// -----

// expected-error@+1 {{A2: expected "aten.output" to have a 64-bit integer that is not negative, found -1 : i64}}
func.func private @f() -> (tensor<f32> {aten.output = -1})

// -----

// expected-error@+1 {{A2: expected "aten.device" to have a device, found "cpu"}}
module attributes {aten.device = "cpu"} {}

// -----

// expected-error@+1 {{A3: argument 0 has more than one role}}
func.func private @f(tensor<f32> {aten.param = "w", aten.buffer = "b"})

// -----

// expected-error@+1 {{A3: result 0 has more than one role}}
func.func private @f() -> (tensor<f32> {aten.loss, aten.output = 0 : i64})

// -----

// expected-error@+1 {{A4: argument 0 has 'aten.aliases', which belongs to a parameter}}
func.func private @f(tensor<f32> {aten.buffer = "b", aten.aliases = ["a"]})

// -----

// expected-error@+1 {{A4: argument 0 has 'aten.persistent', which belongs to a buffer}}
func.func private @f(tensor<f32> {aten.param = "w", aten.persistent})

// -----

// expected-error@+1 {{A4: argument 0 has 'aten.value', which belongs to a constant or a buffer that is not persistent}}
func.func private @f(tensor<f32> {aten.buffer = "b", aten.persistent, aten.value = dense<0.0> : tensor<f32>})

// -----

// expected-error@+1 {{A4: argument 0 has 'aten.reduce_dtype', which belongs to a parameter}}
func.func private @f(tensor<f32> {aten.buffer = "b", aten.reduce_dtype = f32})

// -----

// expected-error@+1 {{A2: expected "aten.param_dtype" to have a floating-point type, found i8}}
func.func private @f(tensor<f32> {aten.param = "w", aten.param_dtype = i8})

// -----

// expected-error@+1 {{A4: argument 0 has 'aten.input_name', which belongs to an input}}
func.func private @f(tensor<f32> {aten.param = "w", aten.input_name = "x"})

// -----

// expected-error@+1 {{A7: two arguments are input "x"}}
func.func private @f(tensor<f32> {aten.input = 0 : i64, aten.input_name = "x"}, tensor<f32> {aten.input = 1 : i64, aten.input_name = "x"})

// -----

// expected-error@+1 {{A5: argument 0 is of type 'tensor<2xf32>', but its value of type 'tensor<f32>'}}
func.func private @f(tensor<2xf32> {aten.constant = "c", aten.value = dense<0.0> : tensor<f32>})

// -----

// expected-error@+1 {{A7: two arguments are parameter "w"}}
func.func private @f(tensor<f32> {aten.param = "w"}, tensor<f32> {aten.param = "v", aten.aliases = ["w"]})

// -----

// expected-error@+1 {{A7: two arguments are input 0 : i64}}
func.func private @f(tensor<f32>, tensor<f32> {aten.input = 0 : i64}, tensor<f32> {aten.input = 0 : i64})

// -----

// No tensor is so large, and sums of bytes must not overflow.
func.func @too_large(%x: tensor<4xf32>) {
  // expected-error@+1 {{C5: expected tensors of at most 1099511627776 elements, got 'tensor<9223372036854775807x8xf32>'}}
  %0 = aten.call "sin"(%x) : (tensor<4xf32>) -> tensor<9223372036854775807x8xf32>
  return
}

// -----

func.func @reaches_too_far(%x: tensor<4xf32>) {
  // expected-error@+1 {{C5: expected tensors of at most 1099511627776 elements}}
  %0 = aten.call "sin"(%x) : (tensor<4xf32>) -> tensor<3x2xf32, #aten.strided<[9223372036854775807, 1]>>
  return
}

// -----

// expected-error@+1 {{A6: argument 1 has more than 1099511627776 elements}}
func.func @argument_without_role_too_large(%x: tensor<4xf32>, %y: tensor<4611686018427387904xf32>) attributes {aten.program} {
  return
}

// -----

// The smallest integer is how an unknown stride is kept.
// expected-error@+1 {{expected '?' for an unknown extent, got -9223372036854775808}}
func.func private @no_stride(tensor<4xf32, #aten.strided<[-9223372036854775808]>>)

// -----

// expected-error@+1 {{A6: argument 0 has more than 1099511627776 elements}}
func.func @argument_too_large(%x: tensor<4294967296x4294967296xf32> {aten.param = "w"}) {
  return
}

// -----

// A number stands for a tensor, but not for one that is viewed.
func.func @view_of_number() -> tensor<f32> {
  // expected-error@+1 {{C4: expected 'self' of operator 'detach' to be of type Tensor, got another constant}}
  %0 = aten.call "detach"(3) : () -> tensor<f32>
  return %0 : tensor<f32>
}
