//===- SessionImpl.h - What a session holds ---------------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_SESSIONIMPL_H
#define FSDP_LIB_RUNTIME_SESSIONIMPL_H

#include "Mesh.h"
#include "Program.h"
#include "ThreadTeam.h"

#include <map>
#include <mutex>
#include <optional>

namespace fsdp {

struct Session::Impl {
  Impl(const planfile::Plan &plan, unsigned ranks, SessionOptions options);

  struct RankData {
    Rank rank;
    std::vector<std::unique_ptr<Program>> programs;
  };
  using RankJob = std::function<void(RankData &)>;

  /// On every rank's thread; rethrows the first failure, as of `kind`.
  void onAllRanks(Failure kind, const RankJob &job);
  /// On the caller's thread, in place of the rank's.
  void onRank(const RankData &data, const std::function<void()> &job) const;
  void fail(const std::string &sentence);

  void open(RankData &data);
  bool runInit(RankData &data);
  void initialise(RankData &data);
  void run(std::string_view program, Roles roles);

  // Tensors in and out.
  struct Place {
    std::uint32_t unit;
    const planfile::Parameter *parameter;
  };
  const Place &find(std::string_view name) const;
  std::uint32_t findState(std::uint32_t unit, std::string_view state) const;
  /// The input, output or loss with this index (`none` for the loss).
  std::uint32_t findNamed(planfile::BufferRole role, std::uint32_t index) const;
  std::uint32_t findModelBuffer(std::string_view name) const;
  void scatter(std::string_view name, const Place &place, std::uint32_t buffer,
               const TensorView &value);
  HostTensor gather(const Place &place, std::uint32_t buffer) const;
  /// A sentence about the first pad of `unit` in `buffer` that is not 0.
  std::optional<std::string> findDirtyPad(std::uint32_t unit,
                                          std::uint32_t buffer,
                                          std::string_view what) const;
  void write(const RankData &data, std::uint32_t buffer,
             const TensorView &value) const;
  HostTensor read(const RankData &data, std::uint32_t buffer) const;

  const planfile::Plan &plan;
  SessionOptions options;
  std::unique_ptr<Backend> backend;
  std::vector<RankData> ranks;
  std::map<std::string, Place, std::less<>> places; ///< Names and aliases.
  /// The first buffer of each role and index; a view only if there is no other.
  std::map<std::pair<planfile::BufferRole, std::uint32_t>, std::uint32_t> named;
  HyperParameters hyper;
  std::uint64_t updates = 0;
  LoadReport report;
  Statistics statistics;

  std::mutex mutex;
  std::atomic<bool> stop{false};
  bool loaded = false;
  /// `init` may have read another content of a model buffer.
  bool buffersChanged = false;
  Failure phase = Failure::Rejected; ///< What a failure is, now.
  std::optional<Error> failure;
  /// Last: its threads use everything above.
  ThreadTeam threads;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SESSIONIMPL_H
