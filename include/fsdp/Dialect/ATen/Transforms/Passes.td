//===- Passes.td - Passes of the ATen dialect ---------------*- tablegen -*-===//
//
// In alphabetical order. Each pass has a file of its name, and a test.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_TD
#define FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ChunkLossPass : Pass<"aten-chunk-loss", "::mlir::ModuleOp"> {
  let summary = "compute a loss over a vocabulary some rows at a time";
  let description = [{
    A projection of hidden states by a weight, a cross-entropy of it (mean or
    sum, with ignored rows), and their backward, for `chunks` chunks of rows one
    after the other, as `torch.chunk` makes them: the logits and their gradients
    are there for one chunk at a time. A slice of the logits is one of the hidden
    states. The chunks have the gradient that the loss gets, and the number of
    rows that count in all of them: each row has the gradient that it had. The
    loss and the gradients of weight and bias are sums over chunks, and round in
    another order, the latter in the type that they had. Each call keeps its
    phase. So a unit with the weight that is resharded after the forward is there
    twice while the chunks run; the root is not.

    What reads logits, or gradients of them, in another way is a reason to leave
    a loss as it is: so are logits among the outputs, weights of classes, label
    smoothing, a log-softmax in 16 bits, and sizes that are not known.

    Before and after: the aten level. The model that programs are checked
    against is the rewritten one, since the orders of sums differ. Remark
    `chunks` for each loss that was rewritten, `whole` with the reason for each
    other.
  }];
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
  let options = [
    Option<"chunks", "chunks", "int64_t", "1",
           "How many chunks; 1 leaves a program as it is.">,
  ];
}

def FoldParameterCastsPass : Pass<"aten-fold-parameter-casts", "::mlir::ModuleOp"> {
  let summary = "take parameters in the type that the program computes with";
  let description = [{
    Mixed precision is captured as casts: of each parameter to the type that
    `aten.param_dtype` says, and of its gradient back. Where a program uses a
    parameter only through such casts, it takes the parameter in that type and
    returns the gradient as it was computed; `aten.storage_dtype` says what the
    parameter is kept as. So the gather has the narrow type, and each program
    that one of its own.

    Before and after: the aten level; afterwards without `aten.param_dtype`.
    Remark `kept` for each parameter that is used in another way, and so stays as
    it is.
  }];
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
}

def LegalizePass : Pass<"fsdp-legalize", "::mlir::ModuleOp"> {
  let summary = "rewrite what a plan cannot express";
  let description = [{
    Calls and arguments of the step that mean the same as others, which a plan
    has:

    * A tensor that the caller gives starts a storage of its own: views of one
      that PyTorch cut out of another count from its first element.
    * A parameter of integers or truth values, which nobody trains, is a buffer.
    * A conjugated or negated view (`_conj`, `_neg_view`) is a tensor with those
      values; to resolve one is to copy it.
    * `copy` of a tensor that broadcasts is one of the tensor expanded.
    * `as_strided_scatter` of all elements is a copy, seen through other sizes;
      of some it is an `index_put` at their numbers.
    * What draws random numbers without a generator is the same with one:
      `native_dropout` is a `bernoulli` mask and two products, `rand` fills a
      tensor by `uniform`, `randn` by `normal_functional`, `randint` by
      `random`. The draws are the same, bit for bit.

    Before and after: the aten level.
  }];
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
}

def RetargetDevicePass : Pass<"aten-retarget-device", "::mlir::ModuleOp"> {
  let summary = "rewrite a graph that was captured for another device";
  let description = [{
    Device arguments become the new device. Attention, which PyTorch decides at
    capture, becomes a variant of CUDA:
    `_scaled_dot_product_flash_attention` in 16 bits, without a mask, with heads
    of one size of at most 256, and, if it is causal, as many keys as queries,
    or with the option `cudnn`, for heads of at most 128,
    `_scaled_dot_product_cudnn_attention`;
    `_scaled_dot_product_efficient_attention` otherwise. A mask is expanded to
    all batches and heads, as that kernel wants it, and the logarithms of the
    sums have another size there. The seed and the offset that a forward returns
    are not used: without dropout the backward does not read them, and those of
    the efficient kernel are in host memory. It gets a constant in their place.

    Of a module that is for CUDA already, only the seeds and offsets of attention
    are dropped; one for the CPU already is left alone. From CUDA to the CPU
    is rejected, and so is what the kernels cannot do: dropout, heads and masks
    whose rows are not aligned to 16 bytes, sums of logarithms that are used
    otherwise.

    Before and after: the aten level, sizes of attention known. Remark
    `retarget` for each attention.
  }];
  let dependentDialects = ["::fsdp::aten::ATenDialect"];
  let options = [
    Option<"device", "device", "::fsdp::aten::Device", "::fsdp::aten::Device::CUDA",
           "The kind of device that runs the step.", [{::llvm::cl::values(
             clEnumValN(::fsdp::aten::Device::CPU, "cpu", "Ordinary processors."),
             clEnumValN(::fsdp::aten::Device::CUDA, "cuda", "NVIDIA's GPUs."))}]>,
    Option<"cudnn", "cudnn", "bool", "false",
           "Attention without a mask by cuDNN, as PyTorch does on GPUs of "
           "compute capability 9.0 and more, instead of flash attention.">,
  ];
}

#endif // FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_TD
