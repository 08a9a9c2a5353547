// RUN: fsdp-opt %s --convert-fsdp-to-plan --split-input-file --verify-diagnostics

// A module without a step.
// expected-error@+1 {{expected a program, which is a function with 'aten.program'; found none}}
module {
  fsdp.mesh @mesh ["shard" = 1]
}

// -----

// An argument that nobody fills.
module {
  fsdp.mesh @mesh ["shard" = 1]
  // expected-error@+1 {{argument 0: expected a state, an input, a buffer, a constant or a result of 'init'}}
  func.func @step(%x: tensor<2xf32>) attributes {aten.program} {
    return
  }
}

// -----

// A result of 'init' that there is not.
module {
  fsdp.mesh @mesh ["shard" = 1]
  // expected-error@+1 {{argument 0: expected one of the 0 results of 'init', found 2}}
  func.func @step(%x: tensor<2xf32> {fsdp.result = 2 : i64}) attributes {aten.program} {
    return
  }
}

// -----

// A step that is not scheduled yet.
module {
  fsdp.mesh @mesh ["shard" = 1]
  fsdp.unit @u on @mesh shard ["shard"] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  func.func @step(%p: !fsdp.shard<8xf32, 1> {fsdp.state = #fsdp.state<@u, parameter>}) attributes {aten.program} {
    // expected-error@+1 {{expected the scheduled level, found 'fsdp.unshard'}}
    %full = fsdp.unshard @u <forward> over ["shard"] %p : !fsdp.shard<8xf32, 1> -> !fsdp.gathered<8xf32>
    return
  }
}

// -----

// A size that is not known.
module {
  fsdp.mesh @mesh ["shard" = 1]
  func.func @step(%x: tensor<2xf32> {aten.input = 0 : i64}) attributes {aten.program} {
    // expected-error@+1 {{expected tensors of known sizes as results, found 'tensor<?xi64>'}}
    %y = aten.call "nonzero"(%x) : (tensor<2xf32>) -> tensor<?xi64>
    return
  }
}

// -----

// A result without a role.
module {
  fsdp.mesh @mesh ["shard" = 1]
  // expected-error@+1 {{result 0: expected a state, the loss, an output or the content of a buffer}}
  func.func @step(%x: tensor<2xf32> {aten.input = 0 : i64}) -> tensor<2xf32> attributes {aten.program} {
    return %x : tensor<2xf32>
  }
}
