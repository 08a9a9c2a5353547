//===- CheckpointFolder.h - Checkpoints of a training -----------*- C++ -*-===//
//
// A folder of checkpoints, `step-00000020` and so on, of which the newest may
// be the start of a training. Each is written by a thread of its own while the
// training goes on, under another name, by all processes; when all of it is on
// the disk, rank 0 gives it its name, and only then removes old ones. So
// whatever stops a run, every folder with such a name is whole.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_TRAINING_CHECKPOINTFOLDER_H
#define FSDP_RUNTIME_TRAINING_CHECKPOINTFOLDER_H

#include "fsdp/Runtime/Checkpoints/Snapshot.h"
#include "fsdp/Runtime/Training/Processes.h"
#include "fsdp/Runtime/Training/TrainingOptions.h"

#include <filesystem>
#include <future>

namespace fsdp {

class FolderLock;

class CheckpointFolder {
public:
  /// Finds the checkpoint that the options name, and says which are damaged.
  /// Throws if there is none, or if none can be written.
  CheckpointFolder(const planfile::PlanFile &plan,
                   const TrainingOptions &options, const Processes &processes);
  /// Waits for what is being written.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder &) = delete;
  CheckpointFolder &operator=(const CheckpointFolder &) = delete;

  /// The one to resume from; null: a training begins.
  const archive::TrainingState *resumed() const {
    return found ? &found->state : nullptr;
  }
  /// The name of its folder; empty if there is none.
  std::string resumedName() const {
    return std::filesystem::path(path).filename().string();
  }

  const std::string &resumedPath() const { return path; }

  /// Loads it. Where it is damaged, all processes go on to the one before it,
  /// which rank 0 names; where it cannot be read, they end.
  void load(Session &session);

  /// Sets aside the memory that `save` needs, and puts aside what is damaged.
  void prepare(Session &session);
  /// Of that memory, in bytes.
  std::size_t bytes() const { return snapshot ? snapshot->bytes() : 0; }

  bool areWanted() const { return !options.checkpoint.empty(); }
  bool isDue(long long step) const {
    return areWanted() && options.every != 0 && step % options.every == 0;
  }
  /// That of this step is there, or is being written.
  bool has(long long step) const { return newest == step; }
  /// Of the latest one.
  std::string newestPath() const;
  /// Writes a checkpoint of the session as it is; waits only for the one
  /// before.
  void save(archive::TrainingState state, const Session &session);
  /// Waits until the last one is on the disk.
  void finish();

  /// How long it took, in seconds: to load one, and to write them all, copies
  /// not counted.
  double loadSeconds() const { return loading; }
  double saveSeconds() const { return saving; }

private:
  void findResumed();
  /// Opens the one at `path`.
  void open();
  /// The next one to try; throws with this problem if there is none.
  std::string takeCandidate(const std::string &problem);
  std::string judge(const std::vector<std::string> &attempts);
  void giveUp(const std::string &why);
  void checkFolder();
  void checkFits() const;
  /// Returns the seconds that it took.
  double write(const archive::TrainingState &state) const;
  void makeFolder(const std::filesystem::path &folder) const;
  std::string publish(const archive::TrainingState &state,
                      const std::filesystem::path &folder,
                      const std::vector<std::string> &lists) const;
  void removeOld(const std::filesystem::path &newest) const;

  const planfile::PlanFile &plan;
  const TrainingOptions &options;
  const Processes &processes;
  std::vector<std::string> candidates; ///< The next one to try is the last.
  std::vector<std::string> unusable;   ///< Those that were tried in vain.
  std::optional<archive::Checkpoint> found;
  std::string path;
  std::optional<Snapshot> snapshot;
  long long newest = -1; ///< The latest step of which one is in the folder.
  std::future<double> writing;
  double loading = 0, saving = 0;
  std::unique_ptr<FolderLock> lock; ///< Of the folder; rank 0 has it.
};

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_CHECKPOINTFOLDER_H
