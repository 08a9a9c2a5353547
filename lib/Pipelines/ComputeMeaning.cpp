//===- ComputeMeaning.cpp - What must be left at the end of programs ------===//
//
// The other side of the proof: numbers of the model as it was imported, which
// no pass on the way to the plan has seen.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Pipelines/Pipelines.h"

#include "fsdp/Dialect/FSDP/IR/Programs.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/Target/Plan/Meaning.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_COMPUTEMEANING
#include "fsdp/Pipelines/Passes.h.inc"

static void addMeanings(OpBuilder &builder, Location loc,
                        const symbolic::Meanings &meanings,
                        FlatSymbolRefAttr program) {
  auto optional = [&](const std::string &text) {
    return text.empty() ? StringAttr() : builder.getStringAttr(text);
  };
  for (const auto &[what, meaning] : meanings)
    plan::MeaningOp::create(builder, loc, builder.getStringAttr(what), program,
                            builder.getI64IntegerAttr(meaning.number),
                            optional(meaning.words), optional(meaning.unknown));
}

namespace {
struct ComputeMeaning : impl::ComputeMeaningBase<ComputeMeaning> {
  LogicalResult compute() {
    ModuleOp module = getOperation();
    auto programs = getPrograms(module);
    if (failed(programs))
      return failure();
    func::FuncOp first = programs->front();
    OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
    // The parts of a step are made from one source.
    for (ArrayRef<func::FuncOp> left(*programs); !left.empty();) {
      func::FuncOp source = getSource(left.front());
      SeedFactor factor = getSeedFactor(left.front());
      ArrayRef<func::FuncOp> steps = left.take_while([&](func::FuncOp func) {
        SeedFactor own = getSeedFactor(func);
        return getSource(func) == source && own.divisor == factor.divisor &&
               own.isScaled == factor.isScaled;
      });
      left = left.drop_front(steps.size());
      if (!source)
        continue;
      auto meanings = getMeanings(source, steps);
      if (failed(meanings))
        return failure();
      for (auto [func, meaning] : llvm::zip_equal(steps, *meanings)) {
        if (func == first)
          addMeanings(builder, first.getLoc(), meaning.plan, {});
        addMeanings(builder, first.getLoc(), meaning.program,
                    FlatSymbolRefAttr::get(func::FuncOp(func)));
      }
    }
    return success();
  }

  void runOnOperation() override {
    if (failed(compute()))
      signalPassFailure();
  }
};
} // namespace
} // namespace fsdp
