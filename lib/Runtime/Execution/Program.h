//===- Program.h - One rank's prepared program ------------------*- C++ -*-===//
//
// A program of the plan as vectors of prepared commands, one for each thread of
// the rank: inline, a single one; overlapped, one for the compute stream and
// one for all others, with the plan's events between them. Running it is a loop
// over each vector. What the plan leaves to the runtime is put in when it is
// prepared: a collective completes before its peers have read this rank's
// source, so the first command of each stream that overwrites those bytes is
// preceded by a drain. Collectives that are issued together become one command.
// Under chaos, memory is poisoned where a gather begins to write it and where
// its life ends.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_PROGRAM_H
#define FSDP_LIB_RUNTIME_EXECUTION_PROGRAM_H

#include "../Support/Waits.h"
#include "FlightRecorder.h"
#include "Launch.h"
#include "Optimizer.h"
#include "ThreadTeam.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>

namespace fsdp {

/// What one rank's programs share.
struct Rank {
  unsigned rank = 0;
  RankRange here{0}; ///< The ranks whose runs are joined with this one's.
  const planfile::Plan *plan = nullptr;
  std::unique_ptr<Device> device;
  std::unique_ptr<Memory> memory;
  at::Generator generator;      ///< All draws of the rank come from it.
  std::vector<unsigned> shards; ///< Which of each unit.
  std::vector<std::unique_ptr<Comm>> comms; ///< By communicator.
  /// By communicator; to be announced when all programs are prepared.
  std::vector<std::vector<Collective>> collectives;
  std::span<const std::string> trusted; ///< Operators, see resolveOperator.
  const Waits *waits = nullptr;         ///< Of all ranks here.
  std::chrono::milliseconds timeout = defaultTimeout;
  std::uint64_t chaosSeed = 0;
  bool timed = false;    ///< Commands leave spans.
  bool overlaps = false; ///< The streams of the device, as the host goes on.
  bool computes = true, communicates = true; ///< See `SessionOptions`.
  std::unique_ptr<ThreadTeam> team; ///< The rank's two threads, if it overlaps.
  /// Stops all ranks; the first failure is kept.
  std::function<void(const Error &)> fail;

  std::uint64_t updates = 0; ///< So far; set before each run.
  /// Of the gradients of the latest update, an f64 on the device; null where
  /// the plan does not clip.
  std::byte *gradientNorm = nullptr;
  DeviceHyper hyper; ///< Of a device that runs ahead.

  Observer observer; ///< Of launches; empty: none.
  Statistics statistics;
  FlightRecorder flights;
};

/// A set of roles, as bits.
using RoleSet = std::uint8_t;
inline RoleSet roleBit(planfile::Role role) {
  return static_cast<RoleSet>(1u << static_cast<unsigned>(role));
}
inline constexpr RoleSet allRoles = 0xff;

class Program {
public:
  Program(Rank &rank, unsigned index);
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  void run(RoleSet roles);

  /// Running it counts as an update of the parameters.
  bool hasUpdate() const { return !updates.empty(); }

  /// Of all runs so far, if they are timed.
  void appendSpans(std::vector<Span> &spans) const;

  std::vector<Launch> launches;

  /// Notes what operators allocate (`Launch::probe`), but for those that would
  /// write what lives from run to run. Memory that lives inside of a run must
  /// be zero, and is again. Returns the bytes of scratch of the largest.
  std::size_t probeLaunches();
  /// Scratch for those of the compute stream.
  void placeScratch(std::byte *scratch);

private:
  enum class Kind : std::uint8_t {
    Launch,
    ScriptedLaunch,
    Collective,
    Drain,
    Update,
    Measure,
    Accumulate,
    Zero,
    Poison,
    Copy,
    CopyBytes,
    KeepNorm,
    Record,
    Wait
  };
  struct Command {
    Kind kind;
    RoleSet roles;
    planfile::Stream stream;
    std::uint32_t index;        ///< Of what the kind needs.
    std::uint32_t communicator; ///< Of collectives.
    std::uint32_t source;       ///< Command of the plan.
    std::uint32_t count = 1; ///< Of collectives in one call, from `index` on.
    std::uint32_t place = 0; ///< In `accesses`.
    bool isOnHost = false;   ///< Computes there, when all before it is done.

    /// Waits for other ranks.
    bool isSent() const {
      return kind == Kind::Collective || kind == Kind::Drain;
    }
  };
  struct Block {
    std::byte *target;
    const std::byte *source;
    std::size_t bytes;
  };
  struct Access {
    Range range;
    bool isWrite;
    std::uint32_t root;
  };
  /// From here on, up to the next phase, commands have this role; 0: none yet,
  /// or no more.
  struct Phase {
    RoleSet role;
    std::uint64_t begin;
  };
  /// A command that the latest run has marked.
  struct Marked {
    std::size_t position;
    std::uint64_t begin, end;
  };
  /// What one thread does and has.
  struct Lane {
    std::vector<Command> commands;
    std::size_t position = 0;
    planfile::Stream selected = planfile::Stream::Compute;
    Launch::Stack stack;
    std::minstd_rand chaos;
    Statistics statistics;
    std::vector<Phase> phases;
    std::vector<Marked> marked;
    std::vector<Span> spans;
    std::optional<Error> failure;
  };
  /// Commands to put before those of the plan, with what they touch.
  using Insertions =
      std::vector<std::vector<std::pair<Command, std::vector<Access>>>>;

  void prepare(const planfile::Command &command, std::uint32_t source);
  void prepareCollective(Command &command, Collective collective,
                         std::uint32_t source, std::uint32_t target,
                         std::uint32_t unit);
  void prepareCopy(Command &command, const planfile::Copy &copy);
  void preparePiece(Command &command, const planfile::Piece &piece);
  void joinGroup();
  bool isJoined(const Command &collective) const;
  void touch(std::uint32_t buffer, bool isWrite);
  void insert(Insertions insertions);
  void insertDrains();
  void insertNorm();
  void insertPoison();
  void poison(Insertions &insertions, std::size_t at, const Command &like,
              std::uint32_t root, Range range);
  bool isLeftOut(const Command &command) const;
  void makeLanes();

  void work(Lane &lane, RoleSet roles);
  void loop(Lane &lane, RoleSet roles);
  void enterPhase(Lane &lane, RoleSet role) const;
  void execute(Lane &lane, const Command &command);
  void showObserver(const Command &command) const;
  std::uint64_t mark(planfile::Stream stream) const;
  double timeOf(std::uint64_t mark) const;
  bool isExposed(const Command &command) const;
  void takeTimes(Lane &lane) const;
  void addSpans(Lane &lane, const Command &command, double begin,
                double end) const;
  std::string describe(const Command &command) const;

  Rank &rank;
  const planfile::Program &program;
  unsigned number;
  std::vector<Command> commands;             ///< Until they are in the lanes.
  std::vector<std::vector<Access>> accesses; ///< Of each command.
  std::vector<Lane> lanes;
  std::vector<Counter> events; ///< Overlapped: the latest run that recorded it.
  std::uint64_t runs = 0;
  std::vector<Update> updates;
  std::vector<Measure> measures;
  std::vector<Block> blocks;
  /// Of copies and sums: target, source.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  bool isChecked = false;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_PROGRAM_H
