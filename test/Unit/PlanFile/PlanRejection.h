//===- PlanRejection.h - Why a plan file is rejected ------------*- C++ -*-===//
//
// What the tests of plan files and of their checks share.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_PLANFILE_PLANREJECTION_H
#define FSDP_TEST_UNIT_PLANFILE_PLANREJECTION_H

#include "Support/TestPlan.h"

namespace fsdp::test {

inline std::string rejection(TestPlan plan) {
  planfile::Expected<planfile::PlanFile> file = plan.seal();
  return file ? "accepted" : file.error().message;
}

/// Damages the small plan and returns why it is rejected.
template <typename Damage> std::string rejectionAfter(Damage damage) {
  TestPlan plan = makeSmallPlan();
  damage(plan);
  return rejection(std::move(plan));
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_PLANFILE_PLANREJECTION_H
