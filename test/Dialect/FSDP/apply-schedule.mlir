// Launches go where the attribute says, and nothing else moves; what can not be is rejected.
// covers: _prefetch_handle
// RUN: fsdp-opt %s --fsdp-apply-schedule --split-input-file --verify-diagnostics | FileCheck %s

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>, %x: tensor<4xf32>) attributes {aten.program} {
  // CHECK: aten.call "neg"
  // CHECK-NEXT: fsdp.async.unshard @u <backward> over ["shard"] %{{.*}} : !fsdp
  // CHECK-NEXT: fsdp.async.unshard @u <forward> over ["shard"] %{{.*}} : !fsdp
  // CHECK-NEXT: fsdp.async.wait
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.issue = 2 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  %y = aten.call "neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<4xf32>> -> !fsdp.gathered<4xf32>
  %g = fsdp.async.unshard @u <backward> over ["shard"] %s {fsdp.issue = 1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  %again = fsdp.async.wait %g : !fsdp.future<!fsdp.gathered<4xf32>> -> !fsdp.gathered<4xf32>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-error @below {{is to be issued at place 1, but the step has 1}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.issue = 1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-note @below {{that operation}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.issue = 1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  // expected-error @below {{is to be issued at place 1, which another operation has}}
  %g = fsdp.async.unshard @u <backward> over ["shard"] %s {fsdp.issue = 1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-note @below {{made here}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.issue = 1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  // expected-error @below {{is scheduled before what it needs}}
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<4xf32>> -> !fsdp.gathered<4xf32>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-error @below {{expected attribute "fsdp.issue" to be an i64 of at least 0, got -1 : i64}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.issue = -1 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-error @below {{is to start after the operation at place 1, which is no reshard}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.after = array<i64: 1>} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<4xf32>> -> !fsdp.gathered<4xf32>
  %freed = fsdp.async.reshard %full : !fsdp.gathered<4xf32>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  // expected-error @below {{is scheduled before what it needs}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s {fsdp.after = array<i64: 2>} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  %full = fsdp.async.wait %f : !fsdp.future<!fsdp.gathered<4xf32>> -> !fsdp.gathered<4xf32>
  // expected-note @below {{made here}}
  %freed = fsdp.async.reshard %full : !fsdp.gathered<4xf32>
  return
}

// -----

func.func @step(%x: tensor<4xf32>) attributes {aten.program} {
  // expected-error @below {{is to start after a reshard, but is no all-gather}}
  %y = aten.call "neg"(%x) {fsdp.after = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @step(%x: tensor<4xf32>) attributes {aten.program} {
  // expected-error @below {{expected attribute "fsdp.after" to be an array of i64, got 0 : i64}}
  %y = aten.call "neg"(%x) {fsdp.after = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @step(%x: tensor<4xf32>) attributes {aten.program} {
  // expected-error @below {{has a place to be issued at, but is no launch and no wait}}
  %y = aten.call "neg"(%x) {fsdp.issue = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
