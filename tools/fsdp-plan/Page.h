//===- Page.h - A plan as one HTML page -------------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_PAGE_H
#define FSDP_TOOLS_FSDP_PLAN_PAGE_H

#include "Compile.h"

namespace fsdp {

/// The page of a plan, with all that it shows: the report, and the timeline of
/// each program. `title`: what the plan is of.
std::string makePage(llvm::StringRef title, const Compilation &made);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_PAGE_H
