//===- Steps.h - What the steps of a plan have in common --------*- C++ -*-===//
//
// Which fields of a step name buffers, a unit or a communicator: who asks for
// no more than these names no kind of step.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANFILE_STEPS_H
#define FSDP_PLANFILE_STEPS_H

#include "fsdp/PlanFile/PlanFile.h"

#include <array>
#include <type_traits>

namespace fsdp::planfile {

//===----------------------------------------------------------------------===//
// Any step
//===----------------------------------------------------------------------===//

/// Calls `visit` with the table of the command's step, if it is a known one.
template <typename Visit>
void visitStep(const Command &command, Visit &&visit) {
  switch (command.step_type()) {
  case Step::Launch:
    return visit(*command.step_as_Launch());
  case Step::AllGather:
    return visit(*command.step_as_AllGather());
  case Step::ReduceScatter:
    return visit(*command.step_as_ReduceScatter());
  case Step::AllReduce:
    return visit(*command.step_as_AllReduce());
  case Step::Update:
    return visit(*command.step_as_Update());
  case Step::Measure:
    return visit(*command.step_as_Measure());
  case Step::Zero:
    return visit(*command.step_as_Zero());
  case Step::Copy:
    return visit(*command.step_as_Copy());
  case Step::Record:
    return visit(*command.step_as_Record());
  case Step::Wait:
    return visit(*command.step_as_Wait());
  case Step::Piece:
    return visit(*command.step_as_Piece());
  case Step::Accumulate:
    return visit(*command.step_as_Accumulate());
  case Step::NONE:
    return;
  }
}

/// True if the table of a step has a field of this name.
template <typename Table> constexpr bool hasField(std::string_view name) {
  for (std::string_view field : Table::Traits::field_names)
    if (field == name)
      return true;
  return false;
}

/// True of what sends to the ranks of a communicator: a piece only says whose
/// it is.
template <typename Table>
constexpr bool isCollective =
    hasField<Table>("communicator") && !std::is_same_v<Table, Piece>;

/// The unit of a command, or `none`.
inline uint32_t getUnit(const Command &command) {
  uint32_t unit = none;
  visitStep(command, [&](const auto &step) {
    if constexpr (hasField<std::decay_t<decltype(step)>>("unit"))
      unit = step.unit();
  });
  return unit;
}

/// The communicator of a collective; `none` of any other command.
inline uint32_t getCommunicator(const Command &command) {
  uint32_t communicator = none;
  visitStep(command, [&](const auto &step) {
    if constexpr (isCollective<std::decay_t<decltype(step)>>)
      communicator = step.communicator();
  });
  return communicator;
}

/// A name of the schema as it is spelled elsewhere: AllGather, all_gather.
std::string toSnakeCase(std::string_view name);

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

/// The scalars of an update, by their numbers: buffers, or `none`.
constexpr size_t numUpdateScalars = static_cast<size_t>(UpdateScalar::MAX) + 1;
using UpdateScalars = std::array<uint32_t, numUpdateScalars>;

inline UpdateScalars getScalars(const Update &update) {
  return std::array{update.clip_factor(), update.loss_scale(),
                    update.found_inf(), update.skipped()};
}

/// True of what an update multiplies or divides its gradient by, in its place.
constexpr bool scalesGradient(UpdateScalar scalar) {
  return scalar == UpdateScalar::ClipFactor ||
         scalar == UpdateScalar::LossScale;
}

/// True if there is something that does.
inline bool scalesGradient(const Update &update) {
  UpdateScalars scalars = getScalars(update);
  for (size_t i = 0; i != numUpdateScalars; ++i)
    if (scalesGradient(UpdateScalar(i)) && scalars[i] != none)
      return true;
  return false;
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

/// What the fields of steps are called that are buffers, and those that are
/// not: a field with another name is added here, and to `visitBuffers`.
template <typename Table> constexpr bool areFieldsKnown() {
  for (std::string_view field : Table::Traits::field_names) {
    bool isKnown = false;
    for (std::string_view known :
         {"source", "target", "initial", "communicator", "unit", "event", "pre",
          "post", "via", "purpose", "kind", "intervals"})
      isKnown |= field == known;
    if (!isKnown)
      return false;
  }
  return true;
}

template <typename Table, typename Visit>
void visitBuffers(const Plan &, const Table &step, const Visit &visit) {
  static_assert(areFieldsKnown<Table>(), "expected fields that are known");
  if constexpr (hasField<Table>("source"))
    visit(step.source(), false);
  if constexpr (hasField<Table>("target"))
    visit(step.target(), true);
  if constexpr (hasField<Table>("initial"))
    if (step.initial() != none)
      visit(step.initial(), false);
}

template <typename Visit>
void visitBuffers(const Plan &, const Update &update, const Visit &visit) {
  visit(update.parameter(), true);
  visit(update.gradient(), scalesGradient(update));
  for (uint32_t state : *update.states())
    visit(state, true);
  visit(update.hyper(), false);
  for (uint32_t scalar : getScalars(update))
    if (scalar != none)
      visit(scalar, false);
}

template <typename Visit>
void visitBuffers(const Plan &plan, const Launch &launch, const Visit &visit) {
  for (int32_t argument : *launch.args()) {
    if (argument >= 0) {
      visit(static_cast<uint32_t>(argument), false);
      continue;
    }
    const Constant &constant =
        *plan.constants()->Get(static_cast<uint32_t>(~argument));
    if (const Refs *refs = constant.value_as_Refs())
      for (int32_t ref : *refs->values())
        if (ref >= 0)
          visit(static_cast<uint32_t>(ref), false);
  }
  if (launch.results())
    for (uint32_t result : *launch.results())
      if (result != none)
        visit(result, true);
}

/// Calls `visit(buffer, isWritten)` for each buffer that a command touches, in
/// the order of the schema. What is written may be read, too. Which arguments
/// of a launch are written, its operator's schema says alone.
template <typename Visit>
void forEachBuffer(const Plan &plan, const Command &command,
                   const Visit &visit) {
  visitStep(command,
            [&](const auto &step) { visitBuffers(plan, step, visit); });
}

} // namespace fsdp::planfile

#endif // FSDP_PLANFILE_STEPS_H
