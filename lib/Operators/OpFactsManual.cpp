//===- OpFactsManual.cpp - What PyTorch's registry does not know ----------===//

#include "OpFactsManual.h"

#include <algorithm>

using namespace fsdp::operators;

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

// Views by implementation, though the schema does not say so.
static constexpr std::string_view hiddenViews[] = {
    "_unsafe_view", "lift", "unsafe_chunk", "unsafe_split.Tensor",
    "unsafe_split_with_sizes"};

// Their out overloads use the output for the values before the reduction, too,
// and so change its size: a planned place has one size.
static constexpr std::string_view resizingOut[] = {
    "binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss",
    "soft_margin_loss"};

// The schema says that they may alias. Some copy if they must, some give a
// tensor that means other values (conjugated, negated) or is of another kind.
static constexpr std::string_view falseViews[] = {
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "_conj",
    "_fw_primal",
    "_make_dual",
    "_neg_view",
    "_nested_view_from_buffer",
    "_nested_view_from_jagged",
    "_sparse_broadcast_to",
    "_test_autograd_multiple_dispatch_view",
    "_unpack_dual",
    "adjoint",
    "coalesce",
    "conj",
    "contiguous",
    "flatten",
    "mH",
    "matrix_H",
    "pin_memory",
    "ravel",
    "reshape",
    "reshape_as",
    "resolve_conj",
    "resolve_neg",
    "slice_inverse",
    "to"};

//===----------------------------------------------------------------------===//
// Writes
//===----------------------------------------------------------------------===//

namespace {
struct HiddenWrite {
  std::string_view packet;
  uint32_t arguments; // bits by position
};
} // namespace

// Arguments that are written though the schema calls them read-only: running
// statistics, in training. test/Python/test_read_only_arguments.py looks for
// more; those of GPU libraries are by PyTorch's documentation. A plan orders
// commands by what their schemas say, so it can't run these; their
// `_functional` forms return what is new.
static constexpr HiddenWrite hiddenWrites[] = {
    {"_batch_norm_impl_index", 0x18},
    {"batch_norm", 0x18},
    {"batch_norm_gather_stats", 0x18},
    {"batch_norm_gather_stats_with_counts", 0x18},
    {"batch_norm_update_stats", 0x6},
    {"cov", 0x1}, // of a scalar with weights
    {"cudnn_batch_norm", 0x18},
    {"instance_norm", 0x18},
    {"miopen_batch_norm", 0x18},
    {"native_batch_norm", 0x18},
};

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

namespace {
struct CostRow {
  std::string_view base;
  CostClass cost;
  FlopFormula flops = FlopFormula::None;
};
} // namespace

// By base name, for what the tags don't tell.
static constexpr CostRow costs[] = {
    // Matrix products.
    {"mm", CostClass::Gemm, FlopFormula::MatMul},
    {"bmm", CostClass::Gemm, FlopFormula::MatMul},
    {"mv", CostClass::Gemm, FlopFormula::MatMul},
    {"dot", CostClass::Gemm, FlopFormula::MatMul},
    {"vdot", CostClass::Gemm, FlopFormula::MatMul},
    {"matmul", CostClass::Gemm, FlopFormula::MatMul},
    {"linear", CostClass::Gemm, FlopFormula::MatMul},
    {"_int_mm", CostClass::Gemm, FlopFormula::MatMul},
    {"_scaled_mm", CostClass::Gemm, FlopFormula::MatMul},
    {"_grouped_mm", CostClass::Gemm, FlopFormula::MatMul},
    {"addmm", CostClass::Gemm, FlopFormula::AddMatMul},
    {"addmv", CostClass::Gemm, FlopFormula::AddMatMul},
    {"baddbmm", CostClass::Gemm, FlopFormula::AddMatMul},
    {"_addmm_activation", CostClass::Gemm, FlopFormula::AddMatMul},
    // Convolutions.
    {"convolution", CostClass::Convolution, FlopFormula::Convolution},
    {"_convolution", CostClass::Convolution, FlopFormula::Convolution},
    {"cudnn_convolution", CostClass::Convolution, FlopFormula::Convolution},
    {"convolution_backward", CostClass::Convolution,
     FlopFormula::ConvolutionBackward},
    // Attention.
    {"scaled_dot_product_attention", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_attention_math", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_flash_attention_for_cpu", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_flash_attention", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_efficient_attention", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_cudnn_attention", CostClass::Attention,
     FlopFormula::Attention},
    {"_flash_attention_forward", CostClass::Attention, FlopFormula::Attention},
    {"_efficient_attention_forward", CostClass::Attention,
     FlopFormula::Attention},
    {"_scaled_dot_product_flash_attention_for_cpu_backward",
     CostClass::Attention, FlopFormula::AttentionBackward},
    {"_scaled_dot_product_flash_attention_backward", CostClass::Attention,
     FlopFormula::AttentionBackward},
    {"_scaled_dot_product_efficient_attention_backward", CostClass::Attention,
     FlopFormula::AttentionBackward},
    {"_scaled_dot_product_cudnn_attention_backward", CostClass::Attention,
     FlopFormula::AttentionBackward},
    {"_flash_attention_backward", CostClass::Attention,
     FlopFormula::AttentionBackward},
    {"_efficient_attention_backward", CostClass::Attention,
     FlopFormula::AttentionBackward},
    // Normalisations.
    {"softmax", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"log_softmax", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"_softmax", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"_safe_softmax", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"_log_softmax", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"_softmax_backward_data", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_log_softmax_backward_data", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"layer_norm", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"native_layer_norm", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"native_layer_norm_backward", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_fused_rms_norm", CostClass::Normalisation, FlopFormula::PerElementMany},
    {"_fused_rms_norm_backward", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"native_group_norm", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"native_group_norm_backward", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"native_batch_norm", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"native_batch_norm_backward", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_native_batch_norm_legit", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_native_batch_norm_legit_functional", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_native_batch_norm_legit_no_training", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"_batch_norm_with_update_functional", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    {"batch_norm_backward", CostClass::Normalisation,
     FlopFormula::PerElementMany},
    // Reductions and scans.
    {"sum", CostClass::Reduction, FlopFormula::PerElement},
    {"mean", CostClass::Reduction, FlopFormula::PerElement},
    {"prod", CostClass::Reduction, FlopFormula::PerElement},
    {"var_mean", CostClass::Reduction, FlopFormula::PerElement},
    {"norm", CostClass::Reduction, FlopFormula::PerElement},
    {"linalg_vector_norm", CostClass::Reduction, FlopFormula::PerElement},
    {"cumsum", CostClass::Reduction, FlopFormula::PerElement},
    {"cumprod", CostClass::Reduction, FlopFormula::PerElement},
    {"logcumsumexp", CostClass::Reduction, FlopFormula::PerElementMany},
    {"histc", CostClass::Reduction, FlopFormula::PerElement},
    {"bincount", CostClass::Reduction, FlopFormula::PerElement},
    {"topk", CostClass::Reduction, FlopFormula::PerElementMany},
    {"sort", CostClass::Reduction, FlopFormula::PerElementMany},
    {"argsort", CostClass::Reduction, FlopFormula::PerElementMany},
    {"nll_loss", CostClass::Reduction},
    {"nll_loss_forward", CostClass::Reduction},
    {"nll_loss2d_forward", CostClass::Reduction},
    {"mse_loss", CostClass::Reduction, FlopFormula::PerElement},
    {"max_pool2d_with_indices", CostClass::Reduction, FlopFormula::PerElement},
    {"avg_pool2d", CostClass::Reduction, FlopFormula::PerElement},
    {"_adaptive_avg_pool2d", CostClass::Reduction, FlopFormula::PerElement},
    // Elementwise without the tag.
    {"addcmul", CostClass::Elementwise, FlopFormula::PerElement},
    {"lerp", CostClass::Elementwise, FlopFormula::PerElement},
    {"where", CostClass::Elementwise},
    {"masked_fill", CostClass::Elementwise},
    {"floor_divide", CostClass::Elementwise, FlopFormula::PerElement},
    {"softplus_backward", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"gelu", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"gelu_backward", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"silu", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"silu_backward", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"tanh", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"sigmoid", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"exp", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"log", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"erf", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"sin", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"cos", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"pow", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"glu", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"glu_backward", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"mse_loss_backward", CostClass::Elementwise, FlopFormula::PerElement},
    {"native_dropout_backward", CostClass::Elementwise,
     FlopFormula::PerElement},
    {"tril", CostClass::Elementwise},
    {"triu", CostClass::Elementwise},
    {"_fused_adam", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"_fused_adamw", CostClass::Elementwise, FlopFormula::PerElementMany},
    {"_fused_sgd", CostClass::Elementwise, FlopFormula::PerElement},
    // Moving elements.
    {"clone", CostClass::Copy},
    {"copy", CostClass::Copy},
    {"_to_copy", CostClass::Copy},
    {"contiguous", CostClass::Copy},
    {"lift_fresh_copy", CostClass::Copy},
    {"cat", CostClass::Copy},
    {"stack", CostClass::Copy},
    {"repeat", CostClass::Copy},
    {"flip", CostClass::Copy},
    {"roll", CostClass::Copy},
    {"constant_pad_nd", CostClass::Copy},
    {"slice_backward", CostClass::Copy},
    {"select_backward", CostClass::Copy},
    {"diagonal_backward", CostClass::Copy},
    {"unfold_backward", CostClass::Copy},
    {"slice_scatter", CostClass::Copy},
    {"select_scatter", CostClass::Copy},
    {"diagonal_scatter", CostClass::Copy},
    {"as_strided_scatter", CostClass::Copy},
    // Writing only.
    {"arange", CostClass::Fill},
    {"linspace", CostClass::Fill},
    {"eye", CostClass::Fill},
    {"fill", CostClass::Fill},
    {"full", CostClass::Fill},
    {"full_like", CostClass::Fill},
    {"new_full", CostClass::Fill},
    {"new_ones", CostClass::Fill},
    {"new_zeros", CostClass::Fill},
    {"ones", CostClass::Fill},
    {"ones_like", CostClass::Fill},
    {"scalar_tensor", CostClass::Fill},
    {"tril_indices", CostClass::Fill},
    {"triu_indices", CostClass::Fill},
    {"zero", CostClass::Fill},
    {"zeros", CostClass::Fill},
    {"zeros_like", CostClass::Fill},
    // Allocations only.
    {"empty", CostClass::Metadata},
    {"empty_like", CostClass::Metadata},
    {"empty_permuted", CostClass::Metadata},
    {"empty_strided", CostClass::Metadata},
    {"new_empty", CostClass::Metadata},
    {"new_empty_strided", CostClass::Metadata},
    // Indexed reads and writes.
    {"embedding", CostClass::Gather},
    {"embedding_dense_backward", CostClass::Gather},
    {"gather", CostClass::Gather},
    {"index", CostClass::Gather},
    {"index_add", CostClass::Gather},
    {"index_copy", CostClass::Gather},
    {"index_fill", CostClass::Gather},
    {"index_put", CostClass::Gather},
    {"index_select", CostClass::Gather},
    {"masked_scatter", CostClass::Gather},
    {"masked_select", CostClass::Gather},
    {"nonzero", CostClass::Gather},
    {"scatter", CostClass::Gather},
    {"scatter_add", CostClass::Gather},
    {"scatter_reduce", CostClass::Gather},
    {"take", CostClass::Gather},
    {"_unsafe_index", CostClass::Gather},
    {"_unsafe_index_put", CostClass::Gather},
    {"nll_loss_backward", CostClass::Gather},
    {"nll_loss2d_backward", CostClass::Gather},
    {"max_pool2d_with_indices_backward", CostClass::Gather},
};

//===----------------------------------------------------------------------===//
// Equivalents
//===----------------------------------------------------------------------===//

namespace {
struct EquivalentRow {
  std::string_view name;
  Equivalent equivalent;
};
} // namespace

// By the whole name of the functional overload.
static constexpr EquivalentRow equivalents[] = {
    {"clone", Equivalent::Copy},
    {"_to_copy", Equivalent::Copy},
    {"contiguous", Equivalent::Copy},
    {"lift_fresh_copy", Equivalent::Copy},
    {"copy", Equivalent::CopySource},
    {"full", Equivalent::Fill},
    {"full_like", Equivalent::Fill},
    {"new_full", Equivalent::Fill},
    {"new_ones", Equivalent::Fill},
    {"new_zeros", Equivalent::Fill},
    {"ones", Equivalent::Fill},
    {"ones_like", Equivalent::Fill},
    {"zeros", Equivalent::Fill},
    {"zeros_like", Equivalent::Fill},
    {"fill.Scalar", Equivalent::Fill},
    {"fill.Tensor", Equivalent::Fill},
    {"scalar_tensor", Equivalent::ScalarTensor},
    {"embedding", Equivalent::Embedding},
    {"slice_backward", Equivalent::SliceBackward},
    {"select_backward", Equivalent::SelectBackward},
    {"slice_scatter", Equivalent::SliceScatter},
    {"select_scatter", Equivalent::SelectScatter},
    {"add.Scalar", Equivalent::TensorScalar},
    {"sub.Scalar", Equivalent::TensorScalar},
    {"mul.Scalar", Equivalent::TensorScalar},
    {"div.Scalar", Equivalent::TensorScalar},
    {"mean", Equivalent::MeanAsSum},
    {"mean.dim", Equivalent::MeanAsSum},
    // aten/src/ATen/native/Pow.cpp copies for 1; native/cpu/PowKernel.cpp and
    // native/cuda/PowKernel.cu multiply for 2.
    {"pow.Tensor_Scalar", Equivalent::Power},
};

namespace {
struct DrawRow {
  std::string_view name, inPlace;
};
} // namespace

static constexpr DrawRow draws[] = {
    {"bernoulli.Tensor", "bernoulli_.Tensor"},
    {"bernoulli.p", "bernoulli_.float"},
    {"cauchy", "cauchy_"},
    {"exponential", "exponential_"},
    {"geometric", "geometric_"},
    {"log_normal", "log_normal_"},
    {"normal_functional", "normal_"},
    {"random", "random_"},
    {"random.from", "random_.from"},
    {"random.to", "random_.to"},
    {"uniform", "uniform_"},
};

// IEEE 754 says what the result is, so neither vectors nor the order of loops
// change it: aten/src/ATen/native/cpu/BinaryOpsKernel.cpp, UnaryOpsKernel.cpp.
static constexpr std::string_view exactOut[] = {
    "abs.out", "add.out", "div.out", "mul.out", "neg.out", "sub.out"};

// aten/src/ATen/native/cpu/Activation.cpp.
static constexpr std::string_view oneDNN[] = {"gelu", "gelu_backward"};

//===----------------------------------------------------------------------===//
// Putting it together
//===----------------------------------------------------------------------===//

template <typename Table>
static bool contains(const Table &table, std::string_view name) {
  return std::find(std::begin(table), std::end(table), name) != std::end(table);
}

std::string_view fsdp::operators::getBaseName(std::string_view name) {
  std::string_view base = name.substr(0, name.find('.'));
  bool isMagic = base.substr(0, 2) == "__";
  if (!isMagic && base.size() > 1 && base.back() == '_')
    base.remove_suffix(1);
  return base;
}

static CostRow getCost(const OpFacts &facts, uint16_t familyTags) {
  std::string_view base = getBaseName(facts.name);
  if (facts.isView)
    return {base, CostClass::Metadata};
  for (const CostRow &row : costs)
    if (row.base == base)
      return row;
  if (facts.isRandom)
    return {base, CostClass::Random, FlopFormula::PerElementMany};
  if (facts.numReturns == 0 && !facts.isMutating())
    return {base, CostClass::Metadata};
  if (facts.hasTag(TagViewCopy))
    return {base, CostClass::Copy};
  // `max` is a reduction as max.dim and pointwise as max.other: an overload's
  // own tag is better than that of its family.
  for (uint16_t tags : {facts.tags, familyTags}) {
    if (tags & TagReduction)
      return {base, CostClass::Reduction, FlopFormula::PerElement};
    if (tags & TagPointwise)
      return {base, CostClass::Elementwise, FlopFormula::PerElement};
  }
  return {base, CostClass::Opaque};
}

void fsdp::operators::addManualFacts(OpFacts &facts, uint16_t familyTags) {
  std::string_view packet = facts.name.substr(0, facts.name.find('.'));
  if (contains(hiddenViews, facts.name)) {
    facts.isView = true;
    facts.aliasedArgs = 1;
  } else if (contains(falseViews, packet)) {
    facts.isView = false;
  }

  if (contains(resizingOut, facts.name))
    facts.outKernelCPU = facts.outKernelCUDA = OutKernel::Generated;

  CostRow cost = getCost(facts, familyTags);
  facts.cost = cost.cost;
  facts.flops = cost.flops;
  facts.safety = computeSafety(facts);
  for (const HiddenWrite &row : hiddenWrites)
    if (row.packet == packet) {
      facts.mutatedArgs |= row.arguments;
      facts.safety = Safety::Never;
    }
  facts.isCheapToRecompute =
      facts.isPure() &&
      (cost.cost == CostClass::Metadata || cost.cost == CostClass::Copy ||
       cost.cost == CostClass::Fill || cost.cost == CostClass::Elementwise ||
       cost.cost == CostClass::Reduction ||
       cost.cost == CostClass::Normalisation);
  facts.isExact = contains(exactOut, facts.name);
  facts.keepsStrides = ((facts.tags | familyTags) & TagPointwise) &&
                       !facts.hasTag(TagReduction) &&
                       !contains(oneDNN, getBaseName(facts.name));
  for (const EquivalentRow &row : equivalents)
    if (row.name == facts.name)
      facts.equivalent = row.equivalent;
  for (const DrawRow &row : draws)
    if (row.name == facts.name) {
      facts.equivalent = Equivalent::Draw;
      facts.drawOverload = row.inPlace;
    }
}
