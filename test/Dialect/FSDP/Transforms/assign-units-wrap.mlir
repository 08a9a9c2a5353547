// The policies that name what they want: paths, classes, sizes.
// covers: size_based_auto_wrap_policy, ModuleWrapPolicy
// covers: lambda_auto_wrap_policy, Wrap
// covers: a policy that returns neither bool nor dict
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=scope:layers\.\d+" | FileCheck %s --check-prefix=LAYERS
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=class:Layer" | FileCheck %s --check-prefix=LAYERS
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=class:models.Layer" | FileCheck %s --check-prefix=LAYERS
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=scope:(layers\.\w+|layers\.1\.b)" | FileCheck %s --check-prefix=NESTED
// RUN: fsdp-opt %s --fsdp-assign-units="wrap=size:16" | FileCheck %s --check-prefix=SIZE
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=scope:h\.\d+" 2>&1 | FileCheck %s --check-prefix=NO-PATH
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=scope:(" 2>&1 | FileCheck %s --check-prefix=NO-REGEX
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=class:Block" 2>&1 | FileCheck %s --check-prefix=NO-CLASS
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=size:0" 2>&1 | FileCheck %s --check-prefix=NO-POLICY
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=modules" 2>&1 | FileCheck %s --check-prefix=NO-POLICY
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=layer" 2>&1 | FileCheck %s --check-prefix=A-CLASS
// RUN: not fsdp-opt %s --fsdp-assign-units="wrap=scope:Layer" 2>&1 | FileCheck %s --check-prefix=CLASS-AS-PATH

// The wrapper's own name, 'm', need not be written.
// LAYERS: aten.param = "m.embed.weight", fsdp.root, fsdp.unit = "root"
// LAYERS-SAME: aten.param = "m.layers.0.a.weight", fsdp.unit = "m.layers.0"
// LAYERS-SAME: aten.param = "m.layers.0.b.weight", fsdp.unit = "m.layers.0"
// LAYERS-SAME: aten.param = "m.layers.1.a.weight", fsdp.unit = "m.layers.1"
// LAYERS-SAME: aten.param = "m.layers.1.b.weight", fsdp.unit = "m.layers.1"

// A parameter belongs to the innermost unit.
// NESTED: aten.param = "m.embed.weight", fsdp.root, fsdp.unit = "root"
// NESTED-SAME: aten.param = "m.layers.0.b.weight", fsdp.unit = "m.layers.0"
// NESTED-SAME: aten.param = "m.layers.1.a.weight", fsdp.unit = "m.layers.1"
// NESTED-SAME: aten.param = "m.layers.1.b.weight", fsdp.unit = "m.layers.1.b"

// From the innermost module out, with what is in no unit yet; lists of modules
// and the model itself are none.
// SIZE: aten.param = "m.embed.weight", fsdp.unit = "m"
// SIZE-SAME: aten.param = "m.layers.0.a.weight", fsdp.unit = "m"
// SIZE-SAME: aten.param = "m.layers.0.b.weight", fsdp.unit = "m"
// SIZE-SAME: aten.param = "m.layers.1.a.weight", fsdp.unit = "m.layers.1.a"
// SIZE-SAME: aten.param = "m.layers.1.b.weight", fsdp.unit = "m.layers.1.b"

// NO-PATH: error: no module with parameters has path 'h\.\d+'; there are 'm', 'm\.embed', 'm\.layers', 'm\.layers\.\d+', 'm\.layers\.\d+\.a', 'm\.layers\.\d+\.b'{{$}}
// NO-REGEX: error: expected a regular expression, found '(': parentheses not balanced
// NO-CLASS: error: no module with parameters has class 'Block'; there are 'Model', 'Embedding', 'Layer', 'Linear'{{$}}
// NO-POLICY: error: expected wrap to be 'auto', 'scope:REGEX', 'class:NAME' or 'size:N', got '{{[a-z0:]+}}'{{$}}
// A-CLASS: error: expected wrap to be 'auto', {{.*}}, got 'layer'; did you mean 'class:Layer'?
// CLASS-AS-PATH: error: no module with parameters has path 'Layer'; there are 'm', {{.*}}; did you mean 'class:Layer'?
module attributes {aten.classes = {m = "models.Model", m.embed = "torch.nn.Embedding",
    m.layers.0 = "models.Layer", m.layers.1 = "models.Layer",
    m.layers.0.a = "torch.nn.Linear", m.layers.0.b = "torch.nn.Linear",
    m.layers.1.a = "torch.nn.Linear", m.layers.1.b = "torch.nn.Linear"}} {
  func.func @step(%e: tensor<12xf32> {aten.param = "m.embed.weight"},
                  %a0: tensor<4xf32> {aten.param = "m.layers.0.a.weight"},
                  %b0: tensor<8xf32> {aten.param = "m.layers.0.b.weight"},
                  %a1: tensor<16xf32> {aten.param = "m.layers.1.a.weight"},
                  %b1: tensor<16xf32> {aten.param = "m.layers.1.b.weight"}) attributes {aten.program} {
    return
  }
}
