//===- Data.h - Batches out of a file ---------------------------*- C++ -*-===//
//
// Training data for a plan: a safetensors file with the inputs by their names,
// or as `in_0, in_1, ...`, whose leading axis counts batches; or a file of
// little-endian tokens that is cut into the plan's batch x sequence and given
// to both inputs of a graph over (input_ids, labels). All is checked when the
// file is opened, and tokens again when they are read, against the embedding's
// rows. Rejections are `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_DATA_H
#define FSDP_RUNTIME_DATA_H

#include "fsdp/Archive/PlanFile.h"
#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Runtime/Session.h"

#include <variant>

namespace fsdp {

/// What a plan takes as one of its inputs.
struct InputSpec {
  planfile::DType type;
  std::vector<std::int64_t> sizes;
  std::string name; ///< The model's; empty if the plan has none.

  std::size_t numel() const;
  std::size_t bytes() const;
};

/// The program of this name that is no `init`; throws if there is none.
std::uint32_t findProgram(const planfile::PlanFile &plan,
                          std::string_view name);

/// The names of the programs that one step of `program` runs, one for each of
/// its micro-batches; throws if there is none.
std::vector<std::string> getStepPrograms(const planfile::PlanFile &plan,
                                         std::string_view program);

/// The inputs of a program, or of each micro-batch of its step, by their
/// numbers.
std::vector<InputSpec> getInputs(const planfile::PlanFile &plan,
                                 std::string_view program = "step");

class Data {
public:
  /// Opens a file for a program of `plan`: one of tokens unless its name ends
  /// in
  /// `.safetensors`. `tokenBits` is the size of a token in the file, 16 or 32.
  /// Rejects files with fewer batches than the plan has ranks.
  static Data open(const std::string &path, const planfile::PlanFile &plan,
                   unsigned tokenBits = 16, std::string_view program = "step");

  std::uint64_t batches() const { return count; }

  /// Input `index` of batch number `batch`, which wraps at the end. Valid until
  /// the next call. Throws if the file has been changed.
  TensorView input(std::size_t index, std::uint64_t batch);

private:
  using File = std::variant<archive::Safetensors, archive::InputFile>;

  Data(std::string path, File file, const planfile::PlanFile &plan,
       unsigned tokenBits, std::string_view program);
  void openTensors(const archive::Safetensors &file);
  void openTokens(const archive::InputFile &file);
  std::size_t batchBytes(std::size_t index) const;
  void readBatches(std::size_t index, std::uint64_t first,
                   std::uint64_t number);
  void checkBatches(unsigned ranks);

  std::string path;
  File file;
  std::vector<InputSpec> inputs;
  std::uint64_t rows; // of the embedding of input 0; 0 if there is none
  unsigned tokenBits;
  std::vector<const archive::TensorInfo *> tensors; // of each input
  std::uint64_t count = 0;
  std::vector<std::byte> content;   // what was read last
  std::vector<std::byte> converted; // the same in the input's dtype
};

} // namespace fsdp

#endif // FSDP_RUNTIME_DATA_H
