//===- Diff.h - What differs between two plans ------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_DIFF_H
#define FSDP_TOOLS_FSDP_PLAN_DIFF_H

namespace fsdp {

/// `fsdp-plan diff a.plan b.plan`: prints what differs. Returns the exit code:
/// 0 if the files are the same, 1 if they differ, 2 after an error. `argv`
/// begins with the name of the command.
int diffPlans(int argc, char **argv);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_DIFF_H
