//===- RandomProblem.h - Any scheduling problem -----------------*- C++ -*-===//

#ifndef FSDP_TEST_UNIT_PLANNER_RANDOMPROBLEM_H
#define FSDP_TEST_UNIT_PLANNER_RANDOMPROBLEM_H

#include "fsdp/Planner/Scheduling.h"

#include <rapidcheck.h>

#include <numeric>

namespace fsdp::planner::test {

inline std::vector<uint32_t> programOrder(const scheduling::Problem &problem) {
  std::vector<uint32_t> order(problem.operations.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Any problem that `check` accepts, without a limit.
inline scheduling::Problem randomProblem(size_t most = 40) {
  scheduling::Problem problem;
  problem.numStreams = *rc::gen::inRange(1, 6);
  problem.sharesCore = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>())
    problem.contention = *rc::gen::inRange<int64_t>(0, 500);
  bool sharesLinks = *rc::gen::arbitrary<bool>();
  auto count = *rc::gen::inRange<size_t>(0, most);
  for (uint32_t i = 0; i != count; ++i) {
    scheduling::Operation op;
    op.duration = *rc::gen::inRange<int64_t>(0, 20);
    op.stream = *rc::gen::inRange<uint32_t>(0, problem.numStreams);
    if (*rc::gen::inRange(0, 2))
      op.sequence = *rc::gen::inRange<uint32_t>(0, 3);
    op.runsAhead =
        op.stream != scheduling::computeStream && *rc::gen::arbitrary<bool>();
    if (sharesLinks && op.stream != scheduling::computeStream &&
        op.stream != scheduling::copyStream)
      op.links = *rc::gen::element(LinkUse{1024, 0}, LinkUse{0, 1024},
                                   LinkUse{1024, 960}, LinkUse{117, 1024});
    for (int edges = *rc::gen::inRange(0, 3); i && edges; --edges)
      op.after.push_back(*rc::gen::inRange<uint32_t>(0, i));
    problem.operations.push_back(op);
  }
  for (auto buffers = count ? *rc::gen::inRange<size_t>(0, count) : 0; buffers;
       --buffers) {
    auto from = *rc::gen::inRange<uint32_t>(0, count);
    auto until = *rc::gen::inRange<uint32_t>(from, count);
    problem.buffers.push_back(
        {*rc::gen::inRange<int64_t>(0, 100), from, until});
  }
  return problem;
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_RANDOMPROBLEM_H
