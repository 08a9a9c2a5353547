//===- Data.h - Batches out of files ----------------------------*- C++ -*-===//
//
// Training data for a plan is a row of samples:
//  - the sequences of files of tokens, each of the plan's last axis. A batch
//    has as many as the plan's other axes say, for both inputs of a graph over
//    (input_ids, labels). A file is raw little-endian tokens, or `.npy`; a
//    folder is all of its `.bin` and `.npy` files in the order of their names;
//  - or the entries along the leading axis of the tensors in a `.safetensors`
//    file, which are called as the plan's inputs or `in_0, in_1, ...`. A batch
//    is one entry;
//  - or the same in messages on the standard input: 8 bytes with the length,
//    little-endian, then such a file with an entry for each rank. Each message
//    is for a batch of every rank, and is read when it is needed.
// A batch of all ranks takes the next samples, rank after rank. When all are
// taken, the next epoch begins, within a batch if need be. So which samples
// have been used is one number, the position, for any number of ranks.
//
// Names, types and sizes are checked when files are opened, and tokens against
// the embedding's rows: all at once if the files are small, and those that are
// read in any case. Rejections are `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_DATA_DATA_H
#define FSDP_RUNTIME_DATA_DATA_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <memory>
#include <optional>

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

/// Of the loss of a program; throws if it has none.
planfile::DType getLossType(const planfile::PlanFile &plan,
                            std::string_view program);

/// The inputs of a program, or of each micro-batch of its step, by their
/// numbers.
std::vector<InputSpec> getInputs(const planfile::PlanFile &plan,
                                 std::string_view program = "step");

/// The files of tokens in a folder, in the order of their names; any other path
/// is one file.
std::vector<std::string> listDataFiles(const std::string &path);

/// The path of a stream on the standard input.
inline constexpr const char *standardInput = "-";

struct DataOptions {
  std::string program = "step"; ///< Whose inputs are read.
  /// Of a raw token: 16 or 32. None: 16, and only files called .bin are raw.
  std::optional<unsigned> tokenBits = std::nullopt;
  /// Of the order of samples, which is another one in each epoch; none: that of
  /// the files.
  std::optional<std::uint64_t> shuffleSeed = std::nullopt;
};

class Data {
public:
  /// Rejects files with fewer batches than the plan has ranks. `.safetensors`
  /// is recognized by the name.
  static Data open(const std::string &path, const planfile::PlanFile &plan,
                   const DataOptions &options = {});
  Data(Data &&) noexcept;
  Data &operator=(Data &&) noexcept;
  /// Waits for what is being read.
  ~Data();

  /// Whole batches of an epoch.
  std::uint64_t batches() const;
  /// Samples beyond these.
  std::uint64_t leftOver() const;

  /// How many samples all ranks have taken since the beginning.
  std::uint64_t position() const;
  void seek(std::uint64_t position);

  /// Takes the next batch of every rank, and reads those of `ranks`; a thread
  /// goes on to the batches after these. Throws what has prevented the reading
  /// of these: a file has been changed, or has a bad token.
  void next(RankRange ranks);

  /// An input of a rank's batch. Valid until `next`, `seek`, or the end.
  TensorView input(unsigned rank, std::size_t index) const;

private:
  class Impl;
  explicit Data(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_DATA_DATA_H
