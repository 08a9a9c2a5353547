//===- Explain.h - Where the time and the memory of a step go ---*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_EXPLAIN_H
#define FSDP_TOOLS_FSDP_PLAN_EXPLAIN_H

#include "Summary.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace fsdp {

/// What is alive at the peak: a line for each kind, with the layers that hold
/// most of it.
void printPeak(const PlanSummary &summary, llvm::raw_ostream &os);
llvm::json::Array peakToJSON(const PlanSummary &summary);

/// How long a step takes, and for which transfers the compute stream stands
/// still. Nothing is printed without costs, and the JSON is null.
void printPrediction(const PlanSummary &summary, llvm::raw_ostream &os);
llvm::json::Value predictionToJSON(const PlanSummary &summary);

/// How good decisions are: the bound, and the best of what others decide within
/// the budget. Nothing is printed without decisions, and the JSON is null.
void printSearch(const PlanSummary &summary, llvm::raw_ostream &os);
llvm::json::Value searchToJSON(const PlanSummary &summary);
/// Memory and time of what others decide: the Pareto front is made of these.
llvm::json::Array pointsToJSON(const PlanSummary &summary);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_EXPLAIN_H
