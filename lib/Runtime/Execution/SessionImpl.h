//===- SessionImpl.h - What a session holds ---------------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_SESSIONIMPL_H
#define FSDP_LIB_RUNTIME_EXECUTION_SESSIONIMPL_H

#include "../Comm/Mesh.h"
#include "../Comm/Rendezvous.h"
#include "Exchange.h"
#include "Program.h"
#include "ThreadTeam.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace fsdp {

/// A tensor over the caller's memory, which is only read.
at::Tensor borrow(const TensorView &view);

struct Session::Impl {
  Impl(const planfile::Plan &plan, RankRange ranks, SessionOptions options);

  struct RankData {
    Rank rank;
    std::vector<std::unique_ptr<Program>> programs;
    /// For much and for little, once something has been.
    std::array<std::unique_ptr<Exchange>, 2> exchanges;
  };
  using RankJob = std::function<void(RankData &)>;

  /// On every rank's thread; rethrows the first failure, as of `kind`.
  void onAllRanks(Failure kind, const RankJob &job);
  /// On the caller's thread, in place of the rank's, when all runs are done.
  void onRank(const RankData &data, const std::function<void()> &job);
  /// Returns when all runs are done, of devices that run ahead.
  void settle();
  /// On the caller's thread, for all ranks: what throws stops the run.
  void onCaller(Failure kind, const std::function<void()> &job);
  /// The first failure of the run is kept, here and by all other sessions.
  void fail(const std::string &sentence);
  void fail(const Error &error);
  void checkFailure() const;

  unsigned worldSize() const { return planfile::getRankCount(plan); }
  RankContext contextOf(const Rank &rank) const;
  void open(RankData &data);
  void checkRoom(const RankData &data);
  bool runInit(RankData &data);
  void initialise(RankData &data);
  void run(std::string_view program, Roles roles);
  void writeHyperParameters(Rank &rank) const;

  // Tensors in and out.
  struct Place {
    std::uint32_t unit;
    const planfile::Parameter *parameter;
  };
  const Place &find(std::string_view name) const;
  std::uint32_t findState(std::uint32_t unit, std::string_view state) const;
  std::uint32_t findProgram(std::string_view name) const;
  /// The input, output or loss of a program with this index (`none` for the
  /// loss).
  std::uint32_t findNamed(std::string_view program, planfile::BufferRole role,
                          std::uint32_t index) const;
  std::uint32_t findModelBuffer(std::string_view name) const;
  /// A tensor as it lies in the ranks' memory.
  struct Location {
    std::string name;
    std::uint32_t buffer = none;
    const Place *place = nullptr; ///< Null: every rank has all of it.
    std::vector<std::int64_t> sizes;
  };
  /// A box of a tensor, and the same elements in a rank's memory.
  struct HeldBox {
    Box box;
    at::Tensor values;
  };
  Location locate(const TensorName &tensor) const;
  std::vector<HeldBox> held(const RankData &data,
                            const Location &location) const;
  /// Each box that a rank holds, and its place in memory that has them all,
  /// which has so many bytes.
  void forEachHeld(
      const TensorName &tensor, unsigned rank, std::size_t bytes,
      const std::function<void(at::Tensor &values, std::size_t at)> &function);
  void writeBox(const TensorName &tensor, const Box &box,
                const TensorView &value);
  /// `toFirst`: the session of rank 0 alone gets its bytes.
  HostTensor whole(const TensorName &tensor, bool toFirst = false);
  bool isFirst() const { return here.first == 0; }

  /// Bytes that a rank has for all others, on the host or its device.
  using Piece = std::span<const std::byte>;
  /// Shows each rank's piece, which `piece` finds, to `take`, in parts: the
  /// rank, the offset of the part and its bytes. Pieces may be shorter than
  /// `bytes`: what is shown after their ends means nothing. All sessions of the
  /// run call it for the same `what`. `toFirst`: to the session of rank 0
  /// alone.
  void exchange(const std::string &what, std::uint64_t bytes,
                const std::function<Piece(const RankData &)> &piece,
                const std::function<void(unsigned, std::uint64_t, Piece)> &take,
                bool toFirst = false);
  const RankData &local(unsigned rank) const;
  std::uint64_t digestParameters(const RankData &data) const;
  /// The first element of a rank's padding that is not 0.
  struct DirtyPad {
    std::uint64_t element = UINT64_MAX; ///< Of the unit; the largest: none.
    double value = 0;
  };
  DirtyPad findDirtyPad(const RankData &data, std::uint32_t unit,
                        std::uint32_t buffer) const;
  void write(const RankData &data, std::uint32_t buffer,
             const at::Tensor &source);
  /// Work for the first rank's streams, which nobody waits for.
  void enqueue(const std::function<void(Device &)> &job);
  HostTensor read(const RankData &data, std::uint32_t buffer);

  const planfile::Plan &plan;
  SessionOptions options;
  std::shared_ptr<Backend> backend;
  RankRange here;
  std::vector<RankData> ranks;                      ///< Of those here.
  std::map<std::string, Place, std::less<>> places; ///< Names and aliases.
  /// The first buffer of each program, role and index; a view only if there is
  /// no other.
  std::map<std::tuple<std::uint32_t, planfile::BufferRole, std::uint32_t>,
           std::uint32_t>
      named;
  /// Of each decay group, by the buffer that holds them.
  std::map<std::uint32_t, HyperParameters> groups;
  std::uint64_t updates = 0;
  LoadReport report;
  Statistics statistics;

  /// False while devices may still run what they have been given.
  bool isSettled = true;
  /// `init` may have read another content of a model buffer.
  bool buffersChanged = false;
  mutable std::mutex mutex;          ///< Of the failure and the phase.
  Failure phase = Failure::Rejected; ///< What a failure is, now.
  std::optional<Error> failure;
  Waits waits;
  // Last: their threads use everything above.
  ThreadTeam threads;
  Rendezvous rendezvous;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_SESSIONIMPL_H
