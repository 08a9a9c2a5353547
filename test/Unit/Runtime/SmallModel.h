//===- SmallModel.h - Training the small plan -------------------*- C++ -*-===//
#ifndef FSDP_TEST_UNIT_RUNTIME_SMALLMODEL_H
#define FSDP_TEST_UNIT_RUNTIME_SMALLMODEL_H

#include "Support/TestPlan.h"
#include "Tensors.h"

namespace fsdp::test {

/// A session together with the bytes of its plan.
struct Loaded {
  explicit Loaded(TestPlan plan, RankRange ranks, SessionOptions options = {})
      : bytes(plan.flatbuffer()),
        session(*planfile::GetPlan(bytes.data()), ranks, std::move(options)) {}
  std::vector<std::uint8_t> bytes;
  Session session;
};

inline at::Tensor initialW() {
  return at::arange(16, at::kFloat).view({4, 4}) / 7;
}
inline at::Tensor initialB() { return at::arange(4, at::kFloat) / 3; }

/// Another batch for every rank and step. Positive, since AdamW makes much of
/// the rounding of a gradient that is nearly zero.
inline at::Tensor batch(unsigned step, unsigned rank) {
  return at::sin(at::arange(8, at::kFloat).view({2, 4}) + 3.0 * step + rank) +
         1.5;
}

inline void feed(Session &session, unsigned step) {
  for (unsigned r = session.ranks().first; r != session.ranks().end(); ++r)
    session.setInput(r, 0, toHost(batch(step, r)));
}

inline void load(Session &session) {
  session.write(TensorName::parameter("tied.w"), toHost(initialW()));
  session.write(TensorName::parameter("b"), toHost(initialB().to(at::kDouble)));
}

/// A plan whose unit begins with padding, and holds tensors of many shapes.
inline TestPlan makeOddPlan(std::uint32_t ranks) {
  TestPlan plan = makeSmallPlan(ranks);
  plan.units[0].parameters = {
      {.name = "cube", .sizes = {2, 3, 2}, .offset = 1},
      {.name = "scalar", .sizes = {}, .offset = 13},
      {.name = "turned",
       .sizes = {2, 3},
       .offset = 14,
       .strides = TestPlan::Numbers{1, 2}},
      {.name = "empty", .sizes = {0, 3}, .offset = 20},
      {.name = "line", .sizes = {7}, .offset = 21},
  };
  return plan;
}

/// The small plan on a mesh of two replicas of two shards.
inline TestPlan makeHybridPlan() {
  TestPlan plan = makeSmallPlan(2);
  plan.mesh = {{"replicate", 2}, {"shard", 2}};
  plan.groups = {{"shard", {1}}, {"replicate", {0}}};
  std::uint32_t loss = 0;
  while (plan.buffers[loss].role != planfile::BufferRole::Loss)
    ++loss;
  auto &commands = plan.programs.back().commands;
  TestPlan::Command update = commands.back();
  commands.pop_back();
  std::uint32_t gradient = plan.units[0].gradient;
  plan.on(planfile::Stream::AllReduce, planfile::Role::Backward);
  plan.allReduce(gradient, gradient, 0, 1, 2, 1);
  plan.allReduce(loss, loss, planfile::none, 1, 2, 1);
  plan.programs.back().commands.push_back(update);
  return plan;
}

/// The small plan with an operator before all others that fails if input 1 is
/// out of range.
inline TestPlan makePickingPlan(unsigned ranks) {
  TestPlan plan = makeSmallPlan(ranks);
  TestPlan::Buffer index{planfile::BufferRole::Input, {1}};
  index.dtype = planfile::DType::I64;
  index.index = 1;
  index.offset = plan.deviceBytes;
  std::uint32_t i = plan.add(index);
  TestPlan::Buffer picked{planfile::BufferRole::Transient, {1, 4}};
  picked.offset = plan.deviceBytes + 64;
  std::uint32_t p = plan.add(picked);
  plan.deviceBytes += 128;
  std::uint32_t x = 0;
  while (plan.buffers[x].role != planfile::BufferRole::Input)
    ++x;
  plan.on(planfile::Stream::Compute, planfile::Role::Forward)
      .launch(
          "aten::index_select.out(Tensor self, int dim, Tensor index, *, "
          "Tensor(a!) out) -> Tensor(a!)",
          {std::int32_t(x), plan.integer(0), std::int32_t(i), std::int32_t(p)},
          "pick");
  auto &commands = plan.programs.back().commands;
  std::rotate(commands.begin(), commands.end() - 1, commands.end());
  return plan;
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_SMALLMODEL_H
