//===- BufferLives.cpp - When commands may touch buffers ------------------===//
//
// Vector clocks, in one walk along the commands for each role: a program also
// runs without those of higher roles, and then no event of theirs orders it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include <algorithm>

using namespace fsdp::planner;

namespace {

/// By stream: one more than the place of the latest command that is known to be
/// done.
using Clock = std::vector<int64_t>;

void join(Clock &clock, const Clock &other) {
  for (size_t stream = 0; stream != clock.size(); ++stream)
    clock[stream] = std::max(clock[stream], other[stream]);
}

/// One run of all commands up to a role.
class Replay {
public:
  Replay(const std::vector<Command> &commands, uint32_t numStreams,
         uint32_t last)
      : commands(commands), last(last),
        streams(numStreams, Clock(numStreams, 0)), running(numStreams),
        done(numStreams, 0) {}

  /// Lengthens lives by what the commands of the last role touch.
  void run(std::vector<Lifetime> &lives);

private:
  struct Launch {
    size_t place;
    int64_t start;
  };
  void finish(size_t stream, int64_t until, int64_t now,
              std::vector<Lifetime> &lives);
  void touch(size_t place, int64_t start, int64_t end,
             std::vector<Lifetime> &lives) const;

  const std::vector<Command> &commands;
  uint32_t last;
  std::vector<Clock> streams;
  std::vector<Clock> events; // empty: not recorded
  /// What the compute stream does not know to be done, from `done` on.
  std::vector<std::vector<Launch>> running;
  std::vector<size_t> done;
};

} // namespace

void Replay::touch(size_t place, int64_t start, int64_t end,
                   std::vector<Lifetime> &lives) const {
  if (commands[place].role != last)
    return;
  for (uint32_t buffer : commands[place].buffers) {
    Lifetime &life = lives[buffer];
    bool isFirst = life.end < life.begin;
    life.begin = isFirst ? start : std::min(life.begin, start);
    life.end = isFirst ? end : std::max(life.end, end);
  }
}

/// Those of a stream in front of a place are known to be done.
void Replay::finish(size_t stream, int64_t until, int64_t now,
                    std::vector<Lifetime> &lives) {
  std::vector<Launch> &list = running[stream];
  for (size_t &next = done[stream];
       next != list.size() && int64_t(list[next].place) < until; ++next)
    touch(list[next].place, list[next].start, now, lives);
}

void Replay::run(std::vector<Lifetime> &lives) {
  for (size_t begin = 0, end; begin != commands.size(); begin = end) {
    const Command &command = commands[begin];
    end = begin + 1;
    if (command.group)
      while (end != commands.size() && commands[end].group == command.group)
        ++end;
    if (command.role > last)
      continue;
    Clock &clock = streams[command.stream];
    switch (command.kind) {
    case CommandKind::Record:
      if (command.event >= events.size())
        events.resize(command.event + size_t(1));
      events[command.event] = clock;
      break;
    case CommandKind::Wait: {
      if (command.event >= events.size() || events[command.event].empty())
        break;
      join(clock, events[command.event]);
      if (command.stream == 0) {
        for (size_t stream = 1; stream != streams.size(); ++stream)
          finish(stream, clock[stream], int64_t(begin), lives);
        clock[0] = int64_t(end); // what starts later comes after these
      }
      break;
    }
    case CommandKind::Work:
      clock[command.stream] = int64_t(end);
      for (size_t place = begin; place != end; ++place)
        if (command.stream == 0)
          touch(place, int64_t(begin), int64_t(begin), lives);
        else
          running[command.stream].push_back({place, clock[0]});
      break;
    }
  }
  for (size_t stream = 1; stream != streams.size(); ++stream)
    finish(stream, int64_t(commands.size()), int64_t(commands.size()), lives);
}

std::vector<Lifetime>
fsdp::planner::findLives(const std::vector<Command> &commands,
                         size_t numBuffers, uint32_t numStreams) {
  std::vector<Lifetime> lives(numBuffers, {0, 0, -1});
  uint32_t lastRole = 0;
  for (const Command &command : commands)
    lastRole = std::max(lastRole, command.role);
  for (uint32_t last = 0; last <= lastRole; ++last)
    Replay(commands, numStreams, last).run(lives);
  return lives;
}
