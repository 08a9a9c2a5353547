//===- OneRank.h - A plan of one rank ---------------------------*- C++ -*-===//
#ifndef FSDP_TEST_UNIT_RUNTIME_ONERANK_H
#define FSDP_TEST_UNIT_RUNTIME_ONERANK_H

#include "Support/TestPlan.h"
#include "Tensors.h"

#include <optional>

namespace fsdp::test {

/// A plan of one rank: inputs, launches, outputs.
struct OneRank {
  TestPlan plan;

  OneRank() {
    plan.mesh = {{"shard", 1}};
    plan.groups = {{"shard", {0}}};
    plan.programs = {{"step", {}, 0}};
    plan.on(planfile::Stream::Compute, planfile::Role::Forward);
  }
  std::uint32_t add(planfile::BufferRole role, TestPlan::Numbers sizes,
                    std::uint32_t index = planfile::none,
                    planfile::DType type = planfile::DType::F32,
                    std::optional<TestPlan::Numbers> strides = {}) {
    TestPlan::Buffer buffer{role, std::move(sizes)};
    buffer.dtype = type;
    buffer.offset = plan.deviceBytes;
    buffer.index = index;
    buffer.strides = std::move(strides);
    std::uint64_t elements = 1;
    for (std::int64_t size : buffer.sizes)
      elements *= static_cast<std::uint64_t>(size);
    plan.deviceBytes += (elements * 8 + 63) / 64 * 64;
    return plan.add(std::move(buffer));
  }
  std::uint32_t input(TestPlan::Numbers sizes, std::uint32_t index,
                      planfile::DType type = planfile::DType::F32) {
    return add(planfile::BufferRole::Input, std::move(sizes), index, type);
  }
  std::uint32_t output(TestPlan::Numbers sizes, std::uint32_t index,
                       planfile::DType type = planfile::DType::F32) {
    return add(planfile::BufferRole::Output, std::move(sizes), index, type);
  }
  Session &load(SessionOptions options = {}) {
    bytes = plan.flatbuffer();
    session.emplace(*planfile::GetPlan(bytes.data()), 1, std::move(options));
    return *session;
  }

private:
  std::vector<std::uint8_t> bytes;
  std::optional<Session> session;
};

inline std::int32_t arg(std::uint32_t buffer) {
  return static_cast<std::int32_t>(buffer);
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_ONERANK_H
