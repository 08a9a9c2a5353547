//===- Transformer.h - The step of a transformer ----------------*- C++ -*-===//
//
// A step's model from dimensions alone, without a program: what a table of
// somebody else's measurements says about a run, and a machine. Blocks are what
// is gathered, reduced and recomputed at once; embedding and head are units of
// the root. Weights are gathered in bfloat16 and updated in float32 (AdamW).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_TRANSFORMER_H
#define FSDP_PLANNER_TRANSFORMER_H

#include "fsdp/Planner/Hardware.h"
#include "fsdp/Planner/StepModel.h"

namespace fsdp::planner {

/// A decoder of equal blocks, whose attention is causal.
struct Transformer {
  int64_t layers = 1, hidden = 1, ffn = 1, heads = 1, kvHeads = 1,
          vocabulary = 1;
  bool isGated = false; ///< Three matrices in the feed-forward, not two.
  bool isTied = false;  ///< The head's weights are the embedding's.

  int64_t getNumParameters() const;
};

/// How it is trained.
struct TrainingSetup {
  /// What is recomputed in the backward. Selective: all but attention and every
  /// second product of matrices (torchtitan's `selective` of operators). Full:
  /// what the backward of a block reads, so not its last product; as
  /// `torch.utils.checkpoint` from PyTorch 2.1 on, which stops early. Whole:
  /// all.
  enum class Recompute { None, Selective, Full, Whole };
  /// FlashAttention 2, FlashAttention in Triton, or the kernel of plans.
  enum class Attention { Flash, Triton, Cudnn };

  int64_t ranks = 1;         ///< That all shard the weights.
  int64_t sequence = 1;      ///< Tokens.
  int64_t batch = 1;         ///< Sequences of a rank in a micro-batch.
  int64_t microBatches = 1;  ///< Each reduces its gradients.
  int64_t gradientBytes = 4; ///< Of an element, as it is reduced.
  /// What copies and casts on the compute stream read and write, in bytes for
  /// each element of a block: after a gather, and ahead of a reduction.
  int64_t gatherCopyBytes = 0, gradientCopyBytes = 0;
  bool isCompiled = false; ///< Elementwise operators are fused.
  Attention attention = Attention::Flash;
  double computeFactor = 1; ///< Computations take as many times as long.
  Recompute recompute = Recompute::None;

  int64_t getTokens() const { return sequence * batch; } ///< Of a micro-batch.
};

/// The model has a program for the last micro-batch, and one for all others.
/// Modules are recomputed as `setup` says if decisions recompute all of them;
/// what is elementwise in them may be recomputed alone.
StepModel makeTransformer(const Transformer &shape, const TrainingSetup &setup,
                          const Hardware &hardware);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_TRANSFORMER_H
