//===- PlanFile.h - The plan file as bytes ----------------------*- C++ -*-===//
//
// Reads and writes plan files: a FlatBuffer (schema/plan.fbs) and a trailer of
// 16 bytes, the xxHash3-128 of all before it. A plan is untrusted input, so a
// `PlanFile` exists only where everything has been checked: the checksum, the
// structure, and the meaning as far as it can be known without a dispatcher.
// What is read from one needs no check of indices, enums or bounds again.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANFILE_PLANFILE_H
#define FSDP_PLANFILE_PLANFILE_H

#include "fsdp/Archive/Expected.h"
#include "fsdp/Schema/plan_generated.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::planfile {

using archive::Error;
using archive::Expected;

/// The version of the schema that this program writes and reads.
inline constexpr uint32_t planVersion = 2;

/// An index that names nothing.
inline constexpr uint32_t none = 0xffffffff;

/// A checked plan, holding its bytes.
class PlanFile {
public:
  /// Reads the file at `path`.
  static Expected<PlanFile> open(const std::string &path);

  /// Checks the bytes of a whole file; `name` stands in rejections for the
  /// path.
  static Expected<PlanFile> fromBytes(std::string name,
                                      std::vector<uint8_t> bytes);

  /// Makes a file of a finished FlatBuffer by adding the trailer, and checks
  /// it: a plan that would be rejected is never written.
  static Expected<PlanFile> seal(std::string name, const uint8_t *data,
                                 size_t size);

  /// Writes the file to `path`, where it appears only when all of it is on the
  /// disk: it is written under another name, synchronised and renamed.
  Expected<size_t> write(const std::string &path) const;

  const std::string &name() const { return fileName; }

  /// The root of the plan, valid as long as this object or the one that it was
  /// moved to.
  const Plan &plan() const { return *GetPlan(content.data()); }
  const Plan *operator->() const { return &plan(); }

  /// The string with the number `index`; empty for `none`.
  std::string_view string(uint32_t index) const;

  /// The shape with the number `index`.
  const flatbuffers::Vector<int64_t> &shape(uint32_t index) const {
    return *plan().shapes()->Get(index)->values();
  }

  /// The whole file, with its trailer.
  const std::vector<uint8_t> &bytes() const { return content; }

private:
  PlanFile(std::string name, std::vector<uint8_t> content)
      : fileName(std::move(name)), content(std::move(content)) {}

  std::string fileName;
  std::vector<uint8_t> content;
};

/// A finished FlatBuffer followed by its trailer, unchecked.
std::vector<uint8_t> appendTrailer(const uint8_t *data, size_t size);

/// The size of one element in bytes.
size_t getItemSize(DType dtype);

/// How many ranks a plan is for, and how many are in each group of one of its
/// communicators.
uint32_t getRankCount(const Plan &plan);
uint32_t getGroupSize(const Plan &plan, uint32_t communicator);

/// True for what keeps its content from one step to the next.
bool isPersistent(BufferRole role);
/// True of what `Buffer.owner` is a program of: inputs, outputs and the loss.
bool isOfProgram(BufferRole role);

/// What buffers of role Accumulator are called.
constexpr std::string_view unshardedGradient = "unsharded_gradient",
                           partialGradient = "partial_gradient",
                           shardedGradient = "sharded_gradient";

/// What buffers of role Unsharded mean, in what programs mean.
constexpr std::string_view unshardedParameter = "unsharded_parameter";

/// What the program of a step is called that is made of one graph.
constexpr std::string_view defaultProgram = "step";

/// The programs that one step of `program` runs, by their numbers: one for each
/// of its micro-batches if the plan has such parts and no program of that name,
/// else the program of that name; none if there is none. The plan must be
/// checked.
std::vector<uint32_t> getStepPrograms(const Plan &plan,
                                      std::string_view program);

/// What one step of `program` was predicted to take, as `Prediction` has it for
/// each of its programs: in seconds, and how many of them its flops take at the
/// peak of the machine, if that is known. Nothing if the plan has been made
/// without costs.
struct StepPrediction {
  double seconds = 0, exposed = 0, flops = 0;
  std::optional<double> atPeak;

  /// The model FLOPs utilisation of a step that has taken so long, a fraction.
  std::optional<double> mfu(double taken) const;
};
std::optional<StepPrediction> predictStep(const Plan &plan,
                                          std::string_view program);

/// The numbers in a buffer of role Hyper, in their order.
enum class Hyper : uint8_t {
  LearningRate,
  Beta1,
  Beta2,
  Epsilon,
  WeightDecay,
  Momentum,
  Update ///< The number of the update, from 1.
};
constexpr uint32_t numHypers = 7;
/// The name of a decay group whose weight decay is 0.
constexpr std::string_view noDecay = "no_decay";

/// True of the buffers of a grad scaler, which are the same on all ranks.
constexpr bool isGradScalerState(std::string_view buffer) {
  constexpr std::string_view prefix = "grad_scaler.";
  return buffer.substr(0, prefix.size()) == prefix;
}

/// That of them which counts the updates that were skipped.
constexpr std::string_view skippedUpdates = "grad_scaler.skipped";

/// What a rule is called, and the names of its states, of which an update has
/// at least `required`.
struct UpdateRuleFacts {
  std::string_view name;
  std::vector<std::string_view> states;
  size_t required;
};
/// The rule must be one.
const UpdateRuleFacts &getFacts(UpdateRule rule);

/// One collective as a line of its communicator's sequence: what all members
/// must agree on. `bytes` is the size of the source. `unit` may be empty.
/// "all_gather 50816 bytes f32 h.0"; "all_reduce max 8 bytes f64"
std::string describeCollective(Step kind, uint64_t bytes, DType dtype,
                               std::string_view unit,
                               ReduceKind reduce = ReduceKind::Sum);

/// The digest of a sequence: xxHash3-64 in hexadecimal over its lines.
std::string digestCollectives(const std::vector<std::string> &sequence);

/// The sequence of each communicator: all programs of the plan in file order.
/// All indices in `plan` must be in range.
std::vector<std::vector<std::string>> getCollectives(const Plan &plan);

} // namespace fsdp::planfile

#endif // FSDP_PLANFILE_PLANFILE_H
