//===- Describe.h - The commands of a plan in words -------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_TRACING_DESCRIBE_H
#define FSDP_LIB_RUNTIME_TRACING_DESCRIBE_H

#include "fsdp/PlanFile/PlanFile.h"

namespace fsdp {

/// A command of a plan as its parts.
struct CommandFacts {
  std::string name; ///< "aten::mm.out", "all_gather".
  std::uint32_t unit = planfile::none;
  std::uint32_t communicator = planfile::none; ///< Collectives only.
  std::vector<std::uint32_t> buffers;          ///< All that it touches.
};
CommandFacts getFacts(const planfile::PlanFile &plan,
                      const planfile::Command &command);

/// "all_reduce"
const char *getName(planfile::Stream stream);

/// The dense size in bytes of a buffer.
std::uint64_t getBytes(const planfile::PlanFile &plan, std::uint32_t buffer);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRACING_DESCRIBE_H
