// What is launched is waited for once on every path; gathered memory ends, and is
// used only before.
// covers: _reshard, _catch_all_reshard, _post_backward_final_callback
// covers: TrainingState, HandleTrainingState, Postcondition, reshard()
// covers: forward in the wrong state, _register_post_backward_final_callback
// RUN: fsdp-opt %s --fsdp-verify-futures -split-input-file -verify-diagnostics

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>

// Straight-line code, with a view of a view.
func.func @good(%p: !p) -> tensor<4x2xf32> attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  %a = fsdp.view %full[@u, "a"] : !g -> tensor<2x4xf32>
  %t = aten.call "t"(%a) : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  %n = aten.call "clone"(%t) : (tensor<4x2xf32, #aten.strided<[1, 4]>>) -> tensor<4x2xf32>
  fsdp.async.reshard %full : !g
  return %n : tensor<4x2xf32>
}

// A loop that carries the future of the next iteration.
func.func @prefetch_through_loop(%p: !p, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  %first = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %last = scf.for %i = %lb to %ub step %s iter_args(%cur = %first) -> (!f) {
    %next = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
    %v = fsdp.async.wait %cur : !f -> !g
    fsdp.async.reshard %v : !g
    scf.yield %next : !f
  }
  %v = fsdp.async.wait %last : !f -> !g
  fsdp.async.reshard %v : !g
  return
}

// Both ways of a branch.
func.func @both_ways(%p: !p, %c: i1) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %v = scf.if %c -> !g {
    %w = fsdp.async.wait %f : !f -> !g
    scf.yield %w : !g
  } else {
    %w = fsdp.async.wait %f : !f -> !g
    scf.yield %w : !g
  }
  fsdp.async.reshard %v : !g
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @never(%p: !p) attributes {aten.program} {
  // expected-error@+1 {{collective may never be waited for}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  // expected-note@+1 {{function returns here}}
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @on_one_path(%p: !p, %c: i1) attributes {aten.program} {
  // expected-error@+1 {{collective may never be waited for}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  scf.if %c {
    %v = fsdp.async.wait %f : !f -> !g
    fsdp.async.reshard %v : !g
  }
  // expected-note@+1 {{function returns here}}
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @twice(%p: !p, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  scf.for %i = %lb to %ub step %s {
    // expected-note@+2 {{waited for here}}
    // expected-error@+1 {{collective may already have been waited for}}
    %v = fsdp.async.wait %f : !f -> !g
    fsdp.async.reshard %v : !g
  }
  return
}

// -----

// A leak in every iteration.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @never_in_loop(%p: !p, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  scf.for %i = %lb to %ub step %s {
    // expected-error@+1 {{collective may never be waited for}}
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  }
  // expected-note@+1 {{function returns here}}
  return
}

// -----

// A loop that forgets the future that it was given.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @forgotten_by_loop(%p: !p, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  %first = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  // expected-error@+1 {{collective may never be waited for}}
  %last = scf.for %i = %lb to %ub step %s iter_args(%cur = %first) -> (!f) {
    %next = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
    scf.yield %next : !f
  }
  %v = fsdp.async.wait %last : !f -> !g
  fsdp.async.reshard %v : !g
  // expected-note@+1 {{function returns here}}
  return
}

// -----

// The one way of a branch reshards what both ways lead to.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @resharded_on_one_path(%p: !p, %c: i1) -> tensor<2x4xf32> attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  scf.if %c {
    // expected-note@+1 {{resharded here}}
    fsdp.async.reshard %full : !g
  }
  // expected-error@+1 {{gathered unit may already have been resharded}}
  %a = fsdp.view %full[@u, "a"] : !g -> tensor<2x4xf32>
  return %a : tensor<2x4xf32>
}

// -----

// The next iteration uses what this one has resharded.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @resharded_in_loop(%p: !p, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  scf.for %i = %lb to %ub step %s {
    // expected-error@+1 {{gathered unit may already have been resharded}}
    %a = fsdp.view %full[@u, "a"] : !g -> tensor<2x4xf32>
    // expected-note@+1 {{resharded here}}
    fsdp.async.reshard %full : !g
  }
  return
}

// -----

// The next iteration gathers what this one updates.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @race_in_loop(%p: !p, %grad: !p, %hyper: tensor<7xf64>, %lb: index, %ub: index, %s: index) attributes {aten.program} {
  scf.for %i = %lb to %ub step %s {
    // expected-error@+1 {{shard may already have been updated, in its place}}
    %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
    %full = fsdp.async.wait %f : !f -> !g
    fsdp.async.reshard %full : !g
    // expected-note@+1 {{updated here}}
    %new = fsdp.sgd @u [0 to 8] %p, %grad, %hyper : !p, tensor<7xf64>
  }
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @never_resharded(%p: !p) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  // expected-error@+1 {{gathered unit may never be resharded}}
  %full = fsdp.async.wait %f : !f -> !g
  // expected-note@+1 {{function returns here}}
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @view_of_view(%p: !p) -> tensor<4x2xf32> attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  %a = fsdp.view %full[@u, "a"] : !g -> tensor<2x4xf32>
  %t = aten.call "t"(%a) : (tensor<2x4xf32>) -> tensor<4x2xf32, #aten.strided<[1, 4]>>
  // expected-note@+1 {{resharded here}}
  fsdp.async.reshard %full : !g
  // expected-error@+1 {{gathered unit may already have been resharded}}
  %n = aten.call "clone"(%t) : (tensor<4x2xf32, #aten.strided<[1, 4]>>) -> tensor<4x2xf32>
  return %n : tensor<4x2xf32>
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @resharded_twice(%p: !p) attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  // expected-note@+1 {{resharded here}}
  fsdp.async.reshard %full : !g
  // expected-error@+1 {{gathered unit may already have been resharded}}
  fsdp.async.reshard %full : !g
  return
}

// -----

// Through a branch: the view may be of either unit.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @through_branch(%p: !p, %x: tensor<2x4xf32>, %c: i1) -> tensor<2x4xf32> attributes {aten.program} {
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  %a = scf.if %c -> tensor<2x4xf32> {
    %v = fsdp.view %full[@u, "a"] : !g -> tensor<2x4xf32>
    scf.yield %v : tensor<2x4xf32>
  } else {
    scf.yield %x : tensor<2x4xf32>
  }
  // expected-note@+1 {{resharded here}}
  fsdp.async.reshard %full : !g
  // expected-error@+1 {{gathered unit may already have been resharded}}
  %n = aten.call "clone"(%a) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %n : tensor<2x4xf32>
}

// -----

// An update is in place: what it wrote over is not read any more, also not by a
// gather in flight.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @stale(%p: !p, %grad: !p, %hyper: tensor<7xf64>) attributes {aten.program} {
  // expected-note@+1 {{updated here}}
  %new = fsdp.sgd @u [0 to 8] %p, %grad, %hyper : !p, tensor<7xf64>
  // expected-error@+1 {{shard may already have been updated, in its place}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  return
}

// -----

!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @race(%p: !p, %grad: !p, %m: !p, %v: !p, %hyper: tensor<7xf64>) attributes {aten.program} {
  // expected-note@+1 {{launched here}}
  %f = fsdp.async.unshard @u <forward> over ["shard"] %p : !p -> !f
  // expected-error@+1 {{shard is updated while it may still be gathered: expected the gather to be waited for before}}
  %new, %m1, %v1 = fsdp.adamw @u [0 to 8] %p, %grad, %m, %v, %hyper : !p, tensor<7xf64>
  %full = fsdp.async.wait %f : !f -> !g
  fsdp.async.reshard %full : !g
  return
}

// -----

// Updated, then gathered again: fine.
!p = !fsdp.shard<8xf32, 2>
!f = !fsdp.future<!fsdp.gathered<8xf32>>
!g = !fsdp.gathered<8xf32>
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @next(%p: !p, %grad: !p, %hyper: tensor<7xf64>) attributes {aten.program} {
  %new = fsdp.sgd @u [0 to 8] %p, %grad, %hyper : !p, tensor<7xf64>
  %f = fsdp.async.unshard @u <forward> over ["shard"] %new : !p -> !f
  %full = fsdp.async.wait %f : !f -> !g
  fsdp.async.reshard %full : !g
  return
}
