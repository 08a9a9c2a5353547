// One case per labelled constraint of the dialect, and per check of text.
// covers: _check_grad_to_accumulate, BACKWARD
// covers: a gradient that is absent or of odd length, _get_training_state
// RUN: fsdp-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect

// Type T1: at most 2^40 elements.
// expected-error@+1 {{expected at most 1099511627776 elements, got 1099511627777}}
func.func private @t1(!fsdp.gathered<1099511627777xf32>)

// -----

// Type T2: elements are floats.
// expected-error@+1 {{expected elements of a float type, got 'i32'}}
func.func private @t2(!fsdp.shard<8xi32, 2>)

// -----

// Type T3: the shards divide the elements.
// expected-error@+1 {{expected a number of shards that divides 8, got 3}}
func.func private @t3(!fsdp.shard<8xf32, 3>)

// -----

// Type T4: what a future may promise.
// expected-error@+1 {{expected a gathered unit, a shard or a tensor in flight, got 'i32'}}
func.func private @t4(!fsdp.future<i32>)

// -----

// expected-error@+1 {{expected one size, got 2}}
func.func private @flat(!fsdp.gathered<2x4xf32>)

// -----

// Parameter P1: nothing is negative.
// expected-error@+1 {{expected sizes and an offset that are not negative of parameter "w"}}
"test.op"() {a = #fsdp.parameter<"w" : 4 at -1>} : () -> ()

// -----

// Parameter P2: one stride per size.
// expected-error@+1 {{expected 2 strides of parameter "w", got 1}}
"test.op"() {a = #fsdp.parameter<"w" : 4x2 at 0 strides [1]>} : () -> ()

// -----

// Parameter P2: strides of a dense tensor.
// expected-error@+1 {{expected the strides of a dense tensor of parameter "w"}}
"test.op"() {a = #fsdp.parameter<"w" : 4x2 at 0 strides [4, 1]>} : () -> ()

// -----

// Layout L1: parameters do not overlap.
// expected-error@+1 {{expected parameter "b" at or after 8, where the one before it ends, got 4}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 0, "b" : 4 at 4], numel = 12, padded = 12>} : () -> ()

// -----

// Layout L2: parameters end inside.
// expected-error@+1 {{expected parameters to end inside the 6 elements, but they end at 8}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 0], numel = 6, padded = 12>} : () -> ()

// -----

// Layout L2: padding only adds.
// expected-error@+1 {{expected at least 8 elements with padding, got 4}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 0], numel = 8, padded = 4>} : () -> ()

// -----

// Layout L3: names are unique.
// expected-error@+1 {{name "a" occurs twice}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 0, "b" : 4 at 8 aliases ["a"]], numel = 12, padded = 12>} : () -> ()

// -----

// Layout L4: at least one parameter.
// expected-error@+1 {{expected at least one parameter}}
"test.op"() {a = #fsdp.layout<[], numel = 12, padded = 12>} : () -> ()

// -----

// Divide D1: at least 1.
// expected-error@+1 {{expected finite divisors of at least 1, got}}
"test.op"() {a = #fsdp.divide<pre = 0.5, post = 2>} : () -> ()

// -----

// State S1: a known kind.
// expected-error@+1 {{unknown kind of state "weights"}}
"test.op"() {a = #fsdp.state<@u, weights>} : () -> ()

// -----

// Role F1: known names.
// expected-error@+1 {{attribute "fsdp.unknown" does not stand on an argument}}
func.func private @f1(%a: tensor<4xf32> {fsdp.unknown})

// -----

// Role F1: in their places.
// expected-error@+1 {{attribute "fsdp.hyper" does not stand on a result}}
func.func private @f1_place() -> (tensor<7xf64> {fsdp.hyper = 0 : i64})

// -----

// Role F1: on functions.
// expected-error@+1 {{attribute "fsdp.source" does not stand on an operation other than a function}}
"test.op"() {fsdp.source} : () -> ()

// -----

// Role F2: of the right kind.
func.func @f2(%a: tensor<4xf32>) attributes {aten.program} { return }
// expected-error@+1 {{expected attribute "fsdp.unit" to be the name of a unit, got 1 : i64}}
func.func @f2_unit(%a: tensor<4xf32> {fsdp.unit = 1 : i64}) attributes {aten.program} { return }

// -----

// Role F3: a state is a shard.
// expected-error@+1 {{expected a shard as #fsdp.state<@u, parameter>, got 'tensor<4xf32>'}}
func.func @f3(%a: tensor<4xf32> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} { return }

// -----

// Mesh C1: unique names.
// expected-error@+1 {{axis "shard" occurs twice}}
fsdp.mesh @mesh ["shard" = 1, "shard" = 2]

// -----

// Mesh C2: positive sizes.
// expected-error@+1 {{expected a positive size of axis "shard", got 0}}
fsdp.mesh @mesh ["shard" = 0]

// -----

// Unit C1: the mesh exists.
// expected-error@+1 {{no mesh is called 'mesh'}}
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>

// -----

// Unit C2: shards of equal length.
fsdp.mesh @mesh ["shard" = 3]
// expected-error@+1 {{expected a padded size that is a multiple of the 3 shards, got 8}}
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>

// -----

// Unit C3: floats.
fsdp.mesh @mesh ["shard" = 2]
// expected-error@+1 {{expected a float type, got 'i32'}}
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage i32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>

// -----

// Unshard C1: the unit exists.
func.func @f(%p: !fsdp.shard<8xf32, 2>) attributes {aten.program} {
  // expected-error@+1 {{no unit is called 'u'}}
  %0 = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  return
}

// -----

// Unshard C2: the shard is the unit's.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got '!fsdp.shard<8xf32, 4>'}}
  %0 = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xbf16>
  return
}

// -----

// Unshard C2: over fewer axes, the operand is a piece in compute type.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %full: !fsdp.gathered<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.shard<8xbf16, 2>', as unit 'u' has it, got '!fsdp.shard<8xf32, 4>'}}
  %0 = fsdp.unshard @u <forward> over ["local"] %p : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xbf16>
  return
}

// -----

// Unshard C4: axes of the mesh.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %full: !fsdp.gathered<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{mesh 'mesh' has no axis "rank"}}
  %0 = fsdp.unshard @u <forward> over ["rank"] %p : !fsdp.shard<8xf32, 4> -> !fsdp.gathered<8xbf16>
  return
}

// -----

// Piece C1: the unit exists.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %full: !fsdp.gathered<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{no unit is called 'v'}}
  %0 = fsdp.piece @v over ["local"] %full : !fsdp.gathered<8xbf16> -> !fsdp.shard<8xbf16, 2>
  return
}

// -----

// Piece C2: of the gathered unit.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%full: !fsdp.gathered<4xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.gathered<8xf32>', as unit 'u' has it, got '!fsdp.gathered<4xf32>'}}
  %0 = fsdp.piece @u over ["local"] %full : !fsdp.gathered<4xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Piece C3: axes of the mesh.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %full: !fsdp.gathered<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{axis "local" occurs twice}}
  %0 = fsdp.piece @u over ["local", "local"] %full : !fsdp.gathered<8xbf16> -> !fsdp.shard<8xbf16, 2>
  return
}

// -----

// Piece C4: as many pieces as there are ranks along the axes.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2, "local" = 2]
fsdp.unit @u on @mesh shard ["shard", "local"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %full: !fsdp.gathered<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{expected a result of type '!fsdp.shard<8xbf16, 2>', as unit 'u' has it, got '!fsdp.shard<8xbf16, 4>'}}
  %0 = fsdp.piece @u over ["local"] %full : !fsdp.gathered<8xbf16> -> !fsdp.shard<8xbf16, 4>
  return
}

// -----

// Piece C3: all replicas have the same piece.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%full: !fsdp.gathered<8xf32>) {
  // expected-error@+1 {{expected axes over which unit 'u' is sharded, in its order, got "replicate"}}
  %0 = fsdp.piece @u over ["replicate"] %full : !fsdp.gathered<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Unshard C4: what two replicas hold is one shard, twice.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>) {
  // expected-error@+1 {{expected axes over which unit 'u' is sharded, in its order, got "replicate"}}
  %0 = fsdp.async.unshard @u <forward> over ["replicate"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
  return
}

// -----

// Unshard C3: all of it, and so for a launch.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>) attributes {aten.program} {
  // expected-error@+1 {{expected a result of type '!fsdp.gathered<8xf32>', as unit 'u' has it, got '!fsdp.gathered<4xf32>'}}
  %0 = fsdp.async.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<4xf32>>
  return
}

// -----

func.func @f(%p: !fsdp.shard<8xf32, 2>) attributes {aten.program} {
  // expected-error@+1 {{unknown phase 'sideways'}}
  %0 = fsdp.unshard @u <sideways> over ["shard"] %p : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  return
}

// -----

// View C2: of the unit's gathered type.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0], numel = 8, padded = 8>
func.func @f(%full: !fsdp.gathered<16xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.gathered<8xf32>'}}
  %0 = fsdp.view %full[@u, "a"] : !fsdp.gathered<16xf32> -> tensor<2x4xf32>
  return
}

// -----

// View C3: the parameter exists.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0 aliases ["b"]], numel = 8, padded = 8>
func.func @f(%full: !fsdp.gathered<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{unit 'u' has no parameter "b"}}
  %0 = fsdp.view %full[@u, "b"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
  return
}

// -----

// View C4: its sizes and strides.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 2x4 at 0 strides [1, 2]], numel = 8, padded = 8>
func.func @f(%full: !fsdp.gathered<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected a result of type 'tensor<2x4xf32, #aten.strided<[1, 2]>>', as unit 'u' has it, got 'tensor<2x4xf32>'}}
  %0 = fsdp.view %full[@u, "a"] : !fsdp.gathered<8xf32> -> tensor<2x4xf32>
  return
}

// -----

// Flatten C2: one place per parameter.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0, "b" : 8 at 8], numel = 16, padded = 16>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected 2 places, one per parameter, got 1}}
  %0 = fsdp.flatten_grads @u(%g) : (tensor<8xf32>) -> tensor<16xf32>
  return
}

// -----

// Flatten C3: a gradient of each parameter that trains.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0, "b" : 8 at 8], numel = 16, padded = 16>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{parameter "b" is not frozen, but has no gradient}}
  %0 = fsdp.flatten_grads @u(%g, none) : (tensor<8xf32>) -> tensor<16xf32>
  return
}

// -----

// Flatten C3: no gradient of a frozen one.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0 frozen, "b" : 8 at 8], numel = 16, padded = 16>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{parameter "a" is frozen, but has a gradient}}
  %0 = fsdp.flatten_grads @u(%g, %g) : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  return
}

// -----

// Flatten C4: the sizes of the parameter.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<4xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected a gradient of parameter "a" with the sizes of 'tensor<8xf32>', of floats, got 'tensor<4xf32>'}}
  %0 = fsdp.flatten_grads @u(%g) : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

// Flatten C5: the whole unit.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected a result of type 'tensor<8xf32>', as unit 'u' has it, got 'tensor<16xf32>'}}
  %0 = fsdp.flatten_grads @u(%g) : (tensor<8xf32>) -> tensor<16xf32>
  return
}

// -----

// Flatten C6: as many gradients as places.
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected 2 gradients, one per place, got 1}}
  %0 = "fsdp.flatten_grads"(%g) <{unit = @u, present = array<i1: true, true>}> : (tensor<8xf32>) -> tensor<8xf32>
  return
}

// -----

// Reduction C2: axes of the mesh.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{mesh 'mesh' has no axis "replicate"}}
  %0 = fsdp.reduce_scatter @u over ["replicate"] divide <pre = 2, post = 1> via f32 %g : tensor<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Reduction C2: each axis once.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{axis "shard" occurs twice}}
  %0 = fsdp.reduce_scatter @u over ["shard", "shard"] divide <pre = 2, post = 1> via f32 %g : tensor<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Reduction C2: the axes over which the result is cut, not as many others.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) {
  // expected-error@+1 {{expected all axes over which unit 'u' is sharded, got ["replicate"]}}
  %0 = fsdp.reduce_scatter @u over ["replicate"] divide <pre = 2, post = 1> via f32 %g : tensor<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Reduction C2: the same of a launch, and of more axes.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) {
  // expected-error@+1 {{expected all axes over which unit 'u' is sharded, got ["replicate", "shard"]}}
  %0 = fsdp.async.reduce_scatter @u over ["replicate", "shard"] divide <pre = 2, post = 1> via f32 %g : tensor<8xf32> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
  return
}

// -----

// Reduction C2: ranks along the axis have different elements.
fsdp.mesh @mesh ["replicate" = 2, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: !fsdp.shard<8xf32, 2>) {
  // expected-error@+1 {{expected axes over which unit 'u' is replicated, got "shard"}}
  %0 = fsdp.all_reduce @u over ["replicate", "shard"] divide <pre = 1, post = 2> via f32 %g : !fsdp.shard<8xf32, 2> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Reduction C2: at least one axis.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%g: tensor<f32>) attributes {aten.program} {
  // expected-error@+1 {{expected at least one axis}}
  %0 = fsdp.all_reduce on @mesh for loss over [] divide <pre = 2, post = 1> via f32 %g : tensor<f32> -> tensor<f32>
  return
}

// -----

// Reduction C3: in a float type.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected a sum of floats, got 'i32'}}
  %0 = fsdp.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via i32 %g : tensor<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// Reduction C4: of the flat gradient; and so for a launch.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<4xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type 'tensor<8xf32>', as unit 'u' has it, got 'tensor<4xf32>'}}
  %0 = fsdp.async.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %g : tensor<4xf32> -> !fsdp.future<!fsdp.shard<8xf32, 2>>
  return
}

// -----

// Reduction C5: to a shard of the unit.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xbf16>) attributes {aten.program} {
  // expected-error@+1 {{expected a result of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got '!fsdp.shard<8xbf16, 2>'}}
  %0 = fsdp.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %g : tensor<8xbf16> -> !fsdp.shard<8xbf16, 2>
  return
}

// -----

// All-reduce C1: a unit or a mesh.
func.func @f(%g: tensor<f32>) attributes {aten.program} {
  // expected-error@+1 {{expected either a unit or a mesh}}
  %0 = fsdp.all_reduce over ["shard"] divide <pre = 2, post = 1> via f32 %g : tensor<f32> -> tensor<f32>
  return
}

// -----

// All-reduce C1: that exists.
func.func @f(%g: tensor<f32>) attributes {aten.program} {
  // expected-error@+1 {{no mesh is called 'mesh'}}
  %0 = fsdp.all_reduce on @mesh for loss over ["shard"] divide <pre = 2, post = 1> via f32 %g : tensor<f32> -> tensor<f32>
  return
}

// -----

// All-reduce C4: a flat gradient only if the unit is not sharded.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%g: tensor<8xf32>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got 'tensor<8xf32>'}}
  %0 = fsdp.all_reduce @u over ["replicate"] divide <pre = 2, post = 1> via f32 %g : tensor<8xf32> -> !fsdp.shard<8xf32, 2>
  return
}

// -----

// All-reduce C5: the types agree.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%g: tensor<f32>) attributes {aten.program} {
  // expected-error@+1 {{expected operand and result to be tensors of the same type, got 'tensor<f32>' and 'tensor<bf16>'}}
  %0 = fsdp.all_reduce on @mesh for loss over ["shard"] divide <pre = 2, post = 1> via f32 %g : tensor<f32> -> tensor<bf16>
  return
}

// -----

// Optimizer C2: shards of the unit.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 4>, %h: tensor<7xf64>) attributes {aten.program} {
  // expected-error@+1 {{expected a parameter of type '!fsdp.shard<8xf32, 2>'}}
  %0 = fsdp.sgd @u [0 to 8] %p, %p, %h : !fsdp.shard<8xf32, 4>, tensor<7xf64>
  return
}

// -----

// Optimizer C3: intervals inside the layout.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>, %h: tensor<7xf64>) attributes {aten.program} {
  // expected-error@+1 {{expected ascending intervals inside the 8 elements, got 4 to 12}}
  %0:3 = fsdp.adamw @u [0 to 4, 4 to 12] %p, %p, %p, %p, %h : !fsdp.shard<8xf32, 2>, tensor<7xf64>
  return
}

// -----

// Optimizer C4: frozen parameters stay.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 4 at 0 frozen, "b" : 4 at 4], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>, %h: tensor<7xf64>) attributes {aten.program} {
  // expected-error@+1 {{interval 3 to 8 touches the frozen parameter "a"}}
  %0:3 = fsdp.adamw @u [3 to 8] %p, %p, %p, %p, %h : !fsdp.shard<8xf32, 2>, tensor<7xf64>
  return
}

// -----

// F2 and F3: a decay group has a number, and numbers of its own.
// expected-error@+1 {{expected attribute "fsdp.hyper" to be the number of a decay group, got unit}}
func.func private @group(tensor<7xf64> {fsdp.hyper})

// -----

// expected-error@+1 {{expected attribute "fsdp.hyper" to be the number of a decay group, got -1 : i64}}
func.func private @group(tensor<7xf64> {fsdp.hyper = -1 : i64})

// -----

// Role F4: only hyper-parameters.
// expected-error@+1 {{attribute "fsdp.no_decay" does not stand on anything but hyper-parameters}}
func.func private @group(tensor<7xf64> {fsdp.no_decay})

// -----

// expected-error@+1 {{expected hyper-parameters of type 'tensor<7xf64>', got 'tensor<6xf64>'}}
func.func private @group(tensor<6xf64> {fsdp.hyper = 0 : i64})

// -----

// Measure C3.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>) attributes {aten.program} {
  // expected-error@+1 {{expected ascending intervals inside the 8 elements, got 4 to 9}}
  %0 = fsdp.measure squared_norm @u [4 to 9] %p : !fsdp.shard<8xf32, 2>
  return
}

// -----

// Clip factor C1.
func.func @f(%x: tensor<f64>) {
  // expected-error@+1 {{expected measures of a norm, got 'found_inf'}}
  %0 = fsdp.clip_factor found_inf max_norm 1.0 (%x)
  return
}

// -----

// Clip factor C2.
func.func @f(%x: tensor<f64>) {
  // expected-error@+1 {{expected a largest norm that is finite and above 0, got -1.000000e+00 : f64}}
  %0 = fsdp.clip_factor abs_max max_norm -1.0 (%x)
  return
}

// -----

// Clip factor C3.
func.func @f() {
  // expected-error@+1 {{expected at least one measure}}
  %0 = fsdp.clip_factor abs_max max_norm 1.0 ()
  return
}

// -----

// All-reduce C6: only of a norm.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%x: tensor<f64>) attributes {aten.program} {
  // expected-error@+1 {{expected 'max' of a norm that is not divided}}
  %0 = fsdp.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 1> via f64 max %x : tensor<f64> -> tensor<f64>
  return
}

// -----

// All-reduce C6: only of a buffer.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%x: tensor<f64>) attributes {aten.program} {
  // expected-error@+1 {{expected 'first' of a buffer that is not divided}}
  %0 = fsdp.all_reduce on @mesh for loss over ["shard"] divide <pre = 1, post = 1> via f64 first %x : tensor<f64> -> tensor<f64>
  return
}

// -----

// F2.
// expected-error@+1 {{expected attribute "fsdp.sync_buffers" to be "mean" or "broadcast", got "sum"}}
func.func @f() attributes {aten.program, fsdp.sync_buffers = "sum"} {
  return
}

// -----

// F1.
// expected-error@+1 {{attribute "fsdp.root" does not stand on anything but a parameter of a unit}}
func.func @f(%x: tensor<f64> {fsdp.root}) attributes {aten.program} {
  return
}

// -----

// F1.
// expected-error@+1 {{attribute "fsdp.ignored" does not stand on anything but a parameter of a unit}}
func.func @f(%x: tensor<f64> {fsdp.ignored}) attributes {aten.program} {
  return
}

// -----

// All-reduce C6: not divided.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%x: tensor<f64>) attributes {aten.program} {
  // expected-error@+1 {{expected 'max' of a norm that is not divided}}
  %0 = fsdp.all_reduce on @mesh for norm over ["shard"] divide <pre = 1, post = 2> via f64 max %x : tensor<f64> -> tensor<f64>
  return
}

// -----

// expected-error@+1 {{expected attribute "fsdp.clip_grad_norm" to be a finite norm above 0 and an order of 1, 2 or infinity, got array<f64: 1.000000e+00, 3.000000e+00>}}
func.func private @order() attributes {fsdp.clip_grad_norm = array<f64: 1.0, 3.0>}

// -----

// Scale C2.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<4xf32, 2>, %x: tensor<f32>) attributes {aten.program} {
  // expected-error@+1 {{expected an operand of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got '!fsdp.shard<4xf32, 2>'}}
  %0 = fsdp.scale @u %p by %x : !fsdp.shard<4xf32, 2>
  return
}

// -----

// Optimizer C5: seven hyper-parameters.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>, %h: tensor<5xf64>) attributes {aten.program} {
  // expected-error@+1 {{expected hyper-parameters of type 'tensor<7xf64>', got 'tensor<5xf64>'}}
  %0 = fsdp.sgd @u [0 to 8] %p, %p, %h : !fsdp.shard<8xf32, 2>, tensor<5xf64>
  return
}

// -----

// Optimizer C6: old and new momentum.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>, %m: !fsdp.shard<8xbf16, 2>, %h: tensor<7xf64>) attributes {aten.program} {
  // expected-error@+1 {{expected old and new momentum, both of the parameter's type, or neither}}
  %0:2 = fsdp.sgd @u [0 to 8] %p, %p momentum %m, %h : !fsdp.shard<8xf32, 2>, tensor<7xf64> -> !fsdp.shard<8xbf16, 2>
  return
}

// -----

// Wait C1: what the future promises.
func.func @f(%f: !fsdp.future<tensor<4xf32>>) attributes {aten.program} {
  // expected-error@+1 {{the value is what the future promises}}
  %0 = fsdp.async.wait %f : !fsdp.future<tensor<4xf32>> -> tensor<8xf32>
  return
}

// -----

fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @bucket(%p: !fsdp.shard<8xf32, 2>) attributes {aten.program} {
  // expected-error@+1 {{attribute 'bucket' failed to satisfy constraint}}
  %0 = fsdp.async.unshard @u <forward> over ["shard"] %p bucket -1 : !fsdp.shard<8xf32, 2> -> !fsdp.future<!fsdp.gathered<8xf32>>
  return
}

// -----

// Mesh C3: the number of ranks fits.
// expected-error@+1 {{expected less than 2^31 ranks, got more}}
fsdp.mesh @mesh ["shard" = 4294967296, "local" = 4294967296]

// -----

// expected-error@+1 {{expected parameter "a" to end below 1099511627776 elements}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 9223372036854775807], numel = 8, padded = 8>} : () -> ()

// -----

// expected-error@+1 {{expected parameter "a" to end below 1099511627776 elements}}
"test.op"() {a = #fsdp.layout<["a" : 4294967296x4294967296 at 0], numel = 8, padded = 8>} : () -> ()

// -----

// Layout L5.
// expected-error@+1 {{expected at most 1099511627776 elements with padding, got 9223372036854775807}}
"test.op"() {a = #fsdp.layout<["a" : 8 at 0], numel = 8, padded = 9223372036854775807>} : () -> ()

// -----

// expected-error@+1 {{expected at most 1099511627776 elements, got 9223372036854775807}}
func.func private @shard(!fsdp.gathered<9223372036854775807xf32>)
// -----

// Unit C2: an axis stands once, over which it is sharded or replicated.
fsdp.mesh @mesh ["a" = 2, "b" = 2]
// expected-error@+1 {{axis "b" occurs twice}}
fsdp.unit @u on @mesh shard ["a", "b"] replicate ["b"] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>

// -----

// Unit C2: and is one of the mesh.
fsdp.mesh @mesh ["a" = 2, "b" = 2]
// expected-error@+1 {{mesh 'mesh' has no axis "c"}}
fsdp.unit @u on @mesh shard ["a", "c"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>

// -----

// Unit C2: shards are numbered as ranks are.
fsdp.mesh @mesh ["a" = 2, "b" = 2]
// expected-error@+1 {{expected the axes in the order of mesh 'mesh', got ["b", "a"]}}
fsdp.unit @u on @mesh shard ["b", "a"] replicate [] storage f32 reduce f32 layout <["w" : 8 at 0], numel = 8, padded = 8>

// -----

// All-reduce C5: what is summed over a mesh has a role.
fsdp.mesh @mesh ["shard" = 2]
func.func @f(%g: tensor<f32>) {
  // expected-error@+1 {{expected a role of a reduction on a mesh, and of no other}}
  %0 = "fsdp.all_reduce"(%g) <{mesh = @mesh, axes = ["shard"], divide = #fsdp.divide<pre = 1, post = 2>, via = f32}> : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// Accumulate C1: the unit exists.
func.func @f(%p: !fsdp.shard<4xf32, 2>) {
  // expected-error @below {{no unit is called 'u'}}
  %0 = fsdp.accumulate @u %p, %p : !fsdp.shard<4xf32, 2>
  return
}

// -----

// Accumulate C2: shards of the unit.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce bf16 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<4xf32, 2>) {
  // expected-error @below {{expected an operand of type '!fsdp.shard<8xf32, 2>', as unit 'u' has it, got '!fsdp.shard<4xf32, 2>'}}
  %0 = fsdp.accumulate @u %p, %p : !fsdp.shard<4xf32, 2>
  return
}

// -----

// Accumulate C2: flat gradients in the reduce type.
fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce bf16 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: tensor<8xf32>) {
  // expected-error @below {{expected an operand of type 'tensor<8xbf16>', as unit 'u' has it, got 'tensor<8xf32>'}}
  %0 = fsdp.accumulate @u %p, %p : tensor<8xf32>
  return
}

// -----

// F2: a step has a number of micro-batches.
// expected-error @below {{expected attribute "fsdp.micro_batches" to be an i64 of at least 1, got 0 : i64}}
module attributes {fsdp.micro_batches = 0 : i64} {}

// -----

// F1: without micro-batches, there is no mean of them.
// expected-error @below {{attribute "fsdp.mean_loss" does not stand on an operation other than a module with micro-batches}}
module attributes {fsdp.mean_loss} {}

// -----

// F2: it is there or not.
// expected-error @below {{expected attribute "fsdp.mean_loss" to be without a value, got 2 : i64}}
module attributes {fsdp.mean_loss = 2 : i64, fsdp.micro_batches = 2 : i64} {}

// -----

// F2: what a contention of none would say is said by leaving it out.
// expected-error @below {{expected attribute "fsdp.contention" to be an i64 from 1 to 8192, got 0 : i64}}
func.func @f() attributes {fsdp.contention = 0 : i64} {
  return
}

// -----

// F1: only what goes over links takes any of them.
// expected-error @below {{attribute "fsdp.links" does not stand on an operation other than a collective}}
func.func private @f() attributes {fsdp.links = array<i32: 1024, 0>}

// -----

// F2: there are two links, and 1024 parts of each.
fsdp.mesh @mesh ["shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8>
func.func @f(%p: !fsdp.shard<8xf32, 2>) {
  // expected-error @below {{expected attribute "fsdp.links" to be two i32 from 0 to 1024, got array<i32: 0, 1025>}}
  %0 = fsdp.unshard @u <forward> over ["shard"] %p {fsdp.links = array<i32: 0, 1025>} : !fsdp.shard<8xf32, 2> -> !fsdp.gathered<8xf32>
  return
}

// -----

// F2: a part of a step is one of three.
// expected-error @below {{expected attribute "fsdp.part" to be a part of a step, got "first"}}
func.func private @f() attributes {fsdp.part = "first"}

// -----

// F3: gathered parameters are a gathered unit.
// expected-error @below {{expected a gathered unit as #fsdp.state<@u, unsharded_parameter>, got '!fsdp.shard<4xf32, 2>'}}
func.func private @f(!fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@u, unsharded_parameter>})

// -----

// C5: what stays for the next micro-batch stays for the backward.
fsdp.mesh @mesh ["shard" = 2]
// expected-error @below {{expected a unit that is kept after the backward not to be resharded after the forward}}
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {kept_after_backward, reshard_after_forward}

// -----

// Unit C6: pieces of what is resharded, over some of its axes in their order.
fsdp.mesh @mesh ["shard" = 2, "local" = 2]
// expected-error @below {{expected pieces of a unit that is resharded after the forward, over some of its axes ["shard", "local"], got ["local"]}}
fsdp.unit @u on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {piece_axes = ["local"]}

// -----

fsdp.mesh @mesh ["shard" = 2, "local" = 2]
// expected-error @below {{expected pieces of a unit that is resharded after the forward, over some of its axes ["shard", "local"], got ["shard", "local"]}}
fsdp.unit @u on @mesh shard ["shard", "local"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {piece_axes = ["shard", "local"], reshard_after_forward}

// -----

fsdp.mesh @mesh ["shard" = 2, "local" = 2]
// expected-error @below {{expected pieces of a unit that is resharded after the forward, over some of its axes ["local"], got ["shard"]}}
fsdp.unit @u on @mesh shard ["local"] replicate ["shard"] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {piece_axes = ["shard"], reshard_after_forward}

// -----

fsdp.mesh @mesh ["shard" = 2]
// expected-error @below {{expected pieces of a unit that is resharded after the forward, over some of its axes ["shard"], got []}}
fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32 layout <["a" : 8 at 0], numel = 8, padded = 8> {piece_axes = [], reshard_after_forward}

// -----

// F3: an unsharded gradient is a tensor.
// expected-error @below {{expected a tensor as #fsdp.state<@u, unsharded_gradient>, got '!fsdp.shard<4xf32, 2>'}}
func.func private @f(!fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@u, unsharded_gradient>})

// -----

// A state is of a unit that is there: verifiers look it up.
// expected-error @below {{no unit is called 'nope', of which #fsdp.state<@nope, gradient> is}}
func.func private @f(!fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@nope, gradient>})
