//===- OpSafety.cpp - What a plan from a stranger may run -----------------===//
//
// A plan is untrusted. It may run operators that read and write the tensors
// they are given, and nothing else: no file, no state of the process, no
// storage tricks. Operators whose names begin with an underscore are PyTorch's
// own business and often trust their arguments: those need a line here. This
// rests on the checks that the remaining kernels make of their arguments.
//
//===----------------------------------------------------------------------===//

#include "OpFactsManual.h"

#include <algorithm>

using namespace fsdp::archive;

// Internal operators that exported graphs contain or lowering uses.
static constexpr std::string_view allowedInternal[] = {
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward",
    "_addmm_activation",
    "_assert_tensor_metadata",
    "_batch_norm_with_update_functional",
    "_conj_physical",
    "_fused_adam",
    "_fused_adamw",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_fused_sgd",
    "_grouped_mm",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_prelu_kernel",
    "_prelu_kernel_backward",
    "_reshape_copy",
    "_safe_softmax",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_mm",
    "_softmax",
    "_softmax_backward_data",
    "_stack",
    "_to_copy",
    "_unsafe_index",
    "_unsafe_index_put",
    "_unsafe_view",
};

static constexpr std::string_view allowedInternalPrefixes[] = {
    "_fft_", "_foreach_", "_upsample_"};

// Files, the process, hooks, storages and their sizes, tensors of other kinds.
static constexpr std::string_view forbidden[] = {
    "align_as",
    "align_tensors",
    "align_to",
    "as_strided",
    "as_strided_copy",
    "as_strided_scatter",
    "ccol_indices",
    "ccol_indices_copy",
    "choose_qparams_optimized",
    "coalesce",
    "col_indices",
    "col_indices_copy",
    "crow_indices",
    "crow_indices_copy",
    "data",
    "dequantize",
    "from_file",
    "hspmm",
    "indices",
    "indices_copy",
    "int_repr",
    "pin_memory",
    "record_stream",
    "refine_names",
    "rename",
    "requires_grad",
    "retain_grad",
    "row_indices",
    "row_indices_copy",
    "segment_reduce",
    "slice_inverse",
    "smm",
    "sspaddmm",
    "to_padded_tensor",
    "to_dense",
    "to_dense_backward",
    "to_mkldnn",
    "to_mkldnn_backward",
    "values",
    "values_copy",
};

static constexpr std::string_view forbiddenPrefixes[] = {
    "__",       "copy_sparse", "empty_quantized", "fbgemm_",
    "lstm_mps", "miopen_",     "mkldnn_",         "mps_",
    "nested_",  "q_",          "quantize_",       "quantized_",
    "resize",   "set",         "sparse_",         "to_sparse"};

template <typename Table>
static bool contains(const Table &table, std::string_view name) {
  return std::find(std::begin(table), std::end(table), name) != std::end(table);
}

template <typename Table>
static bool hasPrefix(const Table &table, std::string_view name) {
  return std::any_of(std::begin(table), std::end(table),
                     [&](std::string_view prefix) {
                       return name.substr(0, prefix.size()) == prefix;
                     });
}

/// Draws random numbers only if a dropout probability is not 0.
static bool isAttention(const OpFacts &facts) {
  return facts.cost == CostClass::Attention;
}

bool fsdp::archive::computeSafeInPlan(const OpFacts &facts) {
  std::string_view base = getBaseName(facts.name);
  if (facts.hasForeignType || facts.hasTag(TagInplaceView))
    return false;
  // The default generator is shared by the whole process.
  if (facts.isRandom && !facts.takesGenerator && !isAttention(facts))
    return false;
  // Named dimensions.
  std::string_view overload =
      facts.name.substr(std::min(facts.name.size(), facts.name.find('.')));
  if (overload.find("name") != std::string_view::npos ||
      overload.find("Dimname") != std::string_view::npos)
    return false;
  if (base.front() == '_' && base.substr(0, 2) != "__")
    return contains(allowedInternal, base) ||
           hasPrefix(allowedInternalPrefixes, base);
  return !contains(forbidden, base) && !hasPrefix(forbiddenPrefixes, base);
}
