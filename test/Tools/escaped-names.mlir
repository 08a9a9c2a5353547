// What steers a terminal does not reach it through the names in a sentence.
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=class:Block" 2>&1 | FileCheck %s

// CHECK: error: no module with parameters has class 'Block'; there are '\x1b[2JLayer'{{$}}
module attributes {aten.classes = {layer = "models.\1B[2JLayer"}} {
  func.func @step(%w: tensor<12xf32> {aten.param = "layer.weight"}) attributes {aten.program} {
    return
  }
}
