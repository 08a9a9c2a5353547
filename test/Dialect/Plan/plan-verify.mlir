// A read finds what was written last to its own buffer, and events order what
// touches the same bytes: each plan below is the first one with one mistake.
// RUN: fsdp-opt %s --plan-verify --split-input-file --verify-diagnostics

// Nothing is wrong with it but that it says nothing about a model.
// expected-error @below {{cannot prove the plan: meaning: expected what the model computes, without which nothing can be proved; found none}}
plan.module @good mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %y = plan.buffer transient at 384 : tensor<32xf32>
  %z = plan.buffer transient at 256 after %full : tensor<32xf32>
  %loss = plan.buffer loss @step at 192 : tensor<f32>
  plan.program @step {
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
    %0 = plan.record <forward> on gather
    plan.wait %0 <forward>
    plan.launch "mul.out"(%x, %full) -> %y <forward>
    plan.launch "relu.out"(%y) -> %z <forward>
    plan.launch "sum.IntList_out"(%z, [], false) -> %loss <forward>
  }
}

// -----
// Nothing orders the streams.
// expected-error @below {{programs[0] (step).commands[1], aten::mul.out on Compute: expected to read buffers[2] after commands[0], AllGather on Gather, which writes bytes [256, 384), found no order between them}}
plan.module @no_wait mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %y = plan.buffer transient at 384 : tensor<32xf32>
  plan.program @step {
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
    plan.launch "mul.out"(%x, %full) -> %y <forward>
  }
}

// -----
// The event is recorded, but before what it should be recorded behind.
// expected-error @below {{programs[0] (step).commands[3], aten::mul.out on Compute: expected to read buffers[2] after commands[1], AllGather on Gather, which writes bytes [256, 384), found no order between them}}
plan.module @other_event mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %y = plan.buffer transient at 384 : tensor<32xf32>
  plan.program @step {
    %0 = plan.record <forward> on gather
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
    plan.wait %0 <forward>
    plan.launch "mul.out"(%x, %full) -> %y <forward>
  }
}

// -----
// The place is used again while somebody on another stream reads it.
// expected-error @below {{programs[0] (step).commands[2], AllGather on Gather: expected to write buffers[3] after commands[1], aten::sum.IntList_out on Compute, which touches bytes [256, 384), found no order between them}}
plan.module @reuse mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %y = plan.buffer transient at 256 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %sum = plan.buffer transient at 384 : tensor<f32>
  plan.program @step {
    plan.launch "relu.out"(%x) -> %y <forward>
    plan.launch "sum.IntList_out"(%y, [], false) -> %sum <forward>
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
  }
}

// -----
// The place is given away too early.
// expected-error @below {{programs[0] (step).commands[2], aten::mul.out on Compute: expected to read buffers[1] as commands[0], aten::relu.out on Compute left it, found bytes [192, 256) that commands[1], aten::neg.out on Compute wrote for buffers[2]}}
plan.module @stale mesh ["shard" = 2] device cpu strategy full_shard {
  %x = plan.buffer input @step number 0 at 0 : tensor<32xf32>
  %y = plan.buffer transient at 128 : tensor<32xf32>
  %z = plan.buffer transient at 192 : tensor<32xf32>
  %r = plan.buffer transient at 320 : tensor<32xf32>
  plan.program @step {
    plan.launch "relu.out"(%x) -> %y <forward>
    plan.launch "neg.out"(%x) -> %z <forward>
    plan.launch "mul.out"(%y, %z) -> %r <forward>
  }
}

// -----
// Memory is not zero by nature.
// expected-error @below {{programs[0] (step).commands[0], aten::mul.out on Compute: expected buffers[1] to be written before it is read, found bytes [128, 256) that nothing has written}}
plan.module @unwritten mesh ["shard" = 2] device cpu strategy full_shard {
  %x = plan.buffer input @step number 0 at 0 : tensor<32xf32>
  %y = plan.buffer transient at 128 : tensor<32xf32>
  %z = plan.buffer transient at 256 : tensor<32xf32>
  plan.program @step {
    plan.launch "mul.out"(%x, %y) -> %z <forward>
  }
}

// -----
// Only what goes element by element may write where it reads.
// expected-error @below {{programs[0] (step).commands[1], aten::mm.out on Compute: expected a result apart from its operands, found bytes [64, 128) of both buffers[1] and buffers[1]}}
plan.module @in_place mesh ["shard" = 2] device cpu strategy full_shard {
  %x = plan.buffer input @step number 0 at 0 : tensor<4x4xf32>
  %y = plan.buffer transient at 64 : tensor<4x4xf32>
  plan.program @step {
    plan.launch "mul.out"(%x, %x) -> %y <forward>
    plan.launch "mm.out"(%x, %y) -> %y <forward>
  }
}

// -----
// Views share the bytes of their buffer: rows and columns are told apart.
// expected-error @below {{cannot prove the plan: meaning: expected what the model computes}}
plan.module @views mesh ["shard" = 2] device cpu strategy full_shard {
  %x = plan.buffer input @step number 0 at 0 : tensor<4x4xf32>
  %y = plan.buffer transient at 64 : tensor<4x4xf32>
  %row = plan.view %y at 16 : tensor<4xf32>
  %column = plan.view %y at 4 : tensor<4xf32, #aten.strided<[4]>>
  %xrow = plan.view %x at 16 : tensor<4xf32>
  %sum = plan.buffer transient at 128 : tensor<f32>
  plan.program @step {
    plan.zero %y <forward>
    plan.copy %xrow to %column <forward>
    plan.copy %xrow to %row <forward>
    plan.launch "sum.IntList_out"(%y, [], false) -> %sum <forward>
  }
}

// -----
// The collectives of a group may run at the same time.
// expected-error @below {{programs[0] (step).commands[1], AllGather on Gather: expected to write buffers[2] after commands[0], AllGather on Gather, which touches bytes [64, 192), found no order between them}}
plan.module @group mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  plan.unit @u shard [0] replicate [] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %a = plan.buffer transient at 64 : tensor<32xf32>
  %b = plan.buffer transient at 64 : tensor<32xf32>
  plan.program @step {
    plan.all_gather @shard_gather %w to %a of @u group 1 <forward> on gather
    plan.all_gather @shard_gather %w to %b of @u group 1 <forward> on gather
  }
}

// -----
// Groups that share ranks: the sum over all waits for the gather, which it need
// not do for the sum over replicas, with whom a group of shards shares one rank.
// expected-error @below {{cannot prove the plan: meaning: expected what the model computes}}
plan.module @groups mesh ["replicate" = 2, "shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [1] on gather
  plan.communicator @replicate_reduce axes [0] on reduce
  plan.communicator @all_all_reduce axes [0, 1] on all_reduce
  plan.unit @u shard [1] replicate [0] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %y = plan.buffer transient at 384 : tensor<32xf32>
  %z = plan.buffer transient at 512 : tensor<32xf32>
  plan.program @step {
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
    %0 = plan.record <forward> on gather
    plan.all_reduce @replicate_reduce divide <pre = 1, post = 2> via f32 %x to %y for loss <forward> on reduce
    %1 = plan.record <forward> on reduce
    plan.wait %0 <forward> on all_reduce
    plan.wait %1 <forward> on all_reduce
    plan.all_reduce @all_all_reduce divide <pre = 1, post = 4> via f32 %x to %z for loss <forward> on all_reduce
  }
}

// -----
// One rank might start with the gather, another one with the sum: both wait.
// expected-error @below {{programs[0] (step).commands[1], AllReduce on AllReduce: expected to start after commands[0], AllGather on Gather, whose groups share ranks with its own, found no order between them}}
plan.module @deadlock mesh ["replicate" = 2, "shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [1] on gather
  plan.communicator @all_all_reduce axes [0, 1] on all_reduce
  plan.unit @u shard [1] replicate [0] storage f32 reduce f32 layout <["w" : 32 at 0], numel = 32, padded = 32>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<32xf32>
  %full = plan.buffer transient at 256 : tensor<32xf32>
  %z = plan.buffer transient at 512 : tensor<32xf32>
  plan.program @step {
    plan.all_gather @shard_gather %w to %full of @u <forward> on gather
    plan.all_reduce @all_all_reduce divide <pre = 1, post = 4> via f32 %x to %z for loss <forward> on all_reduce
  }
}

// -----
// Nobody reads the bytes that are lost; the buffer is in use all the same, and
// whoever ends its life would end the other's, too.
// expected-error @below {{programs[0] (step).commands[4], aten::neg.out on Compute: expected buffers[3] to have been used for the last time before commands[2], aten::relu.out on Compute writes buffers[4] in its place, found another use; they share bytes [128, 192)}}
plan.module @shared mesh ["shard" = 2] device cpu strategy full_shard {
  %x = plan.buffer input @step number 0 at 0 : tensor<32xf32>
  %y = plan.buffer transient at 128 : tensor<32xf32>
  %front = plan.view %y at 0 : tensor<16xf32>
  %back = plan.view %y at 64 : tensor<16xf32>
  %z = plan.buffer transient at 128 : tensor<16xf32>
  %a = plan.buffer transient at 256 : tensor<16xf32>
  %b = plan.buffer transient at 320 : tensor<16xf32>
  plan.program @step {
    plan.launch "relu.out"(%x) -> %y <forward>
    plan.launch "neg.out"(%front) -> %a <forward>
    plan.launch "relu.out"(%a) -> %z <forward>
    plan.launch "neg.out"(%z) -> %a <forward>
    plan.launch "neg.out"(%back) -> %b <forward>
  }
}

// -----
// A piece of a gathered unit makes the same whole again.
// expected-error @below {{cannot prove the plan: meaning: expected what the model computes}}
plan.module @pieces mesh ["shard" = 2, "local" = 2] device cpu strategy full_shard {
  plan.communicator @all_gather axes [0, 1] on gather
  plan.communicator @local_gather axes [1] on gather
  plan.communicator @shard axes [0] on gather
  plan.unit @u shard [0, 1] replicate [] storage f32 reduce f32 layout <["w" : 64 at 0], numel = 64, padded = 64>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<64xf32>
  %loss = plan.buffer loss @step at 320 : tensor<f32>
  %full = plan.buffer transient at 384 : tensor<64xf32>
  %piece = plan.buffer transient at 640 : tensor<32xf32>
  %again = plan.buffer transient at 768 : tensor<64xf32>
  %y = plan.buffer transient at 1024 : tensor<64xf32>
  plan.program @step {
    plan.all_gather @all_gather %w to %full of @u <forward> on gather
    %0 = plan.record <forward> on gather
    plan.wait %0 <forward>
    plan.piece @local_gather %full to %piece of @u <forward>
    %1 = plan.record <forward>
    plan.wait %1 <forward> on gather
    plan.all_gather @local_gather %piece to %again of @u <forward> on gather
    %2 = plan.record <forward> on gather
    plan.wait %2 <forward>
    plan.launch "mul.out"(%x, %again) -> %y <forward>
    plan.launch "sum.IntList_out"(%y, [], false) -> %loss <forward>
  }
}

// -----
// The gather does not wait for the piece.
// expected-error @below {{programs[0] (step).commands[4], AllGather on Gather: expected to read buffers[4] after commands[3], Piece on Compute, which writes bytes [640, 768), found no order between them}}
plan.module @piece_race mesh ["shard" = 2, "local" = 2] device cpu strategy full_shard {
  plan.communicator @all_gather axes [0, 1] on gather
  plan.communicator @local_gather axes [1] on gather
  plan.communicator @shard axes [0] on gather
  plan.unit @u shard [0, 1] replicate [] storage f32 reduce f32 layout <["w" : 64 at 0], numel = 64, padded = 64>
  %w = plan.buffer shard @u at 0 : tensor<16xf32>
  %x = plan.buffer input @step number 0 at 64 : tensor<64xf32>
  %loss = plan.buffer loss @step at 320 : tensor<f32>
  %full = plan.buffer transient at 384 : tensor<64xf32>
  %piece = plan.buffer transient at 640 : tensor<32xf32>
  %again = plan.buffer transient at 768 : tensor<64xf32>
  %y = plan.buffer transient at 1024 : tensor<64xf32>
  plan.program @step {
    plan.all_gather @all_gather %w to %full of @u <forward> on gather
    %0 = plan.record <forward> on gather
    plan.wait %0 <forward>
    plan.piece @local_gather %full to %piece of @u <forward>
    plan.all_gather @local_gather %piece to %again of @u <forward> on gather
    %2 = plan.record <forward> on gather
    plan.wait %2 <forward>
    plan.launch "mul.out"(%x, %again) -> %y <forward>
    plan.launch "sum.IntList_out"(%y, [], false) -> %loss <forward>
  }
}

// -----
// Each rank keeps a piece of its own input: nobody else has that whole, so what
// the gather makes is none that value numbers know.
// expected-error-re @below {{cannot prove the plan: the end of program step: expected the loss of the model, the sum of x; found {{.*}}; commands[1], AllGather on Gather needs a gather of what all ranks know in the same way}}
plan.module @own_pieces mesh ["shard" = 2] device cpu strategy full_shard {
  plan.communicator @shard_gather axes [0] on gather
  %x = plan.buffer input @step number 0 at 0 : tensor<64xf32>
  %loss = plan.buffer loss @step at 256 : tensor<f32>
  %piece = plan.buffer transient at 320 : tensor<32xf32>
  %again = plan.buffer transient at 512 : tensor<64xf32>
  plan.program @step {
    plan.piece @shard_gather %x to %piece <forward> on gather
    plan.all_gather @shard_gather %piece to %again <forward> on gather
    %0 = plan.record <forward> on gather
    plan.wait %0 <forward>
    plan.launch "sum.IntList_out"(%again, [], false) -> %loss <forward>
  }
  plan.meaning "loss" of @step is 1 as "the sum of x"
}
