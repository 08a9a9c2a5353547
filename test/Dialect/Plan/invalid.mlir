// RUN: fsdp-opt %s --split-input-file --verify-diagnostics

// expected-error@+2 {{expected one of [cpu, cuda] for a type of device, got: tpu}}
// expected-error@+1 {{failed to parse ATen_DeviceAttr parameter}}
plan.module @m mesh ["shard" = 2] device tpu {
}

// -----

// expected-error@+1 {{C1: expected only tables and programs in the body, got 'plan.module'}}
plan.module @m mesh ["shard" = 2] device cpu {
  plan.module @inner mesh ["shard" = 2] device cpu {
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected ascending axes below 1, got 1}}
  plan.communicator @c axes [1] on gather
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected at least one axis, got none}}
  plan.communicator @c axes [] on gather
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected distinct axes below 1, got 1}}
  plan.unit @u shard [0] replicate [1] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
}

// -----

plan.module @m mesh ["shard" = 2, "other" = 2] device cpu {
  // expected-error@+1 {{C1: expected ascending axes}}
  plan.unit @u shard [1, 0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
}

// -----

plan.module @m mesh ["shard" = 3] device cpu {
  // expected-error@+1 {{C2: expected a padded length that is a multiple of 3 shards, got 8}}
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected a known layout, got 'tensor<?xf32>'}}
  %a = plan.buffer transient : tensor<?xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected a known layout, got 'tensor<4xf32, #aten.strided<[1], offset = ?>>'}}
  %a = plan.buffer transient : tensor<4xf32, #aten.strided<[1], offset = ?>>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected a layout without offset, got 4}}
  %a = plan.buffer transient at 0 : tensor<2xf32, #aten.strided<[1], offset = 4>>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C2: expected unit of a buffer of role 'shard'}}
  %a = plan.buffer shard : tensor<2xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C3: expected no number of a buffer of role 'loss'}}
  %a = plan.buffer loss @step number 1 : tensor<f32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C4: expected value of a buffer of role 'constant'}}
  %a = plan.buffer constant : tensor<2xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C4: expected a value like 'tensor<2xf32>', got one of type 'tensor<3xf32>'}}
  %a = plan.buffer constant value dense<0.0> : tensor<3xf32> : tensor<2xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C5: expected no name of a buffer of role 'transient'}}
  %a = plan.buffer transient "a" : tensor<2xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.view %a at 8 : tensor<4xf32>
  // expected-error@+1 {{C1: expected a buffer that owns bytes, got a view}}
  %c = plan.view %b at 0 : tensor<2xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  // expected-error@+1 {{C2: expected a layout without offset, got 1}}
  %b = plan.view %a at 0 : tensor<2xf32, #aten.strided<[1], offset = 1>>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  // expected-error@+1 {{C3: expected a window inside of 32 bytes, got [8, 40)}}
  %b = plan.view %a at 8 : tensor<3x2xf32, #aten.strided<[3, 1]>>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected only commands in the body, got 'plan.buffer'}}
  plan.program @p {
    %a = plan.buffer transient : tensor<8xf32>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{C1: expected 2 operands, one per place among the arguments, got 1}}
    "plan.launch"(%a, %a) <{callee = #aten.op<"mm">, args = #aten.args<(?, ?)>, role = #plan<role forward>, stream = #plan<stream compute>, operandSegmentSizes = array<i32: 1, 1>}> : (!plan.buffer, !plan.buffer) -> ()
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{C2: expected 2 buffers to write, got 1}}
    "plan.launch"(%a, %a) <{callee = #aten.op<"neg">, args = #aten.args<(?)>, present = array<i1: true, false, true>, role = #plan<role forward>, stream = #plan<stream compute>, operandSegmentSizes = array<i32: 1, 1>}> : (!plan.buffer, !plan.buffer) -> ()
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{C1: expected a communicator called 'c', found none}}
    plan.all_gather @c %a to %a <forward> on gather
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c_gather axes [0] on gather
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<16xbf16>
  plan.program @p {
    // expected-error@+1 {{C2: expected elements of 'f32', got 'bf16'}}
    plan.all_gather @c_gather %a to %b <forward> on gather
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c_reduce axes [0] on reduce
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{C2: expected 16 elements, got 8}}
    plan.reduce_scatter @c_reduce divide <pre = 1, post = 2> via f32 %a to %a <backward> on reduce
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c_all_reduce axes [0] on all_reduce
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<4xf32>
  plan.program @p {
    // expected-error@+1 {{C2: expected 8 elements, got 4}}
    plan.all_reduce @c_all_reduce divide <pre = 1, post = 2> via f32 %a to %b <backward> on all_reduce
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  %h = plan.buffer hyper number 0 in host : tensor<7xf64>
  plan.program @p {
    // expected-error@+1 {{C1: expected a unit called 'u', found none}}
    plan.adamw @u [0, 8] %a, %a, %a, %a, %h <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<4xf32>
  %h = plan.buffer hyper number 0 in host : tensor<7xf64>
  plan.program @p {
    // expected-error@+1 {{C1: expected ascending intervals, got 2 after 4}}
    plan.sgd @u [0, 4, 2, 8] %a, %a, %h <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<4xf32>
  %h = plan.buffer hyper number 0 in host : tensor<7xf64>
  plan.program @p {
    // expected-error@+1 {{C1: expected pairs of bounds up to 8, got 2 bounds up to 9}}
    plan.sgd @u [0, 9] %a, %a, %h <update>
  }
}

// -----

// What no caller writes is no place for hyper-parameters.
plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<4xf32>
  %h = plan.buffer transient in host : tensor<7xf64>
  plan.program @p {
    // expected-error@+1 {{C2: expected the hyper-parameters in a buffer of the role 'hyper'}}
    plan.sgd @u [0, 8] %a, %a, %h <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<4xf32>
  %h = plan.buffer hyper number 0 in host : tensor<7xf64>
  plan.program @p {
    // expected-error@+1 {{C3: expected a buffer of type 'tensor<f32>', got 'tensor<4xf32>'}}
    plan.sgd @u [0, 8] %a, %a, %h clip %a <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C6: expected hyper-parameters to be a 'tensor<7xf64>' on the host}}
  %h = plan.buffer hyper number 0 : tensor<7xf64>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C3: expected number of a buffer of role 'hyper'}}
  %h = plan.buffer hyper in host : tensor<7xf64>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<8xf32>
  %n = plan.buffer transient : tensor<f32>
  plan.program @p {
    // expected-error@+1 {{C2: expected a source of 4 elements, got 8}}
    plan.measure squared_norm @u [0, 8] %a to %n <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.unit @u shard [0] replicate [] storage f32 reduce f32
      layout <["w" : 8 at 0], numel = 8, padded = 8>
  %a = plan.buffer transient : tensor<4xf32>
  %n = plan.buffer transient : tensor<f32>
  %wide = plan.buffer transient : tensor<f64>
  plan.program @p {
    // expected-error@+1 {{C3: expected a buffer of type 'tensor<f64>', got 'tensor<f32>'}}
    plan.measure squared_norm @u [0, 8] %a initial %n to %wide <update>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c axes [0] on all_reduce
  %n = plan.buffer transient : tensor<f64>
  plan.program @p {
    // expected-error@+1 {{C4: expected one of 'max' and 'first', not divided}}
    plan.all_reduce @c divide <pre = 1, post = 2> via f64 max %n to %n for norm <update> on all_reduce
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c axes [0] on all_reduce
  %n = plan.buffer transient : tensor<f64>
  plan.program @p {
    // expected-error@+1 {{C4: expected one of 'max' and 'first', not divided}}
    plan.all_reduce @c divide <pre = 1, post = 1> via f64 max first %n to %n for buffer <forward> on all_reduce
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C5: expected no name of a decay group but 'no_decay', got 'decay'}}
  %h = plan.buffer hyper "decay" number 0 in host : tensor<7xf64>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<4x4xf32, #aten.strided<[8, 1]>>
  plan.program @p {
    // expected-error@+1 {{C1: expected a dense buffer, got 'tensor<4x4xf32, #aten.strided<[8, 1]>>'}}
    plan.zero %a <forward>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<4xf32>
  plan.program @p {
    // expected-error@+1 {{C1: expected 8 elements, got 4}}
    plan.copy %a to %b <forward>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{expected a role, got 'sideways'}}
    plan.zero %a <sideways>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @p {
    // expected-error@+1 {{expected a stream, got 'river'}}
    plan.zero %a <forward> on river
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<4xf32>
  plan.program @p {
    // expected-error@+1 {{C1: expected a communicator called 'local', found none}}
    plan.piece @local %a to %b <forward>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c_gather axes [0] on gather
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<2xf32>
  plan.program @p {
    // expected-error@+1 {{C2: expected 4 elements, got 8}}
    plan.piece @c_gather %a to %b <forward>
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c_gather axes [0] on gather
  %a = plan.buffer transient : tensor<8xf32>
  %b = plan.buffer transient : tensor<4xbf16>
  plan.program @p {
    // expected-error@+1 {{C2: expected elements of 'f32', got 'bf16'}}
    plan.piece @c_gather %a to %b <forward>
  }
}

// -----

plan.module @p mesh ["shard" = 1] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  // expected-error@+1 {{C2: expected elements of PyTorch's types, got 'tensor<3xindex>'}}
  %b = plan.view %a at 0 : tensor<3xindex>
}

// -----

// expected-error@+1 {{C2: expected axes of positive sizes, and less than 2^31 ranks}}
plan.module @m mesh ["shard" = 4294967296, "local" = 4294967296] device cpu {
}

// -----

plan.module @p mesh ["shard" = 1] device cpu {
  %a = plan.buffer transient : tensor<8xf32>
  plan.program @step {
    // expected-error@+1 {{C4: operator 'copy' needs an argument 'src'}}
    plan.launch "copy"(%a) -> %a <forward>
  }
}

// -----

// expected-error@+1 {{C2: expected axes of positive sizes, and less than 2^31 ranks}}
plan.module @m mesh ["shard" = -2] device cpu {
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  // expected-error@+1 {{C1: expected at most 1099511627776 elements, got 'tensor<4294967296x4294967296xf32>'}}
  %x = plan.buffer transient : tensor<4294967296x4294967296xf32>
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  %x = plan.buffer transient : tensor<4xf32>
  // expected-error@+1 {{C3: expected a window inside of 16 bytes, got [9223372036854775807, 9223372036854775823)}}
  %v = plan.view %x at 9223372036854775807 : tensor<4xf32>
}

// -----

// What one communicator runs has one order.
plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c axes [0] on gather
  %a = plan.buffer transient : tensor<4xf32>
  %b = plan.buffer transient : tensor<8xf32>
  plan.program @step {
    // expected-error@+1 {{C1: expected the stream of communicator 'c', gather, found reduce}}
    plan.reduce_scatter @c divide <pre = 1, post = 2> via f32 %b to %a <backward> on reduce
  }
}

// -----

plan.module @m mesh ["shard" = 2] device cpu {
  plan.communicator @c axes [0] on gather
  plan.communicator @d axes [0] on reduce
  // expected-error@+1 {{C3: expected other axes or another stream than those of an earlier communicator}}
  plan.communicator @e axes [0] on gather
}
