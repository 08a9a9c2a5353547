//===- Guard.cpp - What kernels rely on and do not check ------------------===//
#include "Guard.h"

#include "GuardedCall.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

using namespace fsdp;
using Sizes = c10::IntArrayRef;

using Call = GuardedCall;

//===----------------------------------------------------------------------===//
// Rules
//===----------------------------------------------------------------------===//

/// Kernels rely on it that no two elements of what they write are one.
static void rejectOverlap(const std::string &name, const c10::IValue &value) {
  if (value.isTensorList())
    for (const at::Tensor &tensor : value.toTensorVector())
      rejectOverlap(name, tensor);
  if (!value.isTensor() || !value.toTensor().defined() ||
      value.toTensor().is_contiguous())
    return;
  const at::Tensor &tensor = value.toTensor();
  std::vector<std::pair<std::int64_t, std::int64_t>> dims; // stride, size
  for (std::int64_t d = 0; d != tensor.dim(); ++d)
    if (tensor.size(d) > 1)
      dims.emplace_back(tensor.stride(d), tensor.size(d));
  std::ranges::sort(dims);
  std::int64_t last = 0; // element of those with smaller strides
  for (auto [stride, size] : dims) {
    if (stride <= last)
      Call::fail(name, "elements apart from each other",
                 "strides " + Call::spell(tensor.strides()) + " of sizes " +
                     Call::spell(tensor.sizes()));
    last += (size - 1) * stride;
  }
}

/// The product of the last `count` sizes.
static std::int64_t plane(Sizes sizes, std::size_t count) {
  return c10::multiply_integers(sizes.slice(sizes.size() - count));
}

/// Pooling over the last `spatial` dimensions, that keeps those before.
template <unsigned spatial> static void poolBackward(const Call &call) {
  call.expectDims("self", spatial + 1, spatial + 2);
  Sizes self = call.tensor("self").sizes();
  call.expectDims("grad_output", call.tensor("self").dim(),
                  call.tensor("self").dim());
  Sizes grad = call.tensor("grad_output").sizes();
  std::size_t kept = self.size() - spatial;
  call.expect(grad.slice(0, kept) == self.slice(0, kept), "grad_output",
              "sizes that begin with " + Call::spell(self.slice(0, kept)),
              Call::spell(grad));
  call.expect(c10::multiply_integers(self) != 0, "self", "elements", "none");
}

/// Each place of the result says which place of its plane it comes from.
template <unsigned spatial> static void maxPoolBackward(const Call &call) {
  poolBackward<spatial>(call);
  call.expectSame("indices", "grad_output");
  call.limit("indices", 0, plane(call.tensor("self").sizes(), spatial) - 1);
}

/// Takes all as they lie in memory.
static void adaptiveMaxPool3dBackward(const Call &call) {
  maxPoolBackward<3>(call);
  call.expectContiguous("grad_output");
  call.expectContiguous("indices");
}

/// Kernels pad what they read in memory of their own.
static void convolution(const Call &call) {
  Sizes input = call.tensor("input").sizes();
  std::vector<std::int64_t> padding = call.integers("padding");
  double padded = 1;
  for (std::size_t d = 0; d != input.size(); ++d) {
    double before = 0;
    if (d >= 2 && !padding.empty())
      before = double(padding[std::min(d - 2, padding.size() - 1)]);
    padded *= double(input[d]) + 2 * before;
  }
  double most = 0x1p26 + 16 * double(call.tensor("input").numel());
  call.expect(padded <= most, "padding",
              "one that makes at most " + std::to_string(std::int64_t(most)) +
                  " elements",
              Call::spell(Sizes(padding)));
}

/// oneDNN knows no strides of 0.
static void gelu(const Call &call) {
  rejectOverlap("self", call.tensor("self"));
  if (!call.has("grad_output"))
    return;
  rejectOverlap("grad_output", call.tensor("grad_output"));
  call.expectSame("grad_output", "self");
}

static void softmaxBackward(const Call &call) {
  call.expectSame("output", "grad_output");
  call.dimension(call.integer("dim"), call.tensor("output").dim());
}

/// Leading dimensions, that are normalised each by themselves, and the others.
static std::int64_t expectNormalized(const Call &call) {
  Sizes input = call.tensor("input").sizes();
  std::vector<std::int64_t> shape = call.integers("normalized_shape");
  call.expect(!shape.empty() && shape.size() <= input.size() &&
                  input.slice(input.size() - shape.size()) == Sizes(shape),
              "normalized_shape", "the last sizes of " + Call::spell(input),
              Call::spell(Sizes(shape)));
  for (const char *name : {"weight", "bias"})
    if (call.has(name))
      call.expectSizes(name, shape);
  return c10::multiply_integers(input.slice(0, input.size() - shape.size()));
}

static void normalized(const Call &call) { expectNormalized(call); }

static void normalizedBackward(const Call &call) {
  std::int64_t rows = expectNormalized(call);
  call.expectSame("grad_out", "input");
  for (const char *name : {"mean", "rstd"})
    if (call.has(name)) {
      call.expectNumel(name, rows);
      call.expectContiguous(name);
    }
}

static void groupNorm(const Call &call) {
  call.expectDims("input", 2, 64);
  Sizes input = call.tensor("input").sizes();
  std::int64_t channels = call.integer("C"), groups = call.integer("group");
  call.expect(call.integer("N") == input[0] && channels == input[1] &&
                  call.integer("HxW") == c10::multiply_integers(input.slice(2)),
              "N, C, HxW", "those of " + Call::spell(input), "others");
  call.expect(groups > 0 && channels % groups == 0, "group",
              "a divisor of " + std::to_string(channels),
              std::to_string(groups));
  for (const char *name : {"weight", "bias"})
    if (call.has(name)) {
      call.expectSizes(name, channels);
      call.expectContiguous(name);
    }
}

static void groupNormBackward(const Call &call) {
  groupNorm(call);
  call.expectSame("grad_out", "input");
  for (const char *name : {"mean", "rstd"}) {
    call.expectNumel(name, call.integer("N") * call.integer("group"));
    call.expectContiguous(name);
  }
  // The forward asks for it itself.
  at::MemoryFormat format = call.tensor("input").suggest_memory_format();
  for (const char *name : {"input", "grad_out"})
    call.expect(call.tensor(name).is_contiguous(format), name,
                "contiguous elements, of one memory format",
                "strides " + Call::spell(call.tensor(name).strides()));
}

static void batchNorm(const Call &call) {
  call.expectDims("input", 2, 64);
  for (const char *name : {"weight", "bias", "running_mean", "running_var"})
    if (call.has(name)) {
      call.expectSizes(name, call.tensor("input").size(1));
      call.expectContiguous(name);
    }
}

static void batchNormForward(const Call &call) {
  batchNorm(call);
  // Evaluation takes the place of the batch's own by them.
  if (call.has("training") && !call.value("training").toBool())
    for (const char *name : {"running_mean", "running_var"})
      call.tensor(name);
}

static void batchNormBackward(const Call &call) {
  batchNorm(call);
  call.expectSame("grad_out", "input");
  bool trains = call.value(call.has("train") ? "train" : "update").toBool();
  // What evaluation does not save is empty.
  for (const char *name : {"save_mean", "save_invstd", "save_var"})
    if (call.has(name) && (trains || call.tensor(name).numel() != 0)) {
      call.expectSizes(name, call.tensor("input").size(1));
      call.expectContiguous(name);
    }
  const char *variance = call.has("save_invstd") ? "save_invstd" : "save_var";
  for (const char *name : {trains ? "save_mean" : "running_mean",
                           trains ? variance : "running_var"})
    call.expectNumel(name, call.tensor("input").size(1));
}

static void expectAttention(const Call &call) {
  for (const char *name : {"query", "key", "value"}) {
    call.expectDims(name, 4, 4);
    call.expectRows(name);
  }
  Sizes query = call.tensor("query").sizes(), key = call.tensor("key").sizes();
  Sizes value = call.tensor("value").sizes();
  // Blocks of them divide the work.
  call.expect(c10::multiply_integers(query) != 0 &&
                  c10::multiply_integers(key) != 0,
              "query, key", "elements", "none");
  call.expect(key[0] == query[0] && key[3] == query[3] && key[1] != 0 &&
                  query[1] % key[1] == 0,
              "key", "sizes that fit " + Call::spell(query), Call::spell(key));
  call.expect(value.slice(0, 3) == key.slice(0, 3), "value",
              "sizes that fit " + Call::spell(key), Call::spell(value));
  const char *name = call.has("attn_mask") ? "attn_mask" : "attn_bias";
  if (!call.has(name))
    return;
  call.expectDims(name, 2, 4);
  Sizes mask = call.tensor(name).sizes();
  const std::int64_t full[] = {query[0], query[1], query[2], key[2]};
  for (std::size_t d = 0; d != mask.size(); ++d)
    call.expect(mask[mask.size() - 1 - d] == 1 ||
                    mask[mask.size() - 1 - d] == full[3 - d],
                name, "sizes that expand to " + Call::spell(Sizes(full)),
                Call::spell(mask));
}

static void attention(const Call &call) { expectAttention(call); }

static void attentionBackward(const Call &call) {
  expectAttention(call);
  Sizes query = call.tensor("query").sizes();
  std::vector<std::int64_t> result(query.begin(), query.end());
  result[3] = call.tensor("value").size(3);
  const char *grad = call.has("grad_out") ? "grad_out" : "grad_out_";
  for (const char *name : {grad, "out"}) {
    call.expectSizes(name, result);
    call.expectRows(name);
  }
  call.expectDims("logsumexp", 3, 4);
  Sizes sums = call.tensor("logsumexp").sizes();
  call.expect(sums[0] == query[0] && sums[1] == query[1] && sums[2] >= query[2],
              "logsumexp", "the first sizes of " + Call::spell(query),
              Call::spell(sums));
}

/// Kernels divide by the stride of the dimension along which they join.
static void join(const Call &call) {
  if (!call.has("out") || call.tensor("out").dim() == 0)
    return;
  const at::Tensor &out = call.tensor("out");
  std::int64_t dim = call.dimension(call.integer("dim"), out.dim());
  call.expect(out.stride(dim) > 0, "out", "a stride of at least 1",
              std::to_string(out.stride(dim)));
}

/// Dimensions of a transform: each once.
static void transform(const Call &call) {
  std::int64_t dims = call.tensor("self").dim();
  std::vector<bool> seen(static_cast<std::size_t>(dims));
  std::vector<std::int64_t> over = call.integers("dim");
  call.expect(!over.empty(), "dim", "at least one", "none");
  for (std::int64_t dim : over) {
    auto d = static_cast<std::size_t>(call.dimension(dim, dims));
    call.expect(!seen[d], "dim", "each once", Call::spell(Sizes(over)));
    seen[d] = true;
  }
  std::int64_t scale = call.integer("normalization");
  call.expect(scale >= 0 && scale <= 2, "normalization", "0 to 2",
              std::to_string(scale));
  if (!call.has("last_dim_size"))
    return;
  std::int64_t last = call.integer("last_dim_size"),
               half = call.tensor("self").size(over.back());
  call.expect(last > 0 && last / 2 + 1 == half, "last_dim_size",
              "one that " + std::to_string(half) + " values make",
              std::to_string(last));
}

/// Whoever passes a scale has made the sizes with it.
static void upsample(const Call &call) {
  std::vector<std::int64_t> out = call.integers("output_size");
  Sizes in;
  std::vector<std::int64_t> given;
  if (call.has("input_size")) {
    given = call.integers("input_size");
    in = given;
  } else {
    in = call.tensor("self").sizes();
  }
  call.expect(in.size() == out.size() + 2, "output_size",
              std::to_string(in.size()) + " - 2 sizes",
              std::to_string(out.size()));
  in = in.slice(2);
  auto fits = [&](std::string_view name, std::size_t d) {
    if (!call.has(name))
      return;
    double scale = call.value(name).toDouble();
    double product = static_cast<double>(in[d]) * scale;
    call.expect(scale > 0 && std::abs(product - double(out[d])) <= 1,
                std::string(name),
                "the scale from " + std::to_string(in[d]) + " to " +
                    std::to_string(out[d]),
                std::to_string(scale));
  };
  static constexpr std::string_view names[] = {"scales_d", "scales_h",
                                               "scales_w"};
  if (out.size() == 1)
    fits("scales", 0);
  for (std::size_t d = 0; d != out.size(); ++d)
    fits(names[3 - out.size() + d], d);
}

/// The gradient of one loss, or of one for each target.
static void nllLossBackward(const Call &call) {
  if (call.integer("reduction") == 0)
    call.expectSame("grad_output", "target");
  else
    call.expectNumel("grad_output", 1);
  call.expectNumel("total_weight", 1);
  call.expectDims("self", 1, 4);
  const at::Tensor &self = call.tensor("self");
  std::int64_t classes = self.size(self.dim() == 1 ? 0 : 1);
  call.limit("target", 0, classes - 1, call.integer("ignore_index"));
  if (call.has("weight")) {
    call.expectSizes("weight", classes);
    call.expectContiguous("weight");
  }
}

/// Selects as if each element had a place of its own.
static void median(const Call &call) {
  rejectOverlap("self", call.tensor("self"));
}

static void embeddingBackward(const Call &call) {
  call.limit("indices", 0, call.integer("num_weights") - 1);
}

/// A norm for each index of one dimension; kernels read all from end to end.
static void expectNorms(const Call &call, const char *vectors,
                        std::initializer_list<const char *> norms) {
  const at::Tensor &v = call.tensor(vectors);
  call.expectDims(vectors, 1, 64);
  call.expectContiguous(vectors);
  auto dim = call.dimension(call.integer("dim"), v.dim());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(v.dim()), 1);
  sizes[static_cast<std::size_t>(dim)] = v.size(dim);
  for (const char *name : norms) {
    call.expectSizes(name, sizes);
    call.expectContiguous(name);
  }
}

static void weightNorm(const Call &call) { expectNorms(call, "v", {"g"}); }

static void weightNormBackward(const Call &call) {
  expectNorms(call, "saved_v", {"saved_g", "saved_norms"});
  call.expectSame("grad_w", "saved_v");
  call.expectContiguous("grad_w");
}

static void cdistBackward(const Call &call) {
  call.expectSame("grad", "cdist");
  Sizes x1 = call.tensor("x1").sizes(), x2 = call.tensor("x2").sizes();
  Sizes grad = call.tensor("grad").sizes();
  std::size_t dims = grad.size();
  call.expect(dims >= 2 && x1.size() == dims && x2.size() == dims &&
                  x1[dims - 1] == x2[dims - 1] &&
                  x1.slice(0, dims - 1) == grad.slice(0, dims - 1) &&
                  x2[dims - 2] == grad[dims - 1] &&
                  x2.slice(0, dims - 2) == grad.slice(0, dims - 2),
              "grad",
              "a distance from each row of " + Call::spell(x1) +
                  " to each of " + Call::spell(x2),
              Call::spell(grad));
}

static void gridBackward(const Call &call) {
  Sizes input = call.tensor("input").sizes(),
        grid = call.tensor("grid").sizes();
  std::vector<std::int64_t> result(grid.begin(), grid.end());
  call.expect(
      input.size() == grid.size() && input.size() >= 4 && input[0] == grid[0],
      "grid", "sizes that fit " + Call::spell(input), Call::spell(grid));
  result.pop_back();
  result.insert(result.begin() + 1, input[1]);
  call.expectSizes("grad_output", result);
}

/// Row exchanges count from 1.
static void pivots(const Call &call) {
  call.expectDims("LU", 2, 64);
  Sizes lu = call.tensor("LU").sizes();
  call.expectSizes("pivots", lu.slice(0, lu.size() - 1));
  call.limit("pivots", 1, lu.back());
}

static void ctcLoss(const Call &call) {
  call.expectDims("log_probs", 3, 3);
  call.expectDims("targets", 1, 2);
  Sizes probs = call.tensor("log_probs").sizes();
  const at::Tensor &targets = call.tensor("targets");
  std::vector<std::int64_t> inputs = call.integers("input_lengths");
  std::vector<std::int64_t> lengths = call.integers("target_lengths");
  call.expect(!lengths.empty() && inputs.size() == lengths.size() &&
                  probs[1] == static_cast<std::int64_t>(lengths.size()),
              "target_lengths", std::to_string(probs[1]) + " lengths",
              std::to_string(lengths.size()));
  std::int64_t longest = targets.dim() == 2 ? targets.size(1) : 0, sum = 0;
  for (std::size_t i = 0; i != lengths.size(); ++i) {
    call.expect(inputs[i] > 0 && inputs[i] <= probs[0], "input_lengths",
                "1 to " + std::to_string(probs[0]), std::to_string(inputs[i]));
    std::int64_t room =
        targets.dim() == 2 ? targets.size(1) : targets.size(0) - sum;
    call.expect(lengths[i] >= 0 && lengths[i] <= room, "target_lengths",
                "at most " + std::to_string(room), std::to_string(lengths[i]));
    sum += lengths[i];
    longest = std::max(longest, lengths[i]);
  }
  call.expect(
      targets.dim() == 1 ? sum == targets.size(0) : targets.size(0) == probs[1],
      "targets", "those of each sequence", Call::spell(targets.sizes()));
  std::int64_t blank = call.integer("blank");
  call.expect(blank >= 0 && blank < probs[2], "blank",
              "0 to " + std::to_string(probs[2] - 1), std::to_string(blank));
  call.limit("targets", 0, probs[2] - 1);
  if (!call.has("log_alpha"))
    return;
  call.expectSizes("log_alpha", {probs[1], probs[0], 2 * longest + 1});
  call.expectSizes("neg_log_likelihood", probs[1]);
  call.expectSizes("grad", probs[1]);
}

/// What was padded at the ends of the last dimensions.
template <unsigned spatial> static void padBackward(const Call &call) {
  call.expectDims("self", spatial + 1, spatial + 2);
  std::vector<std::int64_t> padding = call.integers("padding");
  call.expect(padding.size() == 2 * spatial, "padding",
              std::to_string(2 * spatial) + " numbers",
              std::to_string(padding.size()));
  std::vector<std::int64_t> padded = call.tensor("self").sizes().vec();
  for (std::size_t d = 0; d != spatial; ++d) {
    std::int64_t before = padding[2 * d], after = padding[2 * d + 1];
    std::int64_t &size = padded[padded.size() - 1 - d];
    std::int64_t most = std::int64_t{1} << 40;
    call.expect(before > -most && before < most && after > -most &&
                    after < most && size > 0,
                "padding", "one of elements", Call::spell(Sizes(padding)));
    size += before + after;
  }
  call.expectSizes("grad_output", padded);
}

/// The number of elements is a quotient.
static void arange(const Call &call) {
  for (const char *name : {"start", "end", "step"}) {
    if (!call.has(name))
      continue;
    double number = call.value(name).toScalar().toDouble();
    call.expect(std::abs(number) < 0x1p53, name, "a number below 2^53",
                std::to_string(number));
    call.expect(std::string_view(name) != "step" || std::abs(number) >= 1 ||
                    !call.isInteger(),
                name, "an integer other than 0", std::to_string(number));
  }
}

/// The kernel rounds up by shifting until nothing is left, which fails for -1.
static void randomFrom(const Call &call) {
  constexpr std::int64_t greatest = std::numeric_limits<std::int64_t>::max();
  if (call.has("from"))
    call.expect(call.integer("from") != greatest, "from",
                "a number below 2^63 - 1", std::to_string(greatest));
}

/// Quotients of integers trap for 0, and for the least number by -1.
static void division(const Call &call) {
  auto operand = [&](std::string_view name) -> at::Tensor {
    const c10::IValue &value = call.value(name);
    if (value.isTensor())
      return value.toTensor();
    return value.isScalar()
               ? at::scalar_tensor(value.toScalar(),
                                   at::dtype(value.toScalar().type()))
               : at::Tensor();
  };
  at::Tensor self = operand("self"), other = operand("other");
  auto isInteger = [](const at::Tensor &tensor) {
    return tensor.defined() &&
           at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  };
  if (isInteger(self) && isInteger(other) && self.is_cpu())
    call.divide(self, other);
}

/// Divides by the greatest common divisor, which is -1 for some numbers beside
/// the least one.
static void leastCommonMultiple(const Call &call) {
  const at::Tensor &self = call.tensor("self");
  if (self.scalar_type() == at::kInt)
    call.limit("self", -std::numeric_limits<std::int32_t>::max(),
               std::numeric_limits<std::int32_t>::max());
  if (self.scalar_type() == at::kLong)
    call.limit("self", -std::numeric_limits<std::int64_t>::max(),
               std::numeric_limits<std::int64_t>::max());
}

static void roundedDivision(const Call &call) {
  if (call.has("rounding_mode"))
    division(call);
}

namespace {
struct Row {
  std::string_view base;
  void (*rule)(const Call &);
};
} // namespace

static constexpr Row rules[] = {
    {"_adaptive_avg_pool2d_backward", poolBackward<2>},
    {"_adaptive_avg_pool3d_backward", poolBackward<3>},
    {"_batch_norm_with_update", batchNormForward},
    {"_batch_norm_with_update_functional", batchNormForward},
    {"_cdist_backward", cdistBackward},
    {"_ctc_loss", ctcLoss},
    {"_ctc_loss_backward", ctcLoss},
    {"_fft_c2c", transform},
    {"_fft_c2r", transform},
    {"_fft_r2c", transform},
    {"_fused_rms_norm", normalized},
    {"_fused_rms_norm_backward", normalizedBackward},
    {"_log_softmax_backward_data", softmaxBackward},
    {"_native_batch_norm_legit", batchNormForward},
    {"_native_batch_norm_legit_functional", batchNormForward},
    {"_native_batch_norm_legit_no_training", batchNormForward},
    {"_scaled_dot_product_cudnn_attention", attention},
    {"_scaled_dot_product_cudnn_attention_backward", attentionBackward},
    {"_scaled_dot_product_efficient_attention", attention},
    {"_scaled_dot_product_efficient_attention_backward", attentionBackward},
    {"_scaled_dot_product_flash_attention", attention},
    {"_scaled_dot_product_flash_attention_backward", attentionBackward},
    {"_scaled_dot_product_flash_attention_for_cpu", attention},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", attentionBackward},
    {"_softmax_backward_data", softmaxBackward},
    {"_upsample_bicubic2d_aa", upsample},
    {"_upsample_bicubic2d_aa_backward", upsample},
    {"_upsample_bilinear2d_aa", upsample},
    {"_upsample_bilinear2d_aa_backward", upsample},
    {"_upsample_nearest_exact1d", upsample},
    {"_upsample_nearest_exact1d_backward", upsample},
    {"_upsample_nearest_exact2d", upsample},
    {"_upsample_nearest_exact2d_backward", upsample},
    {"_upsample_nearest_exact3d", upsample},
    {"_upsample_nearest_exact3d_backward", upsample},
    {"_weight_norm_interface", weightNorm},
    {"_weight_norm_interface_backward", weightNormBackward},
    {"adaptive_max_pool2d_backward", maxPoolBackward<2>},
    {"adaptive_max_pool3d_backward", adaptiveMaxPool3dBackward},
    {"arange", arange},
    {"batch_norm_backward", batchNormBackward},
    {"cat", join},
    {"convolution", convolution},
    {"convolution_backward", convolution},
    {"div", roundedDivision},
    {"embedding_dense_backward", embeddingBackward},
    {"floor_divide", division},
    {"fmod", division},
    {"fractional_max_pool2d_backward", maxPoolBackward<2>},
    {"fractional_max_pool3d_backward", maxPoolBackward<3>},
    {"gelu", gelu},
    {"gelu_backward", gelu},
    {"grid_sampler_2d_backward", gridBackward},
    {"grid_sampler_3d_backward", gridBackward},
    {"lcm", leastCommonMultiple},
    {"linalg_lu_solve", pivots},
    {"max_pool2d_with_indices_backward", maxPoolBackward<2>},
    {"max_pool3d_with_indices_backward", maxPoolBackward<3>},
    {"median", median},
    {"native_batch_norm", batchNormForward},
    {"native_batch_norm_backward", batchNormBackward},
    {"native_group_norm", groupNorm},
    {"native_group_norm_backward", groupNormBackward},
    {"native_layer_norm", normalized},
    {"native_layer_norm_backward", normalizedBackward},
    {"nll_loss2d_backward", nllLossBackward},
    {"nll_loss_backward", nllLossBackward},
    {"random", randomFrom},
    {"reflection_pad1d_backward", padBackward<1>},
    {"reflection_pad2d_backward", padBackward<2>},
    {"reflection_pad3d_backward", padBackward<3>},
    {"remainder", division},
    {"replication_pad1d_backward", padBackward<1>},
    {"replication_pad2d_backward", padBackward<2>},
    {"replication_pad3d_backward", padBackward<3>},
    {"stack", join},
    {"upsample_bicubic2d", upsample},
    {"upsample_bicubic2d_backward", upsample},
    {"upsample_bilinear2d", upsample},
    {"upsample_bilinear2d_backward", upsample},
    {"upsample_linear1d", upsample},
    {"upsample_linear1d_backward", upsample},
    {"upsample_nearest1d", upsample},
    {"upsample_nearest1d_backward", upsample},
    {"upsample_nearest2d", upsample},
    {"upsample_nearest2d_backward", upsample},
    {"upsample_nearest3d", upsample},
    {"upsample_nearest3d_backward", upsample},
    {"upsample_trilinear3d", upsample},
    {"upsample_trilinear3d_backward", upsample},
};

static const Row *findRule(std::string_view base) {
  const Row *row = std::ranges::find(rules, base, &Row::base);
  return row == std::end(rules) ? nullptr : row;
}

bool Guard::hasRule(std::string_view base) { return findRule(base) != nullptr; }

Guard::Guard(const c10::FunctionSchema &schema,
             const std::vector<c10::IValue> &arguments) {
  for (std::size_t i = 0; i != arguments.size(); ++i) {
    const c10::AliasInfo *alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite())
      rejectOverlap(schema.arguments()[i].name(), arguments[i]);
  }
  constexpr std::string_view aten = "aten::";
  std::string_view base = schema.name();
  if (!base.starts_with(aten))
    return;
  base.remove_prefix(aten.size());
  if (base.ends_with('_'))
    base.remove_suffix(1);
  if (const Row *row = findRule(base))
    row->rule(Call(schema, arguments, *this));
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

namespace {
struct Extremes {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t greatest = std::numeric_limits<std::int64_t>::min();
  bool hasZero = false, hasMinusOne = false;
  std::optional<std::int64_t> except; ///< Not counted.
};
} // namespace

template <typename T>
static void see(const T *data, Sizes sizes, Sizes strides, Extremes &found) {
  if (sizes.size() > 1) {
    for (std::int64_t i = 0; i != sizes[0]; ++i)
      see(data + i * strides[0], sizes.slice(1), strides.slice(1), found);
    return;
  }
  for (std::int64_t i = 0; i != sizes[0]; ++i) {
    auto value = static_cast<std::int64_t>(data[i * strides[0]]);
    if (found.except == value)
      continue;
    found.least = std::min(found.least, value);
    found.greatest = std::max(found.greatest, value);
    found.hasZero |= value == 0;
    found.hasMinusOne |= value == -1;
  }
}

/// Of a tensor of integers in host memory.
static Extremes extremesOf(const at::Tensor &tensor,
                           std::optional<std::int64_t> except = {}) {
  Extremes found;
  found.except = except;
  AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, tensor.scalar_type(), "guard", [&] {
    // Compilers do not agree on the name of const_data_ptr<scalar_t>.
    const auto *data = static_cast<const scalar_t *>(tensor.const_data_ptr());
    // In memory's order where that has no gaps.
    const std::int64_t one = 1, all = tensor.numel();
    if (tensor.is_non_overlapping_and_dense())
      see(data, Sizes(all), Sizes(one), found);
    else
      see(data, tensor.sizes(), tensor.strides(), found);
  });
  return found;
}

void Guard::checkElements() const {
  for (const Range &range : ranges) {
    if (!range.tensor.is_cpu()) {
      // Fails on the device, in the stream's order, before the kernel runs.
      at::Tensor fits =
          range.tensor.ge(range.low).logical_and(range.tensor.le(range.high));
      if (range.except)
        fits = fits.logical_or(range.tensor.eq(*range.except));
      at::_assert_async(fits.all());
      continue;
    }
    Extremes found = extremesOf(range.tensor, range.except);
    if (found.least > found.greatest) // none counted
      continue;
    for (std::int64_t value : {found.least, found.greatest})
      if (value < range.low || value > range.high)
        Call::fail(range.name,
                   "elements from " + std::to_string(range.low) + " to " +
                       std::to_string(range.high),
                   std::to_string(value));
  }
  if (!divides)
    return;
  Extremes by = extremesOf(divisor);
  if (by.hasZero)
    Call::fail("other", "integers to divide by", "0");
  if (!by.hasMinusOne)
    return;
  std::int64_t least = extremesOf(dividend).least;
  if (least == std::numeric_limits<std::int32_t>::min() ||
      least == std::numeric_limits<std::int64_t>::min())
    Call::fail("self", "integers that -1 divides", std::to_string(least));
}
