//===- Operators.h - The plan's operators and constants ---------*- C++ -*-===//
//
// Finds operators in PyTorch's dispatcher and turns the constants of a plan
// into arguments. What is unknown, unsafe or of another type than the schema
// says is rejected with the operator's name, and so is what draws random
// numbers from anything but the rank's generator.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_OPERATORS_H
#define FSDP_LIB_RUNTIME_EXECUTION_OPERATORS_H

#include "Memory.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string>

namespace fsdp {

/// The operator with this full name ("aten::add.out") and schema. `trusted`:
/// names that may run although the table of facts does not say so.
c10::OperatorHandle resolveOperator(const std::string &name,
                                    std::string_view schema,
                                    std::span<const std::string> trusted);

/// The arguments of a launch, ready to be copied and called. Where the operator
/// takes a generator, it is given `generator`; what draws without one is
/// rejected.
std::vector<c10::IValue> makeArguments(const c10::OperatorHandle &op,
                                       const planfile::Plan &plan,
                                       const planfile::Launch &launch,
                                       Memory &memory, Device &device,
                                       const at::Generator &generator);

/// The buffers that a launch reads and writes (in place, `out=` or results).
struct Accesses {
  std::vector<std::uint32_t> reads, writes;
};
Accesses accessesOf(const c10::FunctionSchema &schema,
                    const planfile::Plan &plan, const planfile::Launch &launch);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_OPERATORS_H
