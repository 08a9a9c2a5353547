//===- Passes.td - Passes of the plan dialect --------------*- tablegen -*-===//
//
// In alphabetical order. Each pass has a file of its name, and a test.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_TD
#define FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def AssignMemory : Pass<"plan-assign-memory", "::fsdp::plan::ModuleOp"> {
  let summary = "assign an offset in the arena to every buffer";
  let description = [{
    What outlives a program comes first, side by side. After it lie the buffers
    that live inside one program, from the first command that touches them to the
    last (`gradient` and `output`: to the end of the program); buffers that are
    never alive at once share bytes. What another stream than that of the
    computations touches is alive from where that stream may touch it to where the
    compute stream knows that it is done, by the events that are there: so nothing
    waits for a place. Offsets are multiples of 64 bytes, of 512 for CUDA.

    Before: `plan-insert-sync`.

    Remark `memory` for each program: the peak, and the most bytes that are alive
    at once, below which no plan can get.
  }];
}

def FoldCopies : Pass<"plan-fold-copies", "::fsdp::plan::ModuleOp"> {
  let summary = "write results where they would be copied to";
  let description = [{
    Where a whole buffer is copied into a window of the same sizes, strides and
    type, and nobody else touches the window while the buffer is alive, the
    buffer becomes the window and the copy goes. So gradients are computed right
    into the flat gradient, and results of the program into their place.

    Sizes in another order and other strides will do if an exact operator (see
    `OpFacts::isExact`) writes the buffer and only the copy reads it. Zeros that
    are written around the window are then written earlier.

    Before: `plan-select-kernels`, which makes the copies.
  }];
}

def FoldViews : Pass<"plan-fold-views", "::fsdp::plan::ModuleOp"> {
  let summary = "turn launches of views into views of buffers";
  let description = [{
    The results of a launch whose operator returns a view become windows on the
    operand's bytes, where their types say: offsets there count from the start of
    the operand's own storage. A copy with the sizes, strides and type of its
    source is the source. `_assert_tensor_metadata` is checked and dropped.

    After: no launch of a view is left, and no layout has an offset.
  }];
}

def InsertSync : Pass<"plan-insert-sync", "::fsdp::plan::ModuleOp"> {
  let summary = "insert events between streams";
  let description = [{
    A command that reads what another stream writes, writes what another stream
    reads or writes, or writes first into a buffer that comes `after` others which
    another stream uses, waits for an event of that stream; so does a collective for
    those over other axes whose groups share two ranks or more with its own. Waits
    that follow from earlier ones are left out, also those of the schedule; those
    of the forward follow from its own, since it also runs alone. All streams are
    joined before and after a program. The waits of the compute stream are those of
    the scheduled level: the schedule says where it waits for what it reads.

    After: the same, with `plan.record` and `plan.wait`; any order of execution
    that the streams and events allow gives the same bits.
  }];
}

def SelectKernels : Pass<"plan-select-kernels", "::fsdp::plan::ModuleOp"> {
  let summary = "choose the kernel of each launch";
  let description = [{
    An operator with an `out` overload that has a kernel of its own on the device
    of the plan becomes that overload; one with an equivalent that writes in
    place becomes the equivalent, for example a `clone` a copy and the gradient
    of a slice a fill and a copy. All others stay: their results are placed by
    the allocator hook.

    Before: `plan-fold-views`. Remark `hooked` for each launch that takes the
    hook.
  }];
}

#endif // FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_TD
