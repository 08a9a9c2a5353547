//===- Transformers.h - Steps of well-known models --------------*- C++ -*-===//
//
// Built from dimensions and constants of a machine (an H100 with 8 in a node):
// products of matrices at 75 % of 989 TFLOP/s and slower when small, attention
// at 40 %, all else at 85 % of 3.35 TB/s; collectives at 360 GB/s in a node and
// 8 times 43 between nodes; 19 % slower while something is sent. No measurement
// stands behind them: they are for comparing plans with each other.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_PLANNER_TRANSFORMERS_H
#define FSDP_TEST_UNIT_PLANNER_TRANSFORMERS_H

#include "fsdp/Planner/StepModel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace fsdp::planner::test {

struct Shape {
  const char *name;
  int64_t layers, width, hidden, keyWidth, vocabulary, tokens, ranks;
  bool isGated = true;
  int64_t gradientBytes = 2;  ///< Per element, as it is reduced.
  double nodeBandwidth = 344; ///< Between nodes, GB/s.
};

inline constexpr Shape gpt2 = {
    "GPT-2 small, 8 ranks", 12, 768, 3072, 768, 50304, 16384, 8, false};
inline constexpr Shape llama7B = {"7B, 64 ranks", 32,    4096, 11008,
                                  4096,           32000, 4096, 64};
inline constexpr Shape slow7B = {"7B, 64 ranks, 45 GB/s",
                                 32,
                                 4096,
                                 11008,
                                 4096,
                                 32000,
                                 4096,
                                 64,
                                 true,
                                 2,
                                 45};
inline constexpr Shape llama70B = {"70B, 256 ranks", 80,   8192, 28672, 1024,
                                   128256,           4096, 256};
inline constexpr Shape llama405B = {
    "405B, 10000 ranks", 126, 16384, 53248, 1024, 128256, 8192, 10000};

/// Collectives of a group of which each takes a whole link.
inline std::array<LinkUse, numCollectiveStreams> shareAll() {
  LinkUse whole = {wholeLink, 0};
  return {whole, whole, whole};
}

/// One unit for each matrix of a block, or one for the block. What is
/// elementwise in a block may be computed again by itself.
class TransformerBuilder {
public:
  TransformerBuilder(const Shape &shape, bool hasUnitPerBlock = false)
      : shape(shape), isWhole(hasUnitPerBlock) {}

  StepModel build() {
    model.contention = 195;
    model.links = {shareAll()};
    program.name = "step";
    uint32_t embedding = addUnit("embed", shape.vocabulary * shape.width);
    std::vector<uint32_t> blocks; // the first unit of each
    for (int64_t i = 0; i != shape.layers; ++i)
      blocks.push_back(addBlock("h." + std::to_string(i)));
    uint32_t head = addUnit("head", shape.vocabulary * shape.width);

    int64_t row = 2 * shape.tokens * shape.width;
    add(Phase::Forward, move(2 * row), row, embedding);
    std::vector<Forward> forwards;
    for (uint32_t first : blocks)
      forwards.push_back(addForward(first));
    int64_t logits = 2 * shape.tokens * shape.vocabulary / 8; // in chunks
    add(Phase::Forward, multiply(shape.width, shape.vocabulary) + move(logits),
        0, head, nobody, 3 * logits);
    add(Phase::Backward, multiply(shape.width, shape.vocabulary), 0, head,
        nobody, 3 * logits);
    add(Phase::Backward, multiply(shape.width, shape.vocabulary), 0, nobody,
        head, 3 * logits);
    for (size_t i = blocks.size(); i-- != 0;) {
      for (auto *modules : {&program.recomputable, &program.cheap})
        modules->insert(modules->begin(), uint32_t(i));
      addReplay(uint32_t(i), forwards[i]);
      addBackward(uint32_t(i), blocks[i], forwards[i]);
    }
    add(Phase::Backward, move(2 * row), -row, nobody, embedding);
    for (uint32_t unit = 0; unit != model.units.size(); ++unit) {
      ComputeOp op;
      op.phase = Phase::Backward;
      op.update = unit;
      op.duration = nanoseconds(30.0 * double(elements[unit]) /
                                double(shape.ranks) / (0.7 * 3350));
      program.ops.push_back(op);
    }
    int64_t sum = 0;
    for (int64_t n : elements)
      sum += n;
    model.persistentBytes = 16 * (sum / shape.ranks);
    model.programs = {std::move(program)};
    return std::move(model);
  }

private:
  static int64_t nanoseconds(double time) { return std::llround(time); }
  /// A product of as many rows as tokens.
  int64_t multiply(int64_t m, int64_t n) const {
    double flops = 2.0 * double(shape.tokens) * double(m) * double(n);
    return nanoseconds(flops / (989e3 * 0.75 * flops / (flops + 8e10)) + 2e3);
  }
  int64_t move(int64_t bytes) const {
    return nanoseconds(double(bytes) / (0.85 * 3350) + 2e3);
  }
  int64_t attend(double factor) const {
    double length = double(std::min<int64_t>(shape.tokens, 8192));
    double flops =
        2.0 * double(shape.tokens) * length * double(shape.width) * factor;
    return nanoseconds(flops / (989e3 * 0.4) + 2e3);
  }

  uint32_t addUnit(std::string name, int64_t count, uint32_t module = nobody) {
    double ranks = double(shape.ranks), nodes = std::max(1.0, ranks / 8);
    double latency = 8.4 + 3.4 * (ranks - nodes) + 11 * (nodes - 1);
    double bandwidth = nodes > 1 ? shape.nodeBandwidth : 360;
    auto makeCost = [&](int64_t bytes) {
      return CollectiveCost{
          std::llround(1e6 * latency),
          std::llround(1e3 * double(bytes) * (ranks - 1) / ranks / bandwidth)};
    };
    Unit unit;
    unit.name = std::move(name);
    unit.module = module;
    model.units.push_back(unit);
    Traffic traffic;
    traffic.gatheredBytes = 2 * count;
    traffic.gradientBytes = shape.gradientBytes * count;
    traffic.gather = makeCost(traffic.gatheredBytes);
    traffic.reduction = makeCost(traffic.gradientBytes);
    program.traffic.push_back(traffic);
    elements.push_back(count);
    return uint32_t(model.units.size()) - 1;
  }

  uint32_t addBlock(const std::string &name) {
    int64_t d = shape.width, up = (shape.isGated ? 2 : 1) * shape.hidden;
    auto module = uint32_t(model.modules.size());
    model.modules.push_back(name);
    if (isWhole)
      return addUnit(name,
                     d * (2 * d + 2 * shape.keyWidth) + d * (up + shape.hidden),
                     module);
    uint32_t first =
        addUnit(name + ".qkv", d * (d + 2 * shape.keyWidth), module);
    addUnit(name + ".out", d * d, module);
    addUnit(name + ".up", d * up, module);
    addUnit(name + ".down", d * shape.hidden, module);
    return first;
  }
  uint32_t pick(uint32_t first, uint32_t which) const {
    return isWhole ? first : first + which;
  }

  void add(Phase phase, int64_t duration, int64_t change,
           uint32_t weights = nobody, uint32_t gradient = nobody,
           int64_t transient = 0) {
    ComputeOp op;
    op.phase = phase;
    op.duration = duration;
    op.change = change;
    op.transient = transient;
    op.weights = weights;
    op.gradient = gradient;
    program.ops.push_back(op);
  }

  /// What a block leaves for its backward, by the computation that makes it;
  /// and in the backward if it is recomputed.
  struct Forward {
    uint32_t begin = 0, end = 0;
    std::vector<int64_t> bytes;
    std::vector<uint32_t> replays;
    std::vector<uint32_t> cheap; ///< The same, `nobody` where it is kept.
  };

  Forward addForward(uint32_t first) {
    Forward result;
    result.begin = uint32_t(program.ops.size());
    int64_t d = shape.width, f = shape.hidden, k = shape.keyWidth;
    int64_t row = 2 * shape.tokens * d, wide = 2 * shape.tokens * f;
    int64_t keys = 4 * shape.tokens * k;
    int64_t up = shape.isGated ? 2 : 1;
    auto leave = [&](int64_t duration, int64_t bytes, uint32_t unit = nobody) {
      add(Phase::Forward, duration, 0, unit);
      result.bytes.push_back(bytes);
    };
    leave(move(2 * row), row);
    leave(multiply(d, d + 2 * k), row + keys, pick(first, 0));
    leave(attend(1), row);
    leave(multiply(d, d), row, pick(first, 1));
    leave(move(3 * row), row);
    leave(multiply(d, up * f), up * wide, pick(first, 2));
    leave(move((up + 1) * wide), wide);
    leave(multiply(f, d), row, pick(first, 3));
    result.end = uint32_t(program.ops.size());
    result.cheap.assign(result.bytes.size(), nobody);
    return result;
  }

  /// All of it, but that the last row, which the next block reads, is kept.
  void addReplay(uint32_t module, Forward &forward) {
    for (uint32_t i = forward.begin; i != forward.end; ++i)
      forward.replays.push_back(addCopy(module, i, Recompute::All));
  }
  uint32_t addCopy(uint32_t module, uint32_t of, Recompute recompute) {
    program.ops.push_back(repeat(program.ops[of], module, recompute));
    return uint32_t(program.ops.size()) - 1;
  }

  void addBackward(uint32_t module, uint32_t first, Forward &forward) {
    int64_t d = shape.width, f = shape.hidden, k = shape.keyWidth;
    int64_t row = 2 * shape.tokens * d, wide = 2 * shape.tokens * f;
    int64_t up = shape.isGated ? 2 : 1;
    std::vector<uint32_t> ends; // of what each computation leaves
    auto multiplyTwice = [&](uint32_t unit, int64_t m, int64_t n) {
      add(Phase::Backward, multiply(m, n), 0, unit, nobody, row + wide);
      add(Phase::Backward, multiply(m, n), 0, nobody, unit, row + wide);
      return uint32_t(program.ops.size()) - 1;
    };
    // In front of the product that reads it.
    auto addCheap = [&](uint32_t part) {
      forward.cheap[part] =
          addCopy(module, forward.begin + part, Recompute::Cheap);
    };
    addCheap(6);
    uint32_t down = multiplyTwice(pick(first, 3), f, d);
    add(Phase::Backward, move((2 * up + 1) * wide), 0, nobody, nobody,
        up * wide);
    addCheap(4);
    uint32_t wider = multiplyTwice(pick(first, 2), d, up * f);
    add(Phase::Backward, move(4 * row), 0);
    uint32_t out = multiplyTwice(pick(first, 1), d, d);
    add(Phase::Backward, attend(2.5), 0, nobody, nobody, 2 * row);
    auto attended = uint32_t(program.ops.size()) - 1;
    addCheap(0);
    uint32_t keys = multiplyTwice(pick(first, 0), d, d + 2 * k);
    add(Phase::Backward, move(4 * row), 0);
    auto end = uint32_t(program.ops.size()) - 1;
    ends = {keys, attended, out, end, wider, wider, down, end};
    for (size_t i = 0; i != forward.bytes.size(); ++i) {
      auto op = uint32_t(forward.begin + i);
      if (i + 1 == forward.bytes.size()) { // kept in any case
        program.lives.push_back({forward.bytes[i], op, ends[i], {}});
        continue;
      }
      uint8_t ifs = getBit(Recompute::None);
      if (forward.cheap[i] == nobody)
        ifs |= getBit(Recompute::Cheap);
      program.lives.push_back(
          {forward.bytes[i], op, op, {{module, ifs, ends[i]}}});
      for (uint32_t copy : {forward.replays[i], forward.cheap[i]})
        if (copy != nobody)
          program.lives.push_back({forward.bytes[i], copy, ends[i], {}});
    }
  }

  Shape shape;
  bool isWhole;
  StepModel model;
  Program program;
  std::vector<int64_t> elements;
};

inline StepModel makeTransformer(const Shape &shape,
                                 bool hasUnitPerBlock = false) {
  return TransformerBuilder(shape, hasUnitPerBlock).build();
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_TRANSFORMERS_H
