//===- Report.h - One page about a plan -------------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_REPORT_H
#define FSDP_TOOLS_FSDP_PLAN_REPORT_H

#include "Summary.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace fsdp {

void printReport(const PlanSummary &summary, llvm::raw_ostream &os);
llvm::json::Value toJSON(const PlanSummary &summary);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_REPORT_H
