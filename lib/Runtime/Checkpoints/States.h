//===- States.h - Optimizer states by parameter -----------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_CHECKPOINTS_STATES_H
#define FSDP_LIB_RUNTIME_CHECKPOINTS_STATES_H

#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/PlanFile/PlanFile.h"

namespace fsdp {

/// What PyTorch's get_optimizer_state_dict, flattened, calls a state.
inline std::string spellState(std::string_view parameter,
                              std::string_view state) {
  std::string text(archive::Checkpoint::statePrefix);
  return text.append(parameter).append(".").append(
      state == "momentum" ? "momentum_buffer" : state);
}

/// Calls `function` with the unit (by number) of each trainable parameter, the
/// parameter and each buffer that is a state of it.
template <typename Function>
void forEachState(const planfile::Plan &plan, const Function &function) {
  for (const planfile::Buffer *buffer : *plan.buffers())
    if (buffer->role() == planfile::BufferRole::OptimizerState)
      for (const planfile::Parameter *parameter :
           *plan.units()->Get(buffer->owner())->parameters())
        if (parameter->trainable())
          function(buffer->owner(), *parameter, *buffer);
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_CHECKPOINTS_STATES_H
