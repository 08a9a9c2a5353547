//===- CompressReplicas.cpp - A communication hook as a pass --------------===//
//
// On a mesh of two axes, gradients are summed over the shard axis, inside a
// machine, and then over the replicate axis, between machines. This pass sends
// the second sum in bf16, which halves what crosses machines; the first stays
// as it is. In PyTorch, it would be a hook of `set_all_reduce_hook`.
//
//   fsdp-plan model.pt2 --mesh 2x4 -o step.plan
//       --load-pass-plugin CompressReplicas.so --comm-hook compress-replicas
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Pass/Pass.h"
#include "mlir/Tools/Plugins/PassPlugin.h"

using namespace mlir;

namespace {
struct CompressReplicas
    : PassWrapper<CompressReplicas, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(CompressReplicas)

  StringRef getArgument() const override { return "compress-replicas"; }
  StringRef getDescription() const override {
    return "all-reduce shards of gradients in bf16";
  }

  void runOnOperation() override {
    getOperation().walk([&](fsdp::AllReduceOp reduction) {
      if (isa<fsdp::ShardType>(reduction.getInput().getType()))
        reduction.setVia(BFloat16Type::get(&getContext()));
    });
  }
};
} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo mlirGetPassPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "CompressReplicas", "1",
          [] { PassRegistration<CompressReplicas>(); }};
}
