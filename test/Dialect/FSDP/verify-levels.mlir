// The borders of the levels, and that a phase reads its own gathers.
// RUN: fsdp-opt %s --fsdp-verify-logical -split-input-file -verify-diagnostics
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-verify-scheduled 2>&1 | FileCheck %s --check-prefix=SCHEDULED
// RUN: not fsdp-opt %S/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-async --fsdp-verify-logical 2>&1 | FileCheck %s --check-prefix=LOGICAL
// SCHEDULED: error: is of the logical level
// LOGICAL: error: is of the scheduled level

// expected-error@+1 {{parameter "w" is not sharded}}
func.func @step(%w: tensor<4xf32> {aten.param = "w"}) attributes {aten.program} { return }

// -----

// expected-error@+1 {{the gradient of "w" is not reduced}}
func.func @step(%g: tensor<4xf32>) -> (tensor<4xf32> {aten.grad_of = "w"}) attributes {aten.program} { return %g : tensor<4xf32> }

// -----

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @step(%m: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg>}) attributes {aten.program} {
  // expected-error@+1 {{expected to gather the parameter argument of unit @u, or a piece of it}}
  %full = fsdp.unshard @u <forward> over ["shard"] %m : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  return
}

// -----

// A piece of another unit.
fsdp.mesh @mesh ["shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !fsdp.shard<8xf32, 4> {fsdp.state = #fsdp.state<@v, parameter>}) attributes {aten.program} {
  %full = fsdp.unshard @v <forward> over ["shard", "local"] %p : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xf32>
  %piece = fsdp.piece @u over ["local"] %full : !fsdp.gathered<8xf32> -> !fsdp.shard<8xf32, 2>
  // expected-error@+1 {{expected to gather the parameter argument of unit @u, or a piece of it}}
  %again = fsdp.unshard @u <backward> over ["local"] %piece : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
  %full = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  // expected-error@+1 {{expected a view of a gather of unit @v, got one of @u}}
  %a = fsdp.view %full[@v, "a"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
  return
}

// -----

// A backward use of the forward's gather, through a view.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8> {reshard_after_forward}
func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
  // expected-note@+1 {{gathered here}}
  %full = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  %a = fsdp.view %full[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
  %t = aten.call "t"(%a) {phase = #aten<phase forward>} : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  // expected-error@+1 {{the backward reads unit @u as gathered for the forward}}
  %n = aten.call "neg"(%t) {phase = #aten<phase backward>} : (tensor<4x2xf32, #aten.strided<[1, 4]>>) -> tensor<4x2xf32>
  return
}

// -----

// Fine for a unit that stays gathered; and recomputation is part of the backward.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {reshard_after_forward}
func.func @step(%p: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                %q: !fsdp.shard<8xf32, 2> {fsdp.state = #fsdp.state<@v, parameter>}) attributes {aten.program} {
  %u = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  %a = fsdp.view %u[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
  %b = aten.call "neg"(%a) {phase = #aten<phase backward>} : (tensor<8xf32>) -> tensor<8xf32>
  %v = fsdp.unshard @v <backward> over ["shard"] %q : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  %c = fsdp.view %v[@v, "a"] : !fsdp.gathered<8xf32> -> tensor<8xf32>
  %d = aten.call "neg"(%c) {phase = #aten<phase recompute>} : (tensor<8xf32>) -> tensor<8xf32>
  return
}
