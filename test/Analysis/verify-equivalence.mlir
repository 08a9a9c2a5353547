// What was sharded is accepted, also when other passes have been over it.
// RUN: fsdp-opt %s -o %t.same.mlir
// RUN: fsdp-opt %s --fsdp-verify-equivalence | diff %t.same.mlir -
// RUN: fsdp-opt %s --cse --canonicalize --fsdp-verify-equivalence | FileCheck %s --check-prefix=LOGICAL
// RUN: fsdp-opt %s --fsdp-async --fsdp-prefetch --cse --canonicalize --fsdp-verify-equivalence | FileCheck %s --check-prefix=SCHEDULED
// LOGICAL: fsdp.reduce_scatter @u over ["shard"]
// SCHEDULED: fsdp.async.reduce_scatter @u over ["shard"]

// A view of another parameter.
// RUN: sed 's/%%b1 = fsdp.view %%u1\[@u, "b"\]/%%b1 = fsdp.view %%u1[@u, "a"]/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=VIEW
// VIEW: error: the gradient of 'a' depends on another value: expected param "b" of type 'tensor<4x4xf32>', found param "a"
// VIEW: note: in the source, it is this

// Another operator.
// RUN: sed '/fsdp.mesh/,/all_reduce/s/"mean"/"sum"/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=OPERATOR
// OPERATOR: error: the loss depends on another value: expected a result of 'mean' of type 'tensor<f32>', found a result of 'sum'

// A gradient in the place of another, or dropped.
// RUN: sed 's/@u(%%ga, %%gb)/@u(%%ga, %%ga)/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PLACE
// PLACE: error: the gradient of 'b' depends on another value
// RUN: sed '/[/][/] root gradient/d' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=DROPPED
// DROPPED: error: expected the step to return the gradient of 'r', found no such result

// A wrong divisor, a wrong group, a second reduction, another unit's gradient.
// RUN: sed 's/post = 1> via f32 %%flatu/post = 2> via f32 %%flatu/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=DIVISOR
// DIVISOR: error: {{.*}}expected the gradient of unit 'u' to be divided by 2, found a division by 4{{$}}
// RUN: sed 's/for loss over \["replicate", "shard"\]/for loss over ["replicate"]/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=GROUP
// GROUP: error: {{.*}}expected the loss to be summed over 2 ranks, found 1
// RUN: sed '/%%redu = /{p;s/%%redu/%%again/}' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=TWICE
// TWICE: error: expected each value to be reduced once, found a second reduction
// TWICE: note: the first is here

// Pieces that are gathered by other ranks than those that have sharded them.
// RUN: fsdp-opt %S/../Dialect/FSDP/Inputs/two_blocks.mlir --fsdp-shard=ranks=4 --fsdp-reshard-policy=reshard-after-forward=2 -o %t.pieces.mlir
// RUN: sed 's/<backward> over \["local"\]/<backward> over ["shard"]/' %t.pieces.mlir | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PIECES
// RUN: fsdp-opt %t.pieces.mlir --fsdp-async | sed 's/<backward> over \["local"\]/<backward> over ["shard"]/' | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PIECES
// PIECES: error: expected to gather pieces over the axes ["local"] over which they were sharded, found other axes
// PIECES: note: sharded here

// A use in the backward of the gather of the forward, one by one and all.
// RUN: sed 's/%%b1 = fsdp.view %%u1/%%b1 = fsdp.view %%u0/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PHASE
// RUN: sed '/%%u1 = /d;s/%%u1\[/%%u0[/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=PHASE
// PHASE: error: the backward reads unit @u as gathered for the forward

// Layouts that overlap do not even parse; a parameter in two units does.
// RUN: sed 's/"b" : 4x4 at 16/"b" : 4x4 at 8/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=LAYOUT
// LAYOUT: error: {{.*}}expected parameter "b" at or after 16, where the one before it ends, got 8
// RUN: sed 's/<\["r" : 4 at 0\]/<["r" : 4 at 0, "a" : 0 at 4 frozen]/;s/@root(%%gr)/@root(%%gr, none)/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=UNITS
// UNITS: error: {{.*}}parameter "a" is in unit 'u' as well

// Elements that no one updates, and effects that the source has not.
// RUN: sed 's/@u \[0 to 32\]/@u [0 to 16]/' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=UPDATE
// UPDATE: error: {{.*}}expected parameter "b" to be updated, found element 16 in no interval
// RUN: sed '/fsdp.mesh/,/all_reduce/{/bernoulli/{p;s/%%keep/%%other/}}' %s | not fsdp-opt --fsdp-verify-equivalence 2>&1 | FileCheck %s --check-prefix=EFFECT
// EFFECT: error: expected only effects of the source, found one more

fsdp.mesh @mesh ["replicate" = 1, "shard" = 2]
fsdp.unit @u on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["a" : 4x4 at 0, "b" : 4x4 at 16], numel = 32, padded = 32> {reshard_after_forward}
fsdp.unit @root on @mesh shard ["shard"] replicate ["replicate"] storage f32 reduce f32
  layout <["r" : 4 at 0], numel = 4, padded = 4>
func.func @step(%u: !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
                %root: !fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@root, parameter>},
                %run: tensor<4xf32> {aten.buffer = "run", aten.persistent},
                %in: tensor<4x4xf32> {aten.input = 0 : i64},
                %m: !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg>},
                %v: !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg_sq>},
                %hyper: tensor<7xf64> {fsdp.hyper = 0 : i64})
    -> (tensor<f32> {aten.loss},
        !fsdp.shard<4xf32, 2> {fsdp.state = #fsdp.state<@root, gradient>}, // root gradient
        !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, gradient>},
        !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, parameter>},
        !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg>},
        !fsdp.shard<32xf32, 2> {fsdp.state = #fsdp.state<@u, exp_avg_sq>},
        tensor<4xf32> {aten.buffer_mutation = "run"}) attributes {aten.program, fsdp.source = @step.source} {
  %keep = aten.call "bernoulli"(%in) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %u0 = fsdp.unshard @u <forward> over ["shard"] %u : !fsdp.shard<32xf32, 2> -> !fsdp.gathered<32xf32>
  %a0 = fsdp.view %u0[@u, "a"] : !fsdp.gathered<32xf32> -> tensor<4x4xf32>
  %x = aten.call "mm"(%keep, %a0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b0 = fsdp.view %u0[@u, "b"] : !fsdp.gathered<32xf32> -> tensor<4x4xf32>
  %y = aten.call "mm"(%x, %b0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %root0 = fsdp.unshard @root <forward> over ["shard"] %root : !fsdp.shard<4xf32, 2> -> !fsdp.gathered<4xf32>
  %r = fsdp.view %root0[@root, "r"] : !fsdp.gathered<4xf32> -> tensor<4xf32>
  %z = aten.call "add.Tensor"(%y, %r) : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  %local = aten.call "mean"(%z) : (tensor<4x4xf32>) -> tensor<f32>
  %loss = fsdp.all_reduce on @mesh for loss over ["replicate", "shard"] divide <pre = 1, post = 2> via f32 %local : tensor<f32> -> tensor<f32>
  %new = aten.call "add.Tensor"(%run, %run) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gz = aten.call "ones_like"(%z) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gr = aten.call "sum.dim_IntList"(%gz, [0]) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4xf32>
  %flatroot = fsdp.flatten_grads @root(%gr) : (tensor<4xf32>) -> tensor<4xf32>
  %redroot = fsdp.reduce_scatter @root over ["shard"] divide <pre = 2, post = 1> via f32 %flatroot : tensor<4xf32> -> !fsdp.shard<4xf32, 2>
  %gb = aten.call "mm"(%x, %gz) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %u1 = fsdp.unshard @u <backward> over ["shard"] %u : !fsdp.shard<32xf32, 2> -> !fsdp.gathered<32xf32>
  %b1 = fsdp.view %u1[@u, "b"] : !fsdp.gathered<32xf32> -> tensor<4x4xf32>
  %gx = aten.call "mm"(%gz, %b1) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %ga = aten.call "mm"(%keep, %gx) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %flatu = fsdp.flatten_grads @u(%ga, %gb) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<32xf32>
  %redu = fsdp.reduce_scatter @u over ["shard"] divide <pre = 2, post = 1> via f32 %flatu : tensor<32xf32> -> !fsdp.shard<32xf32, 2>
  %u2, %m2, %v2 = fsdp.adamw @u [0 to 32] %u, %redu, %m, %v, %hyper : !fsdp.shard<32xf32, 2>, tensor<7xf64>
  return %loss,
    %redroot, // root gradient
    %redu, %u2, %m2, %v2, %new : tensor<f32>,
    !fsdp.shard<4xf32, 2>, // root gradient
    !fsdp.shard<32xf32, 2>, !fsdp.shard<32xf32, 2>, !fsdp.shard<32xf32, 2>, !fsdp.shard<32xf32, 2>, tensor<4xf32>
}

func.func private @step.source(
    %a: tensor<4x4xf32> {aten.param = "a"}, %b: tensor<4x4xf32> {aten.param = "b"}, %r: tensor<4xf32> {aten.param = "r"},
    %run: tensor<4xf32> {aten.buffer = "run", aten.persistent}, %in: tensor<4x4xf32> {aten.input = 0 : i64})
    -> (tensor<f32> {aten.loss}, tensor<4x4xf32> {aten.grad_of = "a"}, tensor<4x4xf32> {aten.grad_of = "b"},
        tensor<4xf32> {aten.grad_of = "r"}, tensor<4xf32> {aten.buffer_mutation = "run"}) {
  %keep = aten.call "bernoulli"(%in) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %x = aten.call "mm"(%keep, %a) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = aten.call "mm"(%x, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %z = aten.call "add.Tensor"(%y, %r) : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  %loss = aten.call "mean"(%z) : (tensor<4x4xf32>) -> tensor<f32>
  %new = aten.call "add.Tensor"(%run, %run) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %gz = aten.call "ones_like"(%z) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %gr = aten.call "sum.dim_IntList"(%gz, [0]) {phase = #aten<phase backward>} : (tensor<4x4xf32>) -> tensor<4xf32>
  %gb = aten.call "mm"(%x, %gz) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %gx = aten.call "mm"(%gz, %b) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %ga = aten.call "mm"(%keep, %gx) {phase = #aten<phase backward>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %loss, %ga, %gb, %gr, %new : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>, tensor<4xf32>
}
