//===- Checkpoint.h - A training that goes on later -------------*- C++ -*-===//
//
// A checkpoint is a folder:
//
//   manifest.json                          where the training was, every
//                                          tensor's dtype and sizes and which
//                                          ranks hold which of its elements
//                                          (`RankFiles.h`), a checksum of each
//                                          rank's list
//   shard-00001-model-00001-of-00002.safetensors
//                                          boxes of parameters, model buffers
//                                          and optimizer states
//                                          (`optim.state.NAME.exp_avg`), with
//                                          the metadata that PyTorch's
//                                          HuggingFaceStorageReader reads
//   ranks/rank-00001.json                  the files of a rank, a checksum for
//                                          each MiB
//   ranks/rank-00001.safetensors           what is a rank's own: its generator,
//                                          its model buffers
//
// Of more than 1,024 ranks, each 1,024 have all but the manifest in a folder of
// their own, part-00001 and so on: folders of tens of thousands of files are
// slow. In version 1, all is in one folder, and the manifest does not say who
// holds what.
//
// The manifest is written last. All of it is untrusted input: what is damaged
// or missing is named, and names lead to files of the folder only.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_CHECKPOINT_H
#define FSDP_ARCHIVE_CHECKPOINT_H

#include "fsdp/Archive/RankFiles.h"

#include <memory>

namespace fsdp::archive {

/// Where a training was.
struct TrainingState {
  int64_t step = 0;      ///< Steps that are done.
  uint64_t position = 0; ///< Samples of the data that all ranks have taken.
  uint64_t updates = 0;  ///< Those of the optimizer.
  uint32_t ranks = 1;
  std::string mesh; ///< "replicate=2 shard=4"
  /// Of parameters and buffers in the weights that the training began with, by
  /// those of the plan, where the two differ.
  std::map<std::string, std::string> names;
  /// What the training was told, in the words of its options.
  std::vector<std::pair<std::string, std::string>> facts;
};

struct Checkpoint {
  static constexpr const char *manifestName = "manifest.json";
  static constexpr const char *statePrefix = "optim.state.";

  /// There is a manifest in the folder.
  static bool isOne(const std::string &folder);
  /// Reads the manifest. Files are opened, and checked, when something of them
  /// is read; of version 1, all are opened now.
  static Expected<Checkpoint> open(const std::string &folder);

  /// Reads all of all files, and checks it.
  std::optional<Error> verify() const;

  TrainingState state;
  TensorFiles files; ///< Of all ranks.
  std::shared_ptr<RankFiles> ranks;

private:
  using Held = std::map<std::string, HeldTensor>;
  std::shared_ptr<const Held> held; ///< Null: of version 1.
};

/// "shard-00001-model-00001-of-00002.safetensors", counted from 0.
std::string getShardFile(unsigned rank, unsigned file, unsigned files);
/// The folder of a rank among so many, "part-00001"; empty: there is one for
/// all.
std::string getPart(unsigned rank, unsigned ranks);
/// "ranks/rank-00001.safetensors"
std::string getRankFile(unsigned rank);
/// "ranks/rank-00001.json"
std::string getRankList(unsigned rank);

/// The list of a rank.
std::string spellRankList(const std::vector<CheckedFile> &files);

/// The manifest; `lists` are the checksums of the ranks' lists.
std::string spellManifest(const TrainingState &state,
                          const std::map<std::string, HeldTensor> &tensors,
                          const std::vector<uint64_t> &lists);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_CHECKPOINT_H
