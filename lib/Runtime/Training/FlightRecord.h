//===- FlightRecord.h - Who has come to which collective --------*- C++ -*-===//
//
// When a run ends because ranks wait for one another, each process tells what
// its ranks did last: one line for each of their latest collectives, which the
// process that says why the run has ended puts together.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_FLIGHTRECORD_H
#define FSDP_LIB_RUNTIME_TRAINING_FLIGHTRECORD_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

namespace fsdp {

/// A line for each of the latest collectives of the ranks here, for
/// `describeFlights`.
std::string recordFlights(const planfile::PlanFile &plan,
                          const Session &session);

/// What the processes have recorded, as lines for people: for each collective
/// that is under way, who has come to it and who has not. Nothing if none is.
std::vector<std::string>
describeFlights(const std::vector<std::string> &records);

/// One record as lines for people: all of it.
std::vector<std::string> spellFlights(const std::string &record);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_FLIGHTRECORD_H
