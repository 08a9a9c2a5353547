// What cannot be scheduled is rejected, however large its numbers are.
// RUN: fsdp-opt %s --fsdp-schedule --split-input-file --verify-diagnostics

fsdp.mesh @mesh ["shard" = 4]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["w" : 4 at 0], numel = 4, padded = 4>
// expected-error @below {{cannot be scheduled: operation 0 takes the total past a week}}
func.func @step(%s: !fsdp.shard<4xf32, 4>) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %s bucket 0 {fsdp.cost = 9223372036854775807 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  %g = fsdp.async.unshard @u <forward> over ["shard"] %s bucket 0 {fsdp.cost = 9223372036854775807 : i64} : !fsdp.shard<4xf32, 4> -> !fsdp.future<!fsdp.gathered<4xf32>>
  return
}

// -----

func.func @step(%x: tensor<4xf32>) attributes {aten.program} {
  // expected-error @below {{expected attribute "fsdp.cost" to be an i64 of at least 0, got 1.000000e+00 : f32}}
  %y = aten.call "neg"(%x) {fsdp.cost = 1.0 : f32} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @step(%x: tensor<4xf32>, %c: i1) attributes {aten.program} {
  // expected-error @below {{expected a step without control flow}}
  scf.if %c {
  }
  return
}

// -----

// A step that does nothing takes no time.
func.func @step() attributes {aten.program} {
  return
}
