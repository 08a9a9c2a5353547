//===- PlanCheckMemory.cpp - What memory a plan's commands may touch ------===//

#include "PlanCheck.h"

#include "fsdp/PlanFile/Steps.h"

#include <algorithm>
#include <tuple>

namespace fsdp::planfile {

/// Inputs, outputs and losses are of one program, gathered parameters of the
/// parts of a step.
bool PlanChecker::checkOwner(const Place &place, uint32_t index) {
  const Buffer &root = buffer(buffer(index).root());
  if (isOfProgram(root.role()) && root.owner() != program)
    return reject(place.text(), "inputs, outputs and losses of its own program",
                  ofProgram(root, describeBuffer(index)));
  if (root.role() == BufferRole::Unsharded && getPart() == Part::Whole)
    return reject(place.text(), "parts of a step to read what one gathers",
                  describeBuffer(index) + " of role Unsharded");
  return true;
}

bool PlanChecker::checkRead(const Place &place, uint32_t index, Role role) {
  if (!checkIndex(place, "buffer", index, windows.size()))
    return false;
  if (role != Role::Init)
    return checkOwner(place, index);
  uint32_t root = buffer(index).root();
  switch (buffer(root).role()) {
  case BufferRole::ModelBuffer:
    readOnce.insert(root);
    break;
  case BufferRole::Constant:
  case BufferRole::Result:
  case BufferRole::Transient:
    break;
  default:
    return reject(place.text(), "Init commands to read what no step changes",
                  describeBuffer(index) + " of role " +
                      EnumNameBufferRole(buffer(root).role()));
  }
  return true;
}

bool PlanChecker::checkWrite(const Place &place, uint32_t index, Role role) {
  if (!checkIndex(place, "buffer", index, windows.size()) ||
      !checkOwner(place, index))
    return false;
  if (role != Role::Init)
    writers.try_emplace(buffer(index).root(), program);
  if (!windows[index].isInjective)
    return reject(place.text(), "a target whose elements have their own bytes",
                  describeBuffer(index) + ", where some share them");
  bool allowed = true;
  switch (buffer(buffer(index).root()).role()) {
  case BufferRole::Constant:
  case BufferRole::Input:
  case BufferRole::Hyper:
    allowed = false;
    break;
  case BufferRole::Result:
    allowed = role == Role::Init;
    break;
  case BufferRole::Unsharded:
    if (getPart() != Part::First)
      return reject(place.text(),
                    "the first micro-batch alone to write what it gathers",
                    describeBuffer(index) + " of role Unsharded");
    break;
  case BufferRole::Shard:
  case BufferRole::OptimizerState:
    allowed = role == Role::Init || role == Role::Update;
    break;
  default:
    break;
  }
  return allowed ||
         reject(place.text(),
                std::string("a buffer that ") + EnumNameRole(role) +
                    " commands may write",
                describeBuffer(index) + " of role " +
                    EnumNameBufferRole(buffer(buffer(index).root()).role()));
}

bool PlanChecker::checkBuffers(const Place &place, const Command &command) {
  bool fits = true;
  forEachBuffer(plan, command, [&](uint32_t index, bool isWritten) {
    fits = fits && spend(place, 1) &&
           (isWritten ? checkWrite(place, index, command.role())
                      : checkRead(place, index, command.role()));
  });
  return fits;
}

bool PlanChecker::checkApart(const Place &place,
                             std::vector<uint32_t> targets) {
  auto key = [&](uint32_t index) {
    return std::tuple(buffer(index).space(), windows[index].begin, index);
  };
  auto isEmpty = [&](uint32_t index) { return windows[index].numel == 0; };
  targets.erase(std::remove_if(targets.begin(), targets.end(), isEmpty),
                targets.end());
  std::sort(targets.begin(), targets.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  for (size_t i = 1; i < targets.size(); ++i) {
    uint32_t before = targets[i - 1], index = targets[i];
    if (buffer(before).space() == buffer(index).space() &&
        windows[before].end > windows[index].begin)
      return reject(place.text(), "targets apart from each other",
                    describeBuffer(index) + " across " +
                        describeBuffer(before));
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Host and device
//===----------------------------------------------------------------------===//

/// The device calls operators and sends; what is done to a shard is done where
/// it is, by hyper-parameters of the host; and copies go between the two.
bool PlanChecker::checkSpaces(const Place &place, const Command &command) {
  auto isOnHost = [&](uint32_t index) {
    return buffer(index).space() != Space::Device;
  };
  bool expected = false;
  uint32_t hyper = none;
  if (command.step_type() == Step::Copy)
    return true;
  if (const Update *update = command.step_as_Update()) {
    expected = isOnHost(update->gradient());
    hyper = update->hyper();
  } else if (const Measure *measure = command.step_as_Measure()) {
    expected = isOnHost(measure->source());
  } else if (const Accumulate *add = command.step_as_Accumulate()) {
    expected = isOnHost(add->target());
  }
  bool fits = true;
  forEachBuffer(plan, command, [&](uint32_t index, bool) {
    if (!fits || index == hyper || isOnHost(index) == expected)
      return;
    fits =
        reject(place.text(),
               expected ? "host memory, where its states are" : "device memory",
               describeBuffer(index) + " in " +
                   EnumNameSpace(buffer(index).space()) + " memory");
  });
  return fits;
}

} // namespace fsdp::planfile
