//===- Transformer.cpp - The step of a transformer ------------------------===//

#include "fsdp/Planner/Transformer.h"

#include <cmath>
#include <utility>

using namespace fsdp::planner;
using Attention = TrainingSetup::Attention;

/// Of an element of gathered weights, and of activations.
static constexpr int64_t halfBytes = 2;
/// What elementwise operators of a block read and write in the forward, in
/// activations of [tokens, hidden]; twice that in the backward. Fitted by
/// others to 209 rows of llm-foundry (37, 24 and 39 on three GPUs); 18 to 25 if
/// fused.
static constexpr double eagerRows = 38, fusedRows = 20;
/// What the loss reads and writes, in bytes for each logit, forward and
/// backward: a cast to float32, and the softmax of that.
static constexpr double eagerLogitBytes = 26, fusedLogitBytes = 10;
/// What is alive for each: in bfloat16, in float32, and a gradient.
static constexpr int64_t heldLogitBytes = 2 + 4 + 4;
/// FlashAttention 2 is 1.3 to 2.5 times as fast as FlashAttention in Triton, on
/// an A100 (arXiv 2307.08691): the geometric mean.
static constexpr double tritonFactor = 1.8;
/// AdamW in float32, for each parameter: it reads the weight, its gradient and
/// two states, and writes weight and states, and the weight in bfloat16.
static constexpr double updateBytes = 30, updateFlops = 12;
/// Weight, gradient and two states.
static constexpr int64_t persistentBytes = 16;

static int64_t getKeyWidth(const Transformer &shape) {
  return shape.hidden / shape.heads * shape.kvHeads;
}

static int64_t getBlockParameters(const Transformer &shape) {
  return shape.hidden * (2 * shape.hidden + 2 * getKeyWidth(shape) +
                         (shape.isGated ? 3 : 2) * shape.ffn);
}

int64_t Transformer::getNumParameters() const {
  return layers * getBlockParameters(*this) +
         (isTied ? 1 : 2) * vocabulary * hidden;
}

namespace {

/// One forward computation, with what its backward needs.
struct Part {
  Computation::Kind kind = Computation::Kind::Vector;
  double flops = 0, bytes = 0;
  int64_t saved = 0;   ///< Bytes of its result, for the backward.
  bool isKept = false; ///< Even if the rest is recomputed selectively.
};

class Builder {
public:
  Builder(const Transformer &shape, const TrainingSetup &setup,
          const Hardware &hardware)
      : shape(shape), setup(setup), hardware(hardware),
        tokens(setup.getTokens()), row(halfBytes * tokens * shape.hidden),
        logits(tokens * shape.vocabulary) {}

  StepModel build();

private:
  Part multiply(int64_t m, int64_t n, int64_t saved, bool isKept) const;
  /// A share of what is elementwise in a block.
  Part touch(double share, int64_t saved) const;
  Part touchLogits(double share) const;
  std::vector<Part> getBlock() const;

  uint32_t addUnit(std::string name, int64_t parameters,
                   uint32_t module = nobody);
  /// `factor` times the work of `part`.
  ComputeOp &add(Phase phase, const Part &part, double factor = 1);
  void addProducts(const Part &part, uint32_t unit, int64_t transient);
  /// What else is done with all of the unit's elements.
  ComputeOp &addBytes(Phase phase, uint32_t unit, int64_t bytes);
  /// Returns the number of the first computation.
  uint32_t addForward(const std::vector<Part> &parts, uint32_t unit);
  void addBackward(const std::vector<Part> &parts, uint32_t begin,
                   uint32_t module, uint32_t unit);
  std::vector<uint32_t> addReplay(const std::vector<Part> &parts,
                                  uint32_t begin, uint32_t module);
  uint32_t addCopy(uint32_t of, uint32_t module, Recompute recompute);
  void addHead(uint32_t unit);
  void addUpdates();

  const Transformer &shape;
  const TrainingSetup &setup;
  const Hardware &hardware;
  const int64_t tokens, row, logits;
  StepModel model;
  Program program;
  std::vector<int64_t> parameters; ///< By unit.
};

} // namespace

//===----------------------------------------------------------------------===//
// Work
//===----------------------------------------------------------------------===//

Part Builder::multiply(int64_t m, int64_t n, int64_t saved, bool isKept) const {
  auto rows = double(tokens), from = double(m), to = double(n);
  return {Computation::Kind::Matrix, 2 * rows * from * to,
          halfBytes * (rows * (from + to) + from * to), saved, isKept};
}

Part Builder::touch(double share, int64_t saved) const {
  double rows = setup.isCompiled ? fusedRows : eagerRows;
  return {Computation::Kind::Vector, 0, share * rows * double(row), saved};
}

Part Builder::touchLogits(double share) const {
  double bytes = setup.isCompiled ? fusedLogitBytes : eagerLogitBytes;
  return {Computation::Kind::Vector, 0, share * bytes * double(logits)};
}

std::vector<Part> Builder::getBlock() const {
  int64_t d = shape.hidden, f = shape.ffn, k = getKeyWidth(shape);
  int64_t wide = halfBytes * tokens * f;
  Part attention{setup.attention == Attention::Cudnn
                     ? Computation::Kind::Attention
                     : Computation::Kind::FlashAttention,
                 2.0 * double(setup.sequence) * double(tokens) * double(d),
                 4.0 * double(row), row, true};
  if (setup.attention == Attention::Triton)
    attention.flops *= tritonFactor;
  std::vector<Part> parts = {
      touch(0.2, row),
      multiply(d, d + 2 * k, row + 2 * halfBytes * tokens * k, true), attention,
      multiply(d, d, row, false), touch(0.3, row)};
  if (shape.isGated)
    parts.push_back(multiply(d, f, wide, true));
  parts.push_back(multiply(d, f, wide, !shape.isGated));
  parts.push_back(touch(0.5, wide));
  parts.push_back(multiply(f, d, row, true));
  return parts;
}

//===----------------------------------------------------------------------===//
// The program
//===----------------------------------------------------------------------===//

uint32_t Builder::addUnit(std::string name, int64_t count, uint32_t module) {
  auto price = [&](CollectiveKind kind, int64_t bytes) {
    return hardware.getCost(Communication{kind, double(bytes), setup.ranks});
  };
  Unit unit;
  unit.name = std::move(name);
  unit.module = module;
  model.units.push_back(std::move(unit));
  Traffic traffic;
  traffic.gatheredBytes = halfBytes * count;
  traffic.gradientBytes = setup.gradientBytes * count;
  traffic.gather = price(CollectiveKind::AllGather, traffic.gatheredBytes);
  traffic.reduction =
      price(CollectiveKind::ReduceScatter, traffic.gradientBytes);
  program.traffic.push_back(traffic);
  parameters.push_back(count);
  return uint32_t(model.units.size()) - 1;
}

ComputeOp &Builder::add(Phase phase, const Part &part, double factor) {
  ComputeOp op;
  op.phase = phase;
  int64_t time = hardware.getDuration(Computation{
      part.kind, FloatType::BF16, factor * part.flops, factor * part.bytes});
  op.duration = std::llround(setup.computeFactor * double(time));
  program.ops.push_back(op);
  return program.ops.back();
}

/// The gradients of what a product read, and of its weights.
void Builder::addProducts(const Part &part, uint32_t unit, int64_t transient) {
  ComputeOp &input = add(Phase::Backward, part);
  input.weights = unit;
  input.transient = transient;
  ComputeOp &weights = add(Phase::Backward, part);
  weights.gradient = unit;
  weights.transient = transient;
}

ComputeOp &Builder::addBytes(Phase phase, uint32_t unit, int64_t bytes) {
  return add(phase, {Computation::Kind::Vector, 0,
                     double(bytes) * double(parameters[unit])});
}

uint32_t Builder::addForward(const std::vector<Part> &parts, uint32_t unit) {
  if (setup.gatherCopyBytes)
    addBytes(Phase::Forward, unit, setup.gatherCopyBytes).weights = unit;
  auto begin = uint32_t(program.ops.size());
  for (const Part &part : parts) {
    ComputeOp &op = add(Phase::Forward, part);
    if (part.kind == Computation::Kind::Matrix)
      op.weights = unit;
  }
  return begin;
}

/// Computes again what is recomputed if the module is; by part, `nobody` for
/// what is kept.
std::vector<uint32_t> Builder::addReplay(const std::vector<Part> &parts,
                                         uint32_t begin, uint32_t module) {
  std::vector<uint32_t> replays(parts.size(), nobody);
  for (size_t i = 0; i != parts.size(); ++i) {
    if (parts[i].isKept &&
        setup.recompute == TrainingSetup::Recompute::Selective)
      continue;
    if (i + 1 == parts.size() &&
        setup.recompute == TrainingSetup::Recompute::Full)
      continue;
    replays[i] = addCopy(uint32_t(begin + i), module, Recompute::All);
  }
  return replays;
}

uint32_t Builder::addCopy(uint32_t of, uint32_t module, Recompute recompute) {
  program.ops.push_back(repeat(program.ops[of], module, recompute));
  return uint32_t(program.ops.size()) - 1;
}

/// Of what is elementwise: the last product that reads it, so the first in the
/// backward. Otherwise `nobody`.
static size_t findReader(const std::vector<Part> &parts, size_t part) {
  size_t reader = part;
  while (reader + 1 != parts.size() &&
         parts[reader + 1].kind == Computation::Kind::Matrix)
    ++reader;
  bool isVector = parts[part].kind == Computation::Kind::Vector;
  return isVector && reader != part ? reader : nobody;
}

/// From the last computation to the first; each ends what its forward left.
/// What is cheap may be computed again in front of what reads it.
void Builder::addBackward(const std::vector<Part> &parts, uint32_t begin,
                          uint32_t module, uint32_t unit) {
  if (setup.gatherCopyBytes)
    addBytes(Phase::Backward, unit, setup.gatherCopyBytes).weights = unit;
  std::vector<uint32_t> replays = addReplay(parts, begin, module);
  std::vector<uint32_t> copies(parts.size(), nobody);
  int64_t transient = row + halfBytes * tokens * shape.ffn;
  for (size_t i = parts.size(); i-- != 0;) {
    const Part &part = parts[i];
    for (size_t other = 0; other != i; ++other)
      if (findReader(parts, other) == i)
        copies[other] =
            addCopy(uint32_t(begin + other), module, Recompute::Cheap);
    if (part.kind == Computation::Kind::Matrix)
      addProducts(part, unit, transient);
    else
      add(Phase::Backward, part,
          part.kind == Computation::Kind::Vector ? 2 : 2.5)
          .transient = transient;
    auto made = uint32_t(begin + i), end = uint32_t(program.ops.size()) - 1;
    // What the next block reads is there in any case.
    if (replays[i] == nobody || i + 1 == parts.size()) {
      program.lives.push_back({part.saved, made, end, {}});
      continue;
    }
    uint8_t ifs = getBit(Recompute::None);
    if (copies[i] == nobody)
      ifs |= getBit(Recompute::Cheap);
    program.lives.push_back({part.saved, made, made, {{module, ifs, end}}});
    for (uint32_t copy : {replays[i], copies[i]})
      if (copy != nobody)
        program.lives.push_back({part.saved, copy, end, {}});
  }
  if (setup.gradientCopyBytes)
    addBytes(Phase::Backward, unit, setup.gradientCopyBytes).gradient = unit;
}

void Builder::addHead(uint32_t unit) {
  Part head = multiply(shape.hidden, shape.vocabulary, 0, false);
  ComputeOp &forward = add(Phase::Forward, head);
  forward.weights = unit;
  forward.transient = heldLogitBytes * logits;
  add(Phase::Forward, touchLogits(0.6)).transient = heldLogitBytes * logits;
  add(Phase::Backward, touchLogits(0.4)).transient = heldLogitBytes * logits;
  addProducts(head, unit, heldLogitBytes * logits);
}

void Builder::addUpdates() {
  for (uint32_t unit = 0; unit != model.units.size(); ++unit) {
    double own = double(parameters[unit]) / double(setup.ranks);
    add(Phase::Backward,
        {Computation::Kind::Vector, updateFlops * own, updateBytes * own})
        .update = unit;
  }
}

StepModel Builder::build() {
  model.contention = hardware.getContention();
  if (hardware.sharedLink) {
    model.links.emplace_back();
    for (auto [stream, kind] :
         {std::pair(Stream::Gather, CollectiveKind::AllGather),
          std::pair(Stream::Reduce, CollectiveKind::ReduceScatter)})
      model.links[0][size_t(stream)] =
          hardware.getLinks({kind, 0, setup.ranks});
  }
  model.sharesCore = hardware.sharedCore;
  uint32_t embedding = addUnit("embedding", shape.vocabulary * shape.hidden);
  for (int64_t i = 0; i != shape.layers; ++i) {
    model.modules.push_back("block." + std::to_string(i));
    addUnit(model.modules.back(), getBlockParameters(shape), uint32_t(i));
  }
  uint32_t head = shape.isTied
                      ? embedding
                      : addUnit("head", shape.vocabulary * shape.hidden);

  Part lookup{Computation::Kind::Vector, 0, 2 * double(row)};
  ComputeOp &first = add(Phase::Forward, lookup);
  first.weights = embedding;
  first.change = row;
  std::vector<Part> block = getBlock();
  std::vector<uint32_t> begins;
  for (uint32_t i = 0; i != uint32_t(shape.layers); ++i) {
    program.recomputable.push_back(i);
    program.cheap.push_back(i);
    begins.push_back(addForward(block, embedding + 1 + i));
  }
  addHead(head);
  for (uint32_t i = uint32_t(shape.layers); i-- != 0;)
    addBackward(block, begins[i], i, embedding + 1 + i);
  ComputeOp &last = add(Phase::Backward, lookup, 1.5);
  last.gradient = embedding;
  last.change = -row;

  program.name = "micro-batch";
  program.count = setup.microBatches - 1;
  if (program.count)
    model.programs.push_back(program);
  program.name = "step";
  program.count = 1;
  addUpdates();
  model.programs.push_back(std::move(program));
  model.persistentBytes =
      persistentBytes * (shape.getNumParameters() / setup.ranks);
  return std::move(model);
}

StepModel fsdp::planner::makeTransformer(const Transformer &shape,
                                         const TrainingSetup &setup,
                                         const Hardware &hardware) {
  return Builder(shape, setup, hardware).build();
}
