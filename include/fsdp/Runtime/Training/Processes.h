//===- Processes.h - The processes of one run -------------------*- C++ -*-===//
//
// A run of several processes speaks with one voice: each looks after the others
// as soon as they are connected, they agree on what they are given before
// anything is loaded, rank 0 alone reports, an error is said once, and all end
// with the same exit code.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_TRAINING_PROCESSES_H
#define FSDP_RUNTIME_TRAINING_PROCESSES_H

#include "fsdp/Runtime/Execution/Session.h"
#include "fsdp/Runtime/Processes/Lifeline.h"
#include "fsdp/Runtime/Training/RankLog.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fsdp {

/// What must be the same for all processes: what it is, for people, and its
/// value or a digest of that.
struct Fact {
  std::string name, value;

  bool operator==(const Fact &) const = default;
};

class Processes {
public:
  /// This one alone, or those of a backend that connects them, which may wait
  /// for them.
  Processes(const std::string &backend, const std::string &map);
  /// Those that others have connected, and look after.
  Processes(World world, std::chrono::milliseconds timeout);
  ~Processes();

  unsigned size() const { return world.size(); }
  bool isFirst() const { return world.rank == 0; }
  /// Of a run with so many ranks, those of this process.
  RankRange ranks(unsigned worldSize) const;
  /// Of each rank of a run of several processes.
  std::vector<std::string> hosts() const { return world.hosts(); }
  /// Those on this machine.
  unsigned onThisMachine() const { return world.onThisMachine(); }
  /// What it has connected them by; null for one process alone.
  std::shared_ptr<Backend> backend() const { return connected; }
  std::shared_ptr<Store> store() const { return world.store; }
  /// Who looks after the others; null for one process alone.
  std::shared_ptr<Lifeline> getLifeline() const { return lifeline; }

  /// Says something on stderr, once.
  void note(const std::string &sentence) const;
  void sayError(const std::string &sentence) const;

  /// What this process has recorded of its ranks, should the run fail: asked
  /// from any thread, as long as the returned object lives, and once more when
  /// it ends.
  class Recorder;
  [[nodiscard]] std::unique_ptr<Recorder>
  record(std::function<std::string()> flights);

  /// Where this process notes why the run has failed, and what it has recorded.
  void setLog(std::shared_ptr<RankLog> log);

  /// How long a process waits for another one: until the time-out, or as long
  /// as that lives, because it reads or writes files.
  enum class Wait { Timeout, Files };
  void setTimeout(std::chrono::milliseconds given) { timeout = given; }

  /// Of what all processes show, by rank, rank 0 makes an answer, which all
  /// return. Throws on all of them if that throws. `what` is used once. From
  /// any thread; waits.
  std::string
  consult(const std::string &what, const std::string &shown,
          const std::function<std::string(const std::vector<std::string> &)>
              &answer,
          Wait wait = Wait::Timeout) const;

  /// What a process is given.
  struct Given {
    std::vector<Fact> facts;
    /// Which files it reads that may be large (`identifyFiles`).
    std::string files = {};
  };
  /// Calls `prepare` and compares the facts that it returns with rank 0's.
  /// Throws on all processes if it throws on one, or if they differ.
  void agree(const std::function<Given()> &prepare);

  /// Where processes have other files than rank 0, compares what is in them:
  /// the first process that has some calls `digest`. Throws on all processes if
  /// they differ. After `agree`.
  void compareFiles(const std::string &what,
                    const std::function<std::string()> &digest) const;

  /// The process can't go on: tells the others, and says so unless one of them
  /// has. Returns the exit code of the run.
  int fail(const Error &error) noexcept;

  /// The process has done its part: returns the exit code of rank 0.
  int finish(int code);

private:
  /// The value of a key that `rank` sets when it does its `deed`. Throws if the
  /// run has failed.
  std::string await(const std::string &key, unsigned rank,
                    const std::string &deed, Wait wait = Wait::Timeout) const;
  /// Tells the others of a failure, and says it unless somebody has. Returns
  /// the first one.
  Error tell(const Error &error) noexcept;
  /// Shows what this process has recorded to that which says the error, and
  /// notes both.
  void showRecord(const Error &error) noexcept;
  /// Who waits for whom, after the error.
  void printRecords() noexcept;
  /// Another process has failed: ends this one, at the latest a few seconds
  /// after its own threads should have.
  void stop(const Error &error) noexcept;
  /// Waits until no process looks after the others any more.
  void awaitOthers() const;
  /// Waits a moment for the others to have heard of a failure.
  void leave() const noexcept;

  std::shared_ptr<Lifeline> lifeline; ///< Of all, it ends last.
  std::shared_ptr<void> subscription;
  std::thread stopping; ///< Once the run has failed elsewhere.
  std::shared_ptr<Backend> connected;
  std::chrono::milliseconds timeout = defaultTimeout;
  World world;
  std::atomic<bool> isSaid{false}, hasEnded{false};
  std::mutex recordMutex; ///< Of the next three.
  std::shared_ptr<RankLog> log;
  std::function<std::string()> recorder;
  std::string lastRecord; ///< Of a recorder that has ended.
  /// Of each rank, the first that has the same files.
  std::vector<unsigned> firstWithFiles;
};

class Processes::Recorder {
public:
  explicit Recorder(Processes &processes) : processes(processes) {}
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;
  ~Recorder();

private:
  Processes &processes;
};

/// The path of a library beside this program.
std::string findLibrary(const std::string &name);

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_PROCESSES_H
