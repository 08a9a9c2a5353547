// covers: _get_fsdp_root_states, Root, children before parents
// covers: parameters shared by two units, tied parameters
// RUN: fsdp-opt %s -split-input-file --fsdp-assign-units | FileCheck %s
// RUN: fsdp-opt %s -split-input-file --fsdp-assign-units --remarks-filter=fsdp-assign-units -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// Blocks repeat, whatever they are called; a layer norm outside of them does
// not count, and neither does the type of an unused parameter. The frozen part of
// the second block changes nothing, since only the forward is looked at.
// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.param = "embed.weight", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "x.a.p.w", fsdp.unit = "x.a"
// CHECK-SAME: aten.param = "x.a.q.w", fsdp.unit = "x.a"
// CHECK-SAME: aten.param = "x.b.one.weight", fsdp.unit = "x.b"
// CHECK-SAME: aten.param = "x.b.two.weight", fsdp.unit = "x.b"
// CHECK-SAME: aten.param = "x.b.unused", fsdp.unit = "x.b"
// CHECK-SAME: aten.param = "x.first.more.w", fsdp.unit = "x.first"
// CHECK-SAME: aten.param = "x.first.other.w", fsdp.unit = "x.first"
// CHECK-SAME: aten.param = "x.small.w", fsdp.root, fsdp.unit = "root"
// REMARK: [Passed] unit | Category:fsdp-assign-units | Function=step | Reason="'root' has 2 parameters, 80 elements"
// REMARK: Reason="'x.a' has 2 parameters, 32 elements"
// REMARK: Reason="'x.b' has 3 parameters, 35 elements"
// REMARK: Reason="'x.first' has 2 parameters, 80 elements"
func.func @step(%e: tensor<16x4xf32> {aten.param = "embed.weight"},
                %a0: tensor<4x4xf32> {aten.param = "x.a.p.w"},
                %a1: tensor<4x4xf32> {aten.param = "x.a.q.w"},
                %b0: tensor<4x4xf32> {aten.param = "x.b.one.weight"},
                %b1: tensor<4x4xf32> {aten.param = "x.b.two.weight"},
                %b2: tensor<3xf32> {aten.param = "x.b.unused"},
                %f0: tensor<4x16xf32> {aten.param = "x.first.more.w"},
                %f1: tensor<4x4xf32> {aten.param = "x.first.other.w"},
                %s: tensor<4x4xf32> {aten.param = "x.small.w"},
                %in: tensor<4x16xf32> {aten.input = 0 : i64}) -> tensor<4x4xf32> attributes {aten.program} {
  %0 = aten.call "mm"(%in, %e) {scope = "embed"} : (tensor<4x16xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
  %1 = aten.call "mm"(%f0, %e) {scope = "x.first.more"} : (tensor<4x16xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
  %2 = aten.call "mm"(%1, %f1) {scope = "x.first.other"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = aten.call "mm"(%2, %a0) {scope = "x.a.p"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = aten.call "mm"(%3, %a1) {scope = "x.a.q"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = aten.call "mm"(%4, %b0) {scope = "x.b.one", phase = #aten<phase forward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = aten.call "mm"(%5, %b1) {scope = "x.b.two"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = aten.call "mm"(%6, %s) {scope = "x.small"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %8 = aten.call "mm"(%7, %a1) {scope = "x.a.q", phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %8 : tensor<4x4xf32>
}

// -----

// Two blocks whose calls differ are not alike; a tied parameter belongs to the
// innermost unit around its owners; a unit with two element types is two units.
// CHECK-LABEL: func.func @step
// CHECK-SAME: fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "stack.0.a.w", fsdp.unit = "stack.0"
// CHECK-SAME: aten.param = "stack.0.b.w", fsdp.unit = "stack.0.bf16"
// CHECK-SAME: aten.param = "stack.1.a.w", fsdp.unit = "stack.1"
// CHECK-SAME: aten.param = "stack.1.b.w", fsdp.unit = "stack.1.bf16"
// CHECK-SAME: aten.param = "stack.2.a.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "stack.2.b.w", fsdp.root, fsdp.unit = "root.bf16"
func.func @step(%t: tensor<8xf32> {aten.param = "stack.0.t", aten.aliases = ["stack.1.t"]},
                %a0: tensor<4xf32> {aten.param = "stack.0.a.w"},
                %b0: tensor<4xbf16> {aten.param = "stack.0.b.w"},
                %a1: tensor<4xf32> {aten.param = "stack.1.a.w"},
                %b1: tensor<4xbf16> {aten.param = "stack.1.b.w"},
                %a2: tensor<4xf32> {aten.param = "stack.2.a.w"},
                %b2: tensor<2xbf16> {aten.param = "stack.2.b.w"}) attributes {aten.program} {
  %0 = aten.call "relu"(%a0) {scope = "stack.0.a"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.call "relu"(%b0) {scope = "stack.0.b"} : (tensor<4xbf16>) -> tensor<4xbf16>
  %2 = aten.call "relu"(%a1) {scope = "stack.1.a"} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = aten.call "relu"(%b1) {scope = "stack.1.b"} : (tensor<4xbf16>) -> tensor<4xbf16>
  %4 = aten.call "gelu"(%a2) {scope = "stack.2.a"} : (tensor<4xf32>) -> tensor<4xf32>
  %5 = aten.call "relu"(%b2) {scope = "stack.2.b"} : (tensor<2xbf16>) -> tensor<2xbf16>
  return
}

// -----

// Layers of a perceptron are units only where they are most of the model.
// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.param = "in.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "net.0.w", fsdp.unit = "net.0"
// CHECK-SAME: aten.param = "net.2.w", fsdp.unit = "net.2"
func.func @step(%0: tensor<4x8xf32> {aten.param = "in.w"},
                %1: tensor<8x8xf32> {aten.param = "net.0.w"},
                %2: tensor<8x8xf32> {aten.param = "net.2.w"}) attributes {aten.program} {
  %3 = aten.call "mm"(%0, %1) {scope = "net.0"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %4 = aten.call "mm"(%3, %2) {scope = "net.2"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

// CHECK-LABEL: func.func @step
// CHECK-SAME: aten.param = "in.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "net.0.w", fsdp.root, fsdp.unit = "root"
// CHECK-SAME: aten.param = "net.2.w", fsdp.root, fsdp.unit = "root"
func.func @step(%0: tensor<32x8xf32> {aten.param = "in.w"},
                %1: tensor<8x8xf32> {aten.param = "net.0.w"},
                %2: tensor<8x8xf32> {aten.param = "net.2.w"}) attributes {aten.program} {
  %3 = aten.call "mm"(%0, %1) {scope = "net.0"} : (tensor<32x8xf32>, tensor<8x8xf32>) -> tensor<32x8xf32>
  %4 = aten.call "mm"(%3, %2) {scope = "net.2"} : (tensor<32x8xf32>, tensor<8x8xf32>) -> tensor<32x8xf32>
  return
}

