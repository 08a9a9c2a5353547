//===- OpFacts.h - What is known of each ATen operator ----------*- C++ -*-===//
//
// One row for every operator overload in PyTorch's `aten` registry. Most of a
// row is generated from the registry (scripts/generate_op_facts.py writes
// lib/Operators/OpFacts.inc); what the registry doesn't know (costs,
// equivalents, what a plan may run) is by hand in
// lib/Operators/OpFactsManual.cpp. Operators that are not in the table are
// unknown: opaque, expensive and rejected at load.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_OPERATORS_OPFACTS_H
#define FSDP_OPERATORS_OPFACTS_H

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp::operators {

/// What the result of an out overload is written by.
enum class OutKernel : uint8_t {
  None,      // there is no matching out overload, or no kernel behind it
  Generated, // computes as the functional overload does, then copies
  Own,       // writes into the output directly
};

/// The registry's tags, as bits.
enum OpTag : uint16_t {
  TagPointwise = 1 << 0,
  TagReduction = 1 << 1,
  TagNondeterministicSeeded = 1 << 2,
  TagNondeterministicBitwise = 1 << 3,
  TagDataDependentOutput = 1 << 4,
  TagDynamicOutputShape = 1 << 5,
  TagInplaceView = 1 << 6,
  TagViewCopy = 1 << 7,
  TagCore = 1 << 8,
  TagMaybeAliasing = 1 << 9,
};

/// What the time of an operator depends on.
enum class CostClass : uint8_t {
  Opaque,        // not known: count it as expensive
  Metadata,      // views, aliases, checks: launches nothing
  Elementwise,   // reads and writes each element once
  Reduction,     // reads all, writes less
  Copy,          // moves elements: clone, cat, constant_pad_nd
  Fill,          // writes only: full, arange
  Gather,        // indexed reads or writes: embedding, index_put
  Normalisation, // softmax, layer_norm, batch_norm, and their backwards
  Gemm,          // matrix products
  Convolution,
  Attention,
  Random, // draws from a generator
};

/// How many floating-point operations a call does, from the sizes of its
/// tensors; a multiply and an add are two.
enum class FlopFormula : uint8_t {
  None,              // not worth counting; bytes matter
  PerElement,        // one per element of the largest tensor
  PerElementMany,    // about ten per element: exp, erf, normalisations
  MatMul,            // mm(a, b), bmm: 2 * numel(result) * size(a, -1)
  AddMatMul,         // addmm(c, a, b): the same, with a the second operand
  Attention,         // (q, k, v): 4 * numel(q) * size(k, -2), half if is_causal
  AttentionBackward, // (grad, q, k, v): 10 * numel(q) * size(k, -2), likewise
  Convolution,       // 2 * numel(result) * numel(weight) / size(weight, 0)
  ConvolutionBackward, // the same of the forward, once per gradient asked for
};

/// A cheaper call with the same result, for operators whose out overload is a
/// generated one. `%out` is the place of the result.
enum class Equivalent : uint8_t {
  None,
  Copy,           // copy_(%out, self): clone, _to_copy, contiguous
  CopySource,     // copy_(%out, src): copy
  Fill,           // fill_(%out, value): full, zeros, ones and their likes
  ScalarTensor,   // fill_(%out, the first argument): scalar_tensor
  Embedding,      // index_select.out(weight, 0, indices, out = %out)
  SliceBackward,  // zero_(%out); copy_(slice(%out), grad)
  SelectBackward, // zero_(%out); copy_(select(%out), grad)
  SliceScatter,   // copy_(%out, self); copy_(slice(%out), src)
  SelectScatter,  // copy_(%out, self); copy_(select(%out), src)
  TensorScalar,   // X.out with the scalar as a tensor: mul.Scalar, div.Scalar
  MeanAsSum,      // sum.IntList_out, then div_ by the number of elements
  Power,          // exponent 1: copy_(%out, self); 2, of f32 and f64: mul.out
  Draw,           // `drawOverload` of %out: uniform, bernoulli.p
};

/// Whether a plan from a stranger may run an operator: how it is known that a
/// call reads and writes the memory of its tensors only, whatever its arguments
/// are, and neither a file nor state of the process.
enum class Safety : uint8_t {
  Never,   // a plan can't express a call, or the runtime can't make it
  Unknown, // nobody has looked: runs only where the user names it
  Guarded, // the kernel relies on sizes or indices that the runtime checks
  Fuzzed,  // odd calls between guarded pages have not broken it
};

/// The facts of one overload. Plain data that lives as long as the program.
struct OpFacts {
  /// As in graphs: "add.Tensor"; the default overload has no suffix: "mm".
  std::string_view name;
  /// The whole schema as the dispatcher prints it:
  /// "aten::mm(Tensor self, Tensor mat2) -> Tensor".
  std::string_view schema;
  /// The overload that takes the same arguments and one writable tensor (or
  /// list) more per result: "add.out". That of a factory lacks dtype, layout,
  /// device and pin_memory, which the output has. Empty if there is none.
  std::string_view outOverload;
  /// Arguments, in bits by position: those that are written, and those that a
  /// result shares memory with and that are not written (views).
  uint32_t mutatedArgs = 0;
  uint32_t aliasedArgs = 0;
  /// A set of `OpTag`.
  uint16_t tags = 0;
  uint8_t numArgs = 0;
  uint8_t numReturns = 0;
  /// Whose kernels `outOverload` has.
  OutKernel outKernelCPU = OutKernel::None;
  OutKernel outKernelCUDA = OutKernel::None;
  /// A result is a list of tensors (whose length depends on the arguments).
  bool returnsList = false;
  /// Draws random numbers: has a Generator argument, or the tag says so.
  bool isRandom = false;
  /// A Generator can be passed, so that the draws are the caller's own.
  bool takesGenerator = false;
  /// A plan can't express a call: an argument is a custom class, a Storage or
  /// a Stream, or there are results and none is a tensor.
  bool hasForeignType = false;
  /// Every result is the same elements of an argument's memory seen through
  /// other sizes, strides or offset; nothing is written. Always so: `reshape`,
  /// which sometimes copies, and `_conj`, which changes values, have
  /// `aliasedArgs` but are no views. `_unsafe_view`, whose schema hides it, is.
  bool isView = false;

  // By hand.

  CostClass cost = CostClass::Opaque;
  FlopFormula flops = FlopFormula::None;
  Equivalent equivalent = Equivalent::None;
  /// Of what fills a tensor like `self` with draws: the overload that fills
  /// `self` itself, with the same ones. Neither looks at what is in it.
  std::string_view drawOverload = {};
  /// Takes no longer than reading its operands and writing its results does,
  /// and draws nothing: computing it again may be worth not keeping these.
  bool isCheapToRecompute = false;
  /// Writes each element as one correctly rounded operation on those of its
  /// operands (`add` and `sub` if alpha is 1): the same bits for any strides.
  bool isExact = false;
  /// Overloads with `out` write any strides. What goes element by element does,
  /// but for oneDNN's; of the others many write as if `out` were row-major
  /// (softmax, pooling, padding), or change its strides.
  bool keepsStrides = false;
  Safety safety = Safety::Unknown;

  bool isSafeInPlan() const { return safety >= Safety::Guarded; }
  bool hasTag(OpTag tag) const { return tags & tag; }
  /// Writes an argument (which includes out overloads).
  bool isMutating() const { return mutatedArgs != 0; }
  /// Computes new values from its arguments alone: merging two equal calls and
  /// dropping one without uses is right. Of what has no results, only
  /// `_assert_tensor_metadata` is.
  bool isPure() const {
    return !isMutating() && !isRandom && (numReturns != 0 || isSafeInPlan());
  }
};

/// The facts of the overload called `name` in the spelling of
/// `OpFacts::name`, or null if ATen has none. Takes less than a microsecond.
const OpFacts *lookupOpFacts(std::string_view name);

/// A run of rows.
struct OpFactsRange {
  const OpFacts *first, *last;
  const OpFacts *begin() const { return first; }
  const OpFacts *end() const { return last; }
  size_t size() const { return static_cast<size_t>(last - first); }
};

/// All rows, sorted by name.
OpFactsRange getAllOpFacts();

} // namespace fsdp::operators

#endif // FSDP_OPERATORS_OPFACTS_H
