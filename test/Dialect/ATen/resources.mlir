// The classes of a large model's modules are at the end of the file, and not on
// its first line; in bytecode as well.
// RUN: fsdp-opt %s | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --emit-bytecode | fsdp-opt | FileCheck %s
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=class:Block" | FileCheck %s --check-prefix=UNITS
// RUN: sed '/^{-#/,$d' %s > %t.mlir
// RUN: fsdp-opt %t.mlir --fsdp-assign-units="wrap=scope:h" | FileCheck %s --check-prefix=UNITS
// RUN: not fsdp-opt %t.mlir --fsdp-assign-units="wrap=class:Block" 2>&1 | FileCheck %s --check-prefix=ELIDED
// RUN: sed s/Block.22/Block/ %s | not fsdp-opt --fsdp-assign-units="wrap=class:Block" 2>&1 | FileCheck %s --check-prefix=ELIDED
// RUN: sed s/resource.classes/resource\<other/ %s | not fsdp-opt --fsdp-assign-units="wrap=class:Block" 2>&1 | FileCheck %s --check-prefix=ELIDED
// RUN: sed s/classes:.*/classes:1/ %s | not fsdp-opt 2>&1 | FileCheck %s --check-prefix=KIND

// CHECK: module attributes {aten.classes = #aten.resource<classes>} {
// CHECK: classes: "{h = \22models.Block\22}"
// UNITS: aten.param = "h.weight"{{.*}}fsdp.unit = "h"
// ELIDED: error: expected the classes of modules, found none where `aten.classes` says: was the resource elided?
// KIND: error: expected string value for key 'classes'
module attributes {aten.classes = #aten.resource<classes>} {
  func.func @step(%w: tensor<12xf32> {aten.param = "h.weight"}) attributes {aten.program} {
    return
  }
}

{-#
  dialect_resources: {
    aten: {
      classes: "{h = \22models.Block\22}"
    }
  }
#-}
