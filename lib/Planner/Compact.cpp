//===- Compact.cpp - Computations with nothing between them ---------------===//
//
// Two neighbours become one where no decision can put anything between them and
// no memory begins or ends there that depends on one. What is alive inside is
// then the most of both.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/StepModel.h"

#include <algorithm>
#include <utility>

using namespace fsdp::planner;

namespace {
class Compactor {
public:
  explicit Compactor(Program &program)
      : program(program), isBegin(program.ops.size(), false) {}

  void run(std::vector<uint32_t> &sizes);

private:
  void findBegins();
  void findWeightBegins();
  static void append(ComputeOp &op, const ComputeOp &next);

  Program &program;
  std::vector<uint8_t>
      isBegin; ///< By operation: it cannot join the one before.
};
} // namespace

/// A unit is gathered in front of its first use and freed after its last, of a
/// phase, whichever of them are there. So a use may join its neighbour if there
/// is another one further on, or further back, that is there whenever it is.
void Compactor::findWeightBegins() {
  const std::vector<ComputeOp> &ops = program.ops;
  auto mark = [&](bool isForwards) {
    // By unit and phase: the kinds of uses that there are further on.
    using Kind = std::pair<uint32_t, Recompute>;
    std::vector<std::vector<Kind>> seen;
    auto covers = [&](const ComputeOp &op) {
      size_t key = 2 * size_t(op.weights) + size_t(op.phase);
      if (seen.size() <= key)
        seen.resize(key + 1);
      std::vector<Kind> &kinds = seen[key];
      Kind own = {op.onlyIf, op.recompute};
      bool isCovered =
          std::any_of(kinds.begin(), kinds.end(), [&](const Kind &kind) {
            return kind.first == nobody || kind == own;
          });
      if (std::find(kinds.begin(), kinds.end(), own) == kinds.end())
        kinds.push_back(own);
      return isCovered;
    };
    for (size_t n = 0; n != ops.size(); ++n) {
      size_t i = isForwards ? n : ops.size() - 1 - n;
      if (ops[i].weights == nobody || covers(ops[i]))
        continue;
      if (isForwards)
        isBegin[i] = true;
      else if (i + 1 != ops.size())
        isBegin[i + 1] = true;
    }
  };
  mark(true);
  mark(false);
}

void Compactor::findBegins() {
  const std::vector<ComputeOp> &ops = program.ops;
  auto end = [&](size_t i) {
    if (i + 1 < ops.size())
      isBegin[i + 1] = true;
  };
  findWeightBegins();
  for (size_t i = 0; i != ops.size(); ++i) {
    const ComputeOp &op = ops[i];
    bool isAlone = op.launches != nobody || op.awaits != nobody ||
                   op.update != nobody || op.gradient != nobody;
    if (isAlone)
      end(i);
    if (isAlone || i == 0 || op.onlyIf != ops[i - 1].onlyIf ||
        op.recompute != ops[i - 1].recompute || op.phase != ops[i - 1].phase ||
        (op.weights != nobody && ops[i - 1].weights != nobody &&
         op.weights != ops[i - 1].weights))
      isBegin[i] = true;
  }
  for (const Life &life : program.lives) {
    isBegin[life.begin] = true;
    end(life.end);
    for (const Life::Read &read : life.reads)
      end(read.op);
  }
}

/// Memory inside is the most of both; what is left is the sum.
void Compactor::append(ComputeOp &op, const ComputeOp &next) {
  auto getMost = [](const ComputeOp &of) {
    return std::max<int64_t>(of.change, 0) + of.transient;
  };
  int64_t most = std::max(getMost(op), op.change + getMost(next));
  op.duration += next.duration;
  op.change += next.change;
  op.transient = most - std::max<int64_t>(op.change, 0);
  if (op.weights == nobody)
    op.weights = next.weights;
}

void Compactor::run(std::vector<uint32_t> &sizes) {
  findBegins();
  std::vector<uint32_t> number; // by operation of before
  std::vector<ComputeOp> ops;
  std::vector<uint32_t> newSizes;
  for (size_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    bool joins =
        !isBegin[i] && !(ops.back().weights != nobody && op.weights != nobody &&
                         ops.back().weights != op.weights);
    if (joins) {
      append(ops.back(), op);
      newSizes.back() += sizes[i];
    } else {
      ops.push_back(op);
      newSizes.push_back(sizes[i]);
    }
    number.push_back(uint32_t(ops.size()) - 1);
  }
  program.ops = std::move(ops);
  sizes = std::move(newSizes);
  for (Life &life : program.lives) {
    life.begin = number[life.begin];
    life.end = number[life.end];
    for (Life::Read &read : life.reads)
      read.op = number[read.op];
  }
}

void fsdp::planner::compact(Program &program, std::vector<uint32_t> &sizes) {
  Compactor(program).run(sizes);
}
