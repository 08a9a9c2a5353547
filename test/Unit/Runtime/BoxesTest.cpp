//===- BoxesTest.cpp - Parts of tensors that ranks hold -------------------===//
#include "SmallModel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using testing::HasSubstr;
using testing::ThrowsMessage;
using namespace fsdp::test;
using Kind = TensorName::Kind;

namespace {

at::Tensor part(const at::Tensor &whole, const Box &box) {
  at::Tensor result = whole;
  for (std::size_t axis = 0; axis != box.sizes.size(); ++axis)
    result = result.narrow(static_cast<std::int64_t>(axis), box.offsets[axis],
                           box.sizes[axis]);
  return result;
}

at::Tensor valuesOf(const Session &session, const TensorName &name) {
  std::vector<std::int64_t> sizes = session.sizes(name);
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes) + 1;
}

// covers: summon_full_params
TEST(Boxes, OfAllRanksAreTheWholeTensor) {
  for (unsigned ranks : {1u, 2u, 3u, 4u}) {
    Loaded loaded(makeOddPlan(ranks), ranks);
    Session &session = loaded.session;
    for (const TensorName &parameter : session.tensors(Kind::Parameter)) {
      SCOPED_TRACE(std::string(parameter.name) + " on " +
                   std::to_string(ranks));
      for (TensorName name :
           {parameter, TensorName::optimizerState(parameter.name, "exp_avg")}) {
        at::Tensor whole = valuesOf(session, name);
        session.writeBox(name,
                         {std::vector<std::int64_t>(whole.sizes().size()),
                          whole.sizes().vec()},
                         toHost(whole));
        at::Tensor count = at::zeros(whole.sizes());
        for (unsigned rank = 0; rank != ranks; ++rank) {
          std::vector<BoxedTensor> boxes = session.boxes(name, rank);
          EXPECT_LE(boxes.size(), whole.dim() == 0 ? 1u : 2u * whole.dim() - 1);
          for (const BoxedTensor &box : boxes) {
            EXPECT_TRUE(at::equal(toTorch(box.value), part(whole, box.box)));
            part(count, box.box).add_(1);
          }
        }
        EXPECT_TRUE(at::equal(count, at::ones(whole.sizes())));
      }
      EXPECT_TRUE(at::equal(toTorch(session.read(parameter)),
                            valuesOf(session, parameter)));
    }
    EXPECT_THAT(session.findDirtyPadding(false), testing::IsEmpty());
  }
}

// Another number of ranks has cut the tensor in other places.
// covers: summon_full_params: writeback
TEST(Boxes, OfAnotherSessionCanBeWritten) {
  for (unsigned from : {1u, 2u, 3u, 4u})
    for (unsigned to : {1u, 2u, 3u, 4u}) {
      Loaded source(makeOddPlan(from), from), target(makeOddPlan(to), to);
      for (const TensorName &name : source.session.tensors(Kind::Parameter)) {
        source.session.write(name, toHost(valuesOf(source.session, name)));
        for (unsigned rank = 0; rank != from; ++rank)
          for (const BoxedTensor &box : source.session.boxes(name, rank))
            target.session.writeBox(name, box.box, box.value);
        EXPECT_EQ(target.session.read(name).bytes,
                  source.session.read(name).bytes);
      }
    }
}

// What is written through a view is what the session has.
TEST(Boxes, ViewsAreTheSessionsMemory) {
  Loaded loaded(makeOddPlan(3), 3);
  Session &session = loaded.session;
  for (const TensorName &name : session.tensors(Kind::Parameter)) {
    at::Tensor whole = valuesOf(session, name);
    for (unsigned rank = 0; rank != 3; ++rank)
      for (const BoxView &view : session.views(name, rank))
        at::from_blob(view.data, view.box.sizes, view.strides, at::kFloat)
            .copy_(part(whole, view.box));
    EXPECT_TRUE(at::equal(toTorch(session.read(name)), whole));
  }
  EXPECT_THAT(session.findDirtyPadding(false), testing::IsEmpty());
  EXPECT_EQ(session.gradientNorm(), std::nullopt);
}

// covers: Synchronize
TEST(Boxes, OfReplicasAreEqual) {
  Loaded loaded(makeHybridPlan(), 4);
  load(loaded.session);
  for (unsigned rank : {0u, 1u}) {
    auto boxes = loaded.session.boxes(TensorName::parameter("w"), rank);
    auto replica =
        loaded.session.boxes(TensorName::parameter("tied.w"), rank + 2);
    ASSERT_EQ(boxes.size(), replica.size());
    for (std::size_t i = 0; i != boxes.size(); ++i)
      EXPECT_EQ(boxes[i].value.bytes, replica[i].value.bytes);
  }
}

// covers: Synchronize
TEST(Boxes, OfAModelBufferAreAllOfIt) {
  TestPlan plan = makeSmallPlan(2);
  TestPlan::Buffer buffer{planfile::BufferRole::ModelBuffer, {2, 2}};
  buffer.name = "running";
  buffer.offset = plan.deviceBytes;
  plan.deviceBytes += 64;
  plan.add(buffer);
  Loaded loaded(plan, 2);
  TensorName name = TensorName::buffer("running");
  at::Tensor value = valuesOf(loaded.session, name);
  loaded.session.write(TensorName::buffer("running"), toHost(value));
  loaded.session.writeBox(name, {{1, 0}, {1, 1}},
                          toHost(at::full({1, 1}, 9.f)));
  value[1][0] = 9;
  for (unsigned rank : {0u, 1u}) {
    auto boxes = loaded.session.boxes(name, rank);
    ASSERT_EQ(boxes.size(), 1u);
    EXPECT_TRUE(at::equal(toTorch(boxes[0].value), value));
  }
}

TEST(Boxes, ThatDoNotFitAreRejected) {
  Loaded loaded(makeSmallPlan(2), 2);
  auto rejection = [&](Box box, at::Tensor value) -> std::string {
    try {
      loaded.session.writeBox(TensorName::parameter("w"), box, toHost(value));
    } catch (const Error &error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(rejection({{3, 0}, {2, 4}}, at::zeros({2, 4})),
            "w: expected a box of a tensor of 4x4, found one of 2x4 at 3x0");
  EXPECT_EQ(rejection({{-1, 0}, {2, 4}}, at::zeros({2, 4})),
            "w: expected a box of a tensor of 4x4, found one of 2x4 at -1x0");
  EXPECT_EQ(rejection({{0}, {4}}, at::zeros({4})),
            "w: expected a box of a tensor of 4x4, found one of 4 at 0");
  EXPECT_EQ(rejection({{0, 0}, {INT64_MAX, 4}}, at::zeros({2, 4})),
            "w: expected a box of a tensor of 4x4, found one of "
            "9223372036854775807x4 at 0x0");
  EXPECT_EQ(rejection({{0, 0}, {2, 2}}, at::zeros({2, 4})),
            "w: expected values for a box of 2x2, given 2x4");
  EXPECT_EQ(rejection({{1, 1}, {2, 2}}, at::ones({2, 2})), "accepted");
  EXPECT_THAT(
      [&] {
        static_cast<void>(loaded.session.boxes(TensorName::parameter("w"), 2));
      },
      ThrowsMessage<Error>(HasSubstr(
          "expected one of the ranks of this process, 0 to 1, found 2")));
}

} // namespace
