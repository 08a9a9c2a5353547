//===- Samples.h - Samples of files, by their numbers -----------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_DATA_SAMPLES_H
#define FSDP_LIB_RUNTIME_DATA_SAMPLES_H

#include "fsdp/Runtime/Data/Data.h"

namespace fsdp {

/// What batches are made of. Not for several threads at once.
class Samples {
public:
  virtual ~Samples() = default;

  virtual std::uint64_t count() const = 0;
  /// How many a batch of one rank has.
  virtual std::uint64_t inBatch() const = 0;
  /// Reads input `index` of a sample, in the input's type. Throws if the file
  /// has been changed, or has tokens that the model has not.
  virtual void read(std::size_t index, std::uint64_t sample,
                    std::span<std::byte> to) = 0;
  /// Checks all tokens. Throws at the first that the model has not.
  virtual void check() = 0;
  /// To read what is not needed yet costs nothing but time.
  virtual bool mayReadAhead() const { return true; }
};

/// Entries along the leading axis of tensors. `rows`: of the embedding of input
/// 0; 0 if there is none.
std::unique_ptr<Samples> openTensors(const std::string &path,
                                     std::span<const InputSpec> inputs,
                                     std::uint64_t rows);

/// Sequences of a file of tokens, or of several.
std::unique_ptr<Samples> openTokens(const std::string &path,
                                    std::span<const InputSpec> inputs,
                                    std::uint64_t rows,
                                    std::optional<unsigned> tokenBits);

/// Messages out of an open file, each with a batch for each of `ranks`: read
/// once, in order.
std::unique_ptr<Samples> openStream(int descriptor, const std::string &name,
                                    std::span<const InputSpec> inputs,
                                    std::uint64_t rows, unsigned ranks);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DATA_SAMPLES_H
