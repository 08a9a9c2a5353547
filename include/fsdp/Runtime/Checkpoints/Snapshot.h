//===- Snapshot.h - A training as it was after an update --------*- C++ -*-===//
//
// A copy of all that a training needs to go on, of the ranks of one session, in
// memory that is set aside once; and the files of a checkpoint
// (`fsdp/Archive/Checkpoint.h`) that are written from it while the training
// goes on. What several ranks hold alike, the first of them writes. Errors are
// `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_CHECKPOINTS_SNAPSHOT_H
#define FSDP_RUNTIME_CHECKPOINTS_SNAPSHOT_H

#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <map>

namespace fsdp {

class Snapshot {
public:
  /// Sets the memory aside, pinned as long as the session lives. The plan must
  /// outlive the snapshot, which must outlive the session.
  Snapshot(const planfile::PlanFile &plan, Session &session);

  /// Of the memory, on the host, all ranks of the session.
  std::size_t bytes() const { return total; }

  /// Copies; between two runs, on the session's thread.
  void take(const Session &session);

  /// Writes the files of the latest copy into a folder that has the folders of
  /// the ranks (`archive::getPart`), each with a folder `ranks`, on any thread.
  /// Returns the checksum of each rank's list. All is on the disk then.
  std::vector<std::uint64_t> write(const std::string &folder) const;

  /// The tensors of a checkpoint of this plan, of all ranks.
  static std::map<std::string, archive::HeldTensor>
  tensors(const planfile::PlanFile &plan);

private:
  /// What a rank holds of a tensor.
  struct Part {
    unsigned rank;
    std::string key; ///< In the files.
    TensorName tensor;
    archive::DType type;
    std::vector<Box> boxes;
    std::size_t at, bytes; ///< In the memory, one box after the other.
    bool isOwn;            ///< In the file of the rank, not in the common ones.
    /// What the plan embeds: a content that is the same need not be written.
    std::string_view embedded;
  };
  void add(const Session &session, unsigned rank, std::string key,
           const TensorName &tensor, planfile::DType type, bool isOwn,
           std::string_view embedded = {});
  void addParameters(const Session &session, unsigned rank);
  void addBuffers(const Session &session, unsigned rank);
  std::vector<archive::CheckedFile> writeBoxes(const std::string &folder,
                                               unsigned rank) const;
  archive::CheckedFile writeOwn(const std::string &folder, unsigned rank) const;
  std::string_view contentOf(const Part &part) const;
  /// Without those that a grad scaler has skipped.
  float countUpdates() const;

  const planfile::PlanFile &plan;
  RankRange ranks;
  std::vector<Part> parts;
  std::size_t total = 0; ///< Bytes of all parts.
  std::vector<std::byte> memory;
  std::uint64_t updates = 0;
  std::vector<std::vector<std::byte>> generators; ///< Of each rank.
};

/// Puts what is a rank's own in a checkpoint into a session: its generator and
/// what it alone holds, if the ranks were the same; else the model buffers of
/// rank 0 for all. Returns whether they were.
bool loadOwn(const archive::Checkpoint &checkpoint,
             const planfile::PlanFile &plan, Session &session);

/// "replicate=2 shard=4"
std::string spellMesh(const planfile::PlanFile &plan);

} // namespace fsdp

#endif // FSDP_RUNTIME_CHECKPOINTS_SNAPSHOT_H
