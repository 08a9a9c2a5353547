//===- RankFiles.h - What each rank has written of a checkpoint -*- C++ -*-===//
//
// The manifest says which ranks hold which elements of a tensor, in a few
// numbers, so that who needs a part of a tensor opens the files of those ranks
// alone. All is untrusted input.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_RANKFILES_H
#define FSDP_ARCHIVE_RANKFILES_H

#include "fsdp/Archive/TensorFiles.h"

#include <functional>

namespace fsdp::archive {

/// Ranks `rank`, `rank + stride`, ..., `count` of them, hold `each` elements.
struct RankRun {
  uint32_t rank = 0, stride = 1, count = 1;
  uint64_t each = 0;

  bool operator==(const RankRun &other) const {
    return rank == other.rank && stride == other.stride &&
           count == other.count && each == other.each;
  }
};

/// A whole tensor, and who holds it: the elements of a run follow those of the
/// one before it, in storage order. A tensor without elements is rank 0's.
struct HeldTensor {
  DType dtype;
  std::vector<int64_t> shape;
  /// The axes from the slowest to the fastest.
  std::vector<int64_t> order;
  std::vector<RankRun> runs;

  /// The next elements.
  void add(uint32_t rank, uint64_t elements);
  /// Why the runs do not hold each element once, by some of so many ranks.
  std::optional<Error> check(uint32_t ranks) const;
  /// Calls `visit` with ranks, in order, and where their elements begin and
  /// end: all from that with element `first` on, until it returns false.
  void forEachRank(
      uint64_t first,
      const std::function<bool(uint32_t, uint64_t, uint64_t)> &visit) const;
  /// What a rank holds: box i is in its file i.
  std::vector<Box> boxesOf(uint32_t rank) const;
  std::vector<Box> boxesBetween(uint64_t begin, uint64_t end) const;
};

/// So many ranks have one folder; of more, each so many have one of their own.
inline constexpr uint32_t ranksInPart = 1024;

class RankFiles {
public:
  /// `lists`: the checksum of each rank's list. `hasParts`: as in checkpoints
  /// from version 2 on.
  RankFiles(std::string folder, bool hasParts, std::vector<uint64_t> lists);

  uint32_t ranks() const { return static_cast<uint32_t>(lists.size()); }
  /// The files of a rank, its own last if there is one.
  Expected<std::vector<CheckedFile>> readList(uint32_t rank) const;
  std::string pathOf(uint32_t rank, const std::string &file) const;
  /// What is the rank's own.
  Expected<Safetensors> openOwn(uint32_t rank) const;

  /// Calls `visit` with the pieces of a tensor that have an element of a box,
  /// in files that stay open.
  std::optional<Error> forEachPiece(const std::string &name,
                                    const HeldTensor &tensor, const Box &box,
                                    const TensorPieces::Visit &visit);
  /// Reads all that a rank has written, and checks that it holds what these
  /// say, if given, and nothing else.
  std::optional<Error> verify(uint32_t rank,
                              const std::map<std::string, HeldTensor> *tensors);

private:
  struct Shard {
    Safetensors file;
    std::vector<Box> boxes; ///< Of its tensors.
  };
  /// The files with boxes, opened when they are read.
  struct Rank {
    std::vector<CheckedFile> files;
    std::vector<std::optional<Shard>> shards;
  };
  Expected<Rank *> open(uint32_t rank);
  static Expected<Shard> openShard(const CheckedFile &listed);
  Expected<TensorPieces::Piece> find(uint32_t rank, size_t file,
                                     const std::string &name,
                                     const HeldTensor &tensor, const Box &box);

  std::string folder;
  bool hasParts;
  std::vector<uint64_t> lists;
  std::map<uint32_t, Rank> opened;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_RANKFILES_H
