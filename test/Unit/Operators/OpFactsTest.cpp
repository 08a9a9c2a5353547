//===- OpFactsTest.cpp ----------------------------------------------------===//

#include "fsdp/Operators/OpFacts.h"

#include <gtest/gtest.h>

#include <string>

using namespace fsdp::operators;

static const OpFacts &get(std::string_view name) {
  const OpFacts *facts = lookupOpFacts(name);
  if (!facts) {
    ADD_FAILURE() << "no facts of " << name;
    static const OpFacts none{};
    return none;
  }
  return *facts;
}

TEST(OpFacts, TableIsSortedAndFound) {
  EXPECT_GE(getAllOpFacts().size(), 2700u);
  std::string_view last;
  for (const OpFacts &facts : getAllOpFacts()) {
    EXPECT_LT(last, facts.name);
    last = facts.name;
    EXPECT_EQ(lookupOpFacts(facts.name), &facts);
    EXPECT_EQ(facts.schema.rfind("aten::" + std::string(facts.name) + "(", 0),
              0u);
  }
}

TEST(OpFacts, UnknownIsNull) {
  EXPECT_EQ(lookupOpFacts(""), nullptr);
  EXPECT_EQ(lookupOpFacts("mm.default"), nullptr);
  EXPECT_EQ(lookupOpFacts("zzz"), nullptr);
  EXPECT_EQ(lookupOpFacts("mylib::op"), nullptr);
}

TEST(OpFacts, Schema) {
  EXPECT_EQ(get("mm").schema, "aten::mm(Tensor self, Tensor mat2) -> Tensor");
  EXPECT_EQ(get("topk").numArgs, 5);
  EXPECT_EQ(get("topk").numReturns, 2);
  EXPECT_TRUE(get("split.Tensor").returnsList);
  EXPECT_FALSE(get("mm").returnsList);
}

// Sharding relies on this.
TEST(OpFacts, Views) {
  for (const char *name :
       {"view", "t", "transpose.int", "permute", "expand", "slice.Tensor",
        "select.int", "unsqueeze", "squeeze.dim", "split.Tensor",
        "split_with_sizes", "detach", "alias", "_unsafe_view", "lift_fresh",
        "unsafe_split.Tensor"}) {
    EXPECT_TRUE(get(name).isView) << name;
    EXPECT_TRUE(get(name).isPure()) << name;
    EXPECT_EQ(get(name).aliasedArgs, 1u) << name;
    EXPECT_EQ(get(name).cost, CostClass::Metadata) << name;
  }
  for (const char *name :
       {"clone", "_to_copy", "reshape", "contiguous", "to.dtype", "_conj",
        "view_copy", "cat", "squeeze_", "lift_fresh_copy", "slice_scatter",
        "slice_backward", "_assert_tensor_metadata"})
    EXPECT_FALSE(get(name).isView) << name;
}

TEST(OpFacts, Mutation) {
  EXPECT_EQ(get("copy_").mutatedArgs, 1u);
  EXPECT_EQ(get("add.out").mutatedArgs, 1u << 3);
  EXPECT_EQ(get("_fused_adamw_").mutatedArgs, 0x1fu);
  // In training it writes its statistics; its schema says that it does not.
  EXPECT_EQ(get("native_batch_norm").mutatedArgs, 0x18u);
  EXPECT_EQ(get("native_batch_norm.out").mutatedArgs, 0x718u);
  EXPECT_FALSE(get("native_batch_norm").isPure());
  EXPECT_FALSE(get("native_batch_norm.out").isSafeInPlan());
  EXPECT_FALSE(get("add.Tensor").isMutating());
  EXPECT_FALSE(get("copy_").isPure());
  EXPECT_TRUE(get("_assert_tensor_metadata").isPure());
  EXPECT_FALSE(get("_assert_async").isPure());
}

TEST(OpFacts, OutOverloads) {
  struct {
    const char *name, *out;
    OutKernel kernel;
  } const rows[] = {
      {"mm", "mm.out", OutKernel::Own},
      {"add.Tensor", "add.out", OutKernel::Own},
      {"sum.dim_IntList", "sum.IntList_out", OutKernel::Own},
      {"silu_backward", "silu_backward.grad_input", OutKernel::Own},
      {"nll_loss_forward", "nll_loss_forward.output", OutKernel::Own},
      {"where.self", "where.self_out", OutKernel::Own},
      {"topk", "topk.values", OutKernel::Own},
      {"clone", "clone.out", OutKernel::Generated},
      {"mul.Scalar", "mul.Scalar_out", OutKernel::Generated},
      {"full", "full.out", OutKernel::Generated},
      {"native_layer_norm", "native_layer_norm.out", OutKernel::Generated},
      {"_scaled_dot_product_flash_attention_for_cpu", "", OutKernel::None},
      {"view", "", OutKernel::None},
  };
  for (const auto &row : rows) {
    EXPECT_EQ(get(row.name).outOverload, row.out) << row.name;
    EXPECT_EQ(get(row.name).outKernelCPU, row.kernel) << row.name;
  }
  EXPECT_EQ(get("mm").outKernelCUDA, OutKernel::Own);
  for (const OpFacts &facts : getAllOpFacts()) {
    if (facts.outOverload.empty())
      continue;
    EXPECT_TRUE(get(facts.outOverload).isMutating()) << facts.name;
    EXPECT_EQ(get(facts.outOverload).safety, facts.safety) << facts.name;
  }
}

TEST(OpFacts, Random) {
  EXPECT_TRUE(get("bernoulli.p").isRandom);
  EXPECT_TRUE(get("bernoulli.p").takesGenerator);
  EXPECT_TRUE(get("native_dropout").isRandom);
  EXPECT_FALSE(get("native_dropout").takesGenerator);
  EXPECT_TRUE(get("rand").hasTag(TagNondeterministicSeeded));
  EXPECT_FALSE(get("rand").isPure());
  EXPECT_FALSE(get("mm").isRandom);
  // What takes no generator would share one with other ranks.
  EXPECT_EQ(get("bernoulli_.float").safety, Safety::Fuzzed);
  EXPECT_EQ(get("native_dropout").safety, Safety::Never);
  EXPECT_EQ(get("randperm.out").safety, Safety::Never);
}

// In place is the same but for the name of what is filled.
TEST(OpFacts, DrawsInPlace) {
  EXPECT_EQ(get("bernoulli.p").drawOverload, "bernoulli_.float");
  for (const OpFacts &facts : getAllOpFacts()) {
    EXPECT_EQ(facts.equivalent == Equivalent::Draw,
              !facts.drawOverload.empty());
    if (facts.drawOverload.empty())
      continue;
    const OpFacts &inPlace = get(facts.drawOverload);
    EXPECT_TRUE(facts.takesGenerator && inPlace.takesGenerator) << facts.name;
    EXPECT_EQ(facts.numArgs, inPlace.numArgs) << facts.name;
    EXPECT_EQ(inPlace.mutatedArgs, 1u) << facts.name;
    EXPECT_EQ(inPlace.safety, facts.safety) << facts.name;
  }
}

TEST(OpFacts, Costs) {
  EXPECT_EQ(get("mm").cost, CostClass::Gemm);
  EXPECT_EQ(get("mm.out").flops, FlopFormula::MatMul);
  EXPECT_EQ(get("addmm").flops, FlopFormula::AddMatMul);
  EXPECT_EQ(get("_scaled_dot_product_flash_attention_for_cpu").cost,
            CostClass::Attention);
  EXPECT_EQ(get("native_layer_norm").cost, CostClass::Normalisation);
  EXPECT_EQ(get("sum.dim_IntList").cost, CostClass::Reduction);
  EXPECT_EQ(get("mul.Tensor").cost, CostClass::Elementwise);
  EXPECT_EQ(get("mul.out").cost, CostClass::Elementwise);
  EXPECT_EQ(get("max.dim").cost, CostClass::Reduction);
  EXPECT_EQ(get("max.other").cost, CostClass::Elementwise);
  EXPECT_EQ(get("embedding").cost, CostClass::Gather);
  EXPECT_EQ(get("fill_.Scalar").cost, CostClass::Fill);
  EXPECT_EQ(get("linalg_svd").cost, CostClass::Opaque);
  EXPECT_TRUE(get("mul.Tensor").isCheapToRecompute);
  EXPECT_TRUE(get("_to_copy").isCheapToRecompute);
  EXPECT_FALSE(get("mm").isCheapToRecompute);
  EXPECT_FALSE(get("mul_.Tensor").isCheapToRecompute);
}

TEST(OpFacts, Equivalents) {
  EXPECT_EQ(get("clone").equivalent, Equivalent::Copy);
  EXPECT_EQ(get("zeros").equivalent, Equivalent::Fill);
  EXPECT_EQ(get("embedding").equivalent, Equivalent::Embedding);
  EXPECT_EQ(get("slice_backward").equivalent, Equivalent::SliceBackward);
  EXPECT_EQ(get("mm").equivalent, Equivalent::None);
}

TEST(OpFacts, Exact) {
  for (const char *name :
       {"abs.out", "neg.out", "add.out", "sub.out", "mul.out", "div.out"})
    EXPECT_TRUE(get(name).isExact) << name;
  for (const char *name : {"exp.out", "rsqrt.out", "sum.IntList_out",
                           "div.out_mode", "add.Tensor", "mm.out"})
    EXPECT_FALSE(get(name).isExact) << name;
}

TEST(OpFacts, SafeInPlan) {
  for (const char *name :
       {"mm.out", "copy_", "fill_.Scalar", "zero_", "index_select.out",
        "_softmax.out", "cat.out", "convolution_backward", "sum.IntList_out",
        "div_.Tensor", "_to_copy", "as_strided_scatter", "_conj"})
    EXPECT_TRUE(get(name).isSafeInPlan()) << name;
  for (const char *name :
       {"native_layer_norm_backward", "max_pool2d_with_indices_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "embedding_dense_backward",
        "floor_divide_.Tensor"})
    EXPECT_EQ(get(name).safety, Safety::Guarded) << name;
  for (const char *name : {"from_file",
                           "from_file.out",
                           "_print",
                           "_backward",
                           "set_data",
                           "set_.source_Storage",
                           "set_.source_Tensor",
                           "resize_",
                           "resize.out",
                           "resize_as_",
                           "record_stream",
                           "requires_grad_",
                           "retain_grad",
                           "rename_",
                           "as_strided_",
                           "_fused_adamw_",
                           "_foreach_mul_.Scalar",
                           "t_",
                           "get_gradients",
                           "_cufft_clear_plan_cache",
                           "_sparse_mm",
                           "sparse_mask",
                           "quantize_per_tensor",
                           "quantized_lstm.data",
                           "mkldnn_convolution",
                           "pin_memory",
                           "to_sparse",
                           "rand",
                           "native_dropout",
                           "item",
                           "_test_string_default",
                           "sum.dim_DimnameList",
                           "data",
                           "_version",
                           "_embedding_bag",
                           "_index_put_impl_"})
    EXPECT_FALSE(get(name).isSafeInPlan()) << name;
  // No user can allow what a plan can't say.
  for (const char *name : {"rand", "native_dropout", "t_", "resize_", "item"})
    EXPECT_EQ(get(name).safety, Safety::Never) << name;
}
