// Every rank launches the same collectives in the same order.
// RUN: fsdp-opt %s --fsdp-verify-order -split-input-file -verify-diagnostics

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["b" : 8 at 0], numel = 8, padded = 8>
// Axes with one rank make no other communicator.
func.func @step(%p: !p, %q: !p, %x: tensor<8xf32>, %y: tensor<8xf32>) attributes {aten.program} {
  %f0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 0 : !p -> !f
  %f1 = fsdp.async.unshard @v <forward> over ["shard"] %q bucket 0 : !p -> !f
  %r0 = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %x bucket 1 : tensor<8xf32> -> !fsdp.future<!p>
  %r1 = fsdp.async.reduce_scatter @v over ["replicate", "shard"] divide <pre = 2, post = 1> via f32 %y bucket 1 : tensor<8xf32> -> !fsdp.future<!p>
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !p) attributes {aten.program} {
  // expected-note@+1 {{an earlier launch of it}}
  %f0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 3 : !p -> !f
  %v0 = fsdp.async.wait %f0 : !f -> !g
  // expected-error@+1 {{bucket 3: B1: expected its launches next to each other}}
  %f1 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 3 : !p -> !f
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !p) attributes {aten.program} {
  // expected-note@+1 {{an earlier launch of it}}
  %f0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 3 : !p -> !f
  // expected-error@+1 {{bucket 3: B2: expected launches of one operation, communicator and phase}}
  %f1 = fsdp.async.unshard @u <backward> over ["shard"] %p bucket 3 : !p -> !f
  return
}

// -----

fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
func.func @step(%x: tensor<f32>) attributes {aten.program} {
  // expected-note@+1 {{an earlier launch of it}}
  %r0 = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 2, post = 1> via f32 %x bucket 0 : tensor<f32> -> !fsdp.future<tensor<f32>>
  // expected-error@+1 {{bucket 0: B2: expected launches of one operation, communicator and phase}}
  %r1 = fsdp.async.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 2, post = 1> via f32 %x bucket 0 : tensor<f32> -> !fsdp.future<tensor<f32>>
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["b" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !p, %q: !p) attributes {aten.program} {
  // expected-note@+1 {{an earlier launch of it}}
  %f0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 3 copy : !p -> !f
  // expected-error@+1 {{bucket 3: B3: expected all of its launches to be copied, or none}}
  %f1 = fsdp.async.unshard @v <forward> over ["shard"] %q bucket 3 : !p -> !f
  return
}

// -----

// Shards are cast on the way into the buffer: they may be of two types.
!p = !fsdp.shard<8xf32, 2>
!q = !fsdp.shard<8xbf16, 2>
!f = !fsdp.future<!fsdp.gathered<8xbf16>>
!g = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage bf16 reduce f32 layout <["b" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @w on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["c" : 8 at 0], numel = 8, padded = 8>
func.func @step(%p: !p, %q: !q) attributes {aten.program} {
  %f0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket 3 copy : !p -> !f
  // expected-note@+1 {{an earlier launch of it}}
  %f1 = fsdp.async.unshard @v <forward> over ["shard"] %q bucket 3 copy : !q -> !f
  // expected-error@+1 {{bucket 3: B3: expected copied launches of one element type that divide alike}}
  %f2 = fsdp.async.unshard @w <forward> over ["shard"] %p bucket 3 copy : !p -> !g
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
fsdp.unit @v on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["b" : 8 at 0], numel = 8, padded = 8>
func.func @step(%x: tensor<8xf32>) attributes {aten.program} {
  // expected-note@+1 {{an earlier launch of it}}
  %r0 = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %x bucket 0 copy : tensor<8xf32> -> !fsdp.future<!p>
  // expected-error@+1 {{bucket 0: B3: expected copied launches of one element type that divide alike}}
  %r1 = fsdp.async.reduce_scatter @v over ["shard"] divide <pre = 1, post = 2> via f32 %x bucket 0 copy : tensor<8xf32> -> !fsdp.future<!p>
  return
}

// -----

// Control that is the same on all ranks: a constant, a sum over all of them.
!t = tensor<1xf32>
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
func.func @step(%x: !t) attributes {aten.program} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %l = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 2> via f32 %x : !t -> !fsdp.future<!t>
  %loss = fsdp.async.wait %l : !fsdp.future<!t> -> !t
  %count = builtin.unrealized_conversion_cast %loss : !t to index
  scf.for %i = %zero to %count step %one {
    %r = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 2> via f32 %x : !t -> !fsdp.future<!t>
    %s = fsdp.async.wait %r : !fsdp.future<!t> -> !t
  }
  return
}

// -----

// A branch on this rank's data.
!t = tensor<1xf32>
fsdp.mesh @mesh ["shard" = 2]
// expected-note@+1 {{which depends on this}}
func.func @step(%x: !t) attributes {aten.program} {
  %c = builtin.unrealized_conversion_cast %x : !t to i1
  // expected-note@+1 {{under this}}
  scf.if %c {
    // expected-error@+1 {{some ranks may launch this collective and others not: expected control that is the same on all}}
    %r = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 2> via f32 %x : !t -> !fsdp.future<!t>
    %s = fsdp.async.wait %r : !fsdp.future<!t> -> !t
  }
  return
}

// -----

// A loop that carries what differs into its own bound, through another loop.
!t = tensor<1xf32>
fsdp.mesh @mesh ["shard" = 2]
// expected-note@+1 {{which depends on this}}
func.func @step(%x: !t) attributes {aten.program} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %mine = builtin.unrealized_conversion_cast %x : !t to index
  %n = scf.for %i = %zero to %one step %one iter_args(%now = %zero) -> index {
    // expected-note@+1 {{under this}}
    scf.for %j = %zero to %now step %one {
      // expected-error@+1 {{some ranks may launch this collective and others not}}
      %r = fsdp.async.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 2> via f32 %x : !t -> !fsdp.future<!t>
      %s = fsdp.async.wait %r : !fsdp.future<!t> -> !t
    }
    scf.yield %mine : index
  }
  return
}
