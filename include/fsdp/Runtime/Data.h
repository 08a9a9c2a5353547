//===- Data.h - Batches out of a file ---------------------------*- C++ -*-===//
//
// Training data for a plan: a safetensors file with `in_0, in_1, ...` whose
// leading axis counts batches, or a file of little-endian tokens that is cut
// into the plan's batch x sequence and given to both inputs of a graph over
// (input_ids, labels). All is checked when the file is opened, the tokens
// against the embedding's rows. Refusals are `fsdp::Error`.
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

  std::size_t numel() const;
  std::size_t bytes() const;
};

/// The inputs of a plan by their numbers.
std::vector<InputSpec> getInputs(const planfile::PlanFile &plan);

class Data {
public:
  /// Opens a file for `plan`: one of tokens unless its name ends in
  /// `.safetensors`. `tokenBits` is the size of a token in the file, 16 or 32.
  static Data open(const std::string &path, const planfile::PlanFile &plan,
                   unsigned tokenBits = 16);

  std::uint64_t batches() const { return count; }

  /// Input `index` of batch number `batch`, which wraps at the end. Valid until
  /// the next call.
  TensorView input(std::size_t index, std::uint64_t batch);

private:
  using File = std::variant<archive::Safetensors, archive::MappedFile>;

  Data(std::string path, File file, std::vector<InputSpec> inputs,
       unsigned tokenBits)
      : path(std::move(path)), file(std::move(file)), inputs(std::move(inputs)),
        tokenBits(tokenBits) {}
  void openTensors(const archive::Safetensors &file, std::uint64_t rows);
  void openTokens(const archive::MappedFile &file, std::uint64_t rows);

  std::string path;
  File file;
  std::vector<InputSpec> inputs;
  unsigned tokenBits;
  std::vector<std::string_view> contents; // of each input; all batches
  std::uint64_t count = 0;
  std::vector<std::byte> converted; // tokens of one batch in the input's dtype
};

} // namespace fsdp

#endif // FSDP_RUNTIME_DATA_H
