//===- Program.h - One rank's prepared program ------------------*- C++ -*-===//
//
// A program of the plan as a vector of prepared commands. Running it is a loop
// over that vector. What the plan leaves to the runtime is put in when it is
// prepared: a collective completes before its peers have read this rank's
// source, so the first command that overwrites those bytes is preceded by a
// drain.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_PROGRAM_H
#define FSDP_LIB_RUNTIME_PROGRAM_H

#include "Launch.h"
#include "Optimizer.h"

#include <atomic>
#include <memory>
#include <random>

namespace fsdp {

/// What one rank's programs share.
struct Rank {
  unsigned rank = 0;
  const planfile::Plan *plan = nullptr;
  std::unique_ptr<Device> device;
  std::unique_ptr<Memory> memory;
  std::vector<unsigned> shards;             ///< Which of each unit.
  std::vector<std::unique_ptr<Comm>> comms; ///< By communicator.
  /// By communicator; to be announced when all programs are prepared.
  std::vector<std::vector<Collective>> collectives;
  std::span<const std::string> trusted; ///< Operators, see resolveOperator.
  const std::atomic<bool> *stop = nullptr;
  std::uint64_t chaosSeed = 0;

  // Set before each run.
  HyperParameters hyper;
  std::uint64_t updates = 0;
  at::Tensor step; ///< updates + 1, where AdamW reads it.

  Statistics statistics;
};

/// A set of roles, as bits.
using RoleSet = std::uint8_t;
inline RoleSet roleBit(planfile::Role role) {
  return static_cast<RoleSet>(1u << static_cast<unsigned>(role));
}

class Program {
public:
  Program(Rank &rank, unsigned index);
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  void run(RoleSet roles);

  /// Running it counts as an update of the parameters.
  bool hasUpdate() const { return !adamws.empty() || !sgds.empty(); }

  std::vector<Launch> launches;

private:
  enum class Kind : std::uint8_t {
    Launch,
    HookedLaunch,
    Collective,
    Drain,
    AdamW,
    SGD,
    Zero,
    Copy,
    CopyBytes,
    Record,
    Wait
  };
  struct Command {
    Kind kind;
    RoleSet roles;
    planfile::Stream stream;
    std::uint32_t index;  ///< Of what the kind needs.
    std::uint32_t group;  ///< Communicator.
    std::uint32_t source; ///< Command of the plan.
  };
  struct Block {
    std::byte *target;
    const std::byte *source;
    std::size_t bytes;
  };
  struct Access {
    Range range;
    bool isWrite;
  };

  void prepare(const planfile::Command &command, std::uint32_t source);
  void prepareCollective(Command &command, Collective collective,
                         std::uint32_t source, std::uint32_t target,
                         std::uint32_t unit);
  void prepareCopy(Command &command, const planfile::Copy &copy);
  void touch(std::uint32_t buffer, bool isWrite);
  void insertDrains();
  void execute(const Command &command);
  void loop(RoleSet roles, std::size_t &position);
  void disturb(const Command &command);
  std::string describe(const Command &command) const;

  Rank &rank;
  const planfile::Program &program;
  unsigned number;
  std::vector<Command> commands;
  std::vector<std::vector<Access>> accesses; ///< Of each command.
  std::vector<AdamW> adamws;
  std::vector<SGD> sgds;
  std::vector<Block> blocks;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies; ///< target, source
  Launch::Stack stack;
  planfile::Stream selected = planfile::Stream::Compute;
  std::minstd_rand chaos;
  bool isChecked = false;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_PROGRAM_H
