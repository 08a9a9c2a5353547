//===- MemoryAssignmentTest.cpp - Lives, packing and bounds ---------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::planner;

namespace {

bool overlapInTime(const Lifetime &a, const Lifetime &b) {
  return a.begin <= b.end && b.begin <= a.end;
}

/// All are aligned and in the arena, and no two share a byte at any time.
bool isPacked(const std::vector<Lifetime> &lives, const MemoryPlan &plan,
              int64_t alignment) {
  auto getEnd = [&](size_t i) { return plan.offsets[i] + lives[i].bytes; };
  bool isSo = plan.peak >= plan.lowerBound;
  for (size_t i = 0; i != lives.size(); ++i) {
    isSo &= plan.offsets[i] >= 0 && plan.offsets[i] % alignment == 0 &&
            getEnd(i) <= plan.peak;
    for (size_t j = 0; j != i; ++j)
      isSo &= !overlapInTime(lives[i], lives[j]) ||
              getEnd(i) <= plan.offsets[j] || getEnd(j) <= plan.offsets[i];
  }
  return isSo;
}

/// Of any sizes, or those of steps: a few large ones, of two sizes, and others.
std::vector<Lifetime> randomLifetimes() {
  auto any = rc::gen::inRange<int64_t>(1, 5000);
  auto ofSteps = rc::gen::weightedOneOf<int64_t>(
      {{1, rc::gen::element<int64_t>(30000, 40100)},
       {4, rc::gen::inRange<int64_t>(1, 3000)}});
  auto lifetime = rc::gen::map(rc::gen::tuple(*rc::gen::element(any, ofSteps),
                                              rc::gen::inRange<int64_t>(0, 60),
                                              rc::gen::inRange<int64_t>(0, 20)),
                               [](std::tuple<int64_t, int64_t, int64_t> parts) {
                                 auto [bytes, begin, length] = parts;
                                 return Lifetime{bytes, begin, begin + length};
                               });
  return *rc::gen::container<std::vector<Lifetime>>(lifetime);
}

// An arena of nothing must not be a special case anywhere below.
TEST(MemoryAssignment, NothingNeedsNothing) {
  MemoryPlan plan = assignMemory({}, 64);
  EXPECT_EQ(plan.peak, 0);
  EXPECT_EQ(plan.lowerBound, 0);
}

// The shape of a training step: saved activations nest, temporaries come and
// go.
TEST(MemoryAssignment, NestedLivesReachTheLowerBound) {
  std::vector<Lifetime> lives;
  for (int64_t layer = 0; layer != 50; ++layer) {
    lives.push_back({4096, 4 * layer, 400 - 4 * layer});
    lives.push_back({1000, 4 * layer + 1, 4 * layer + 2});
    lives.push_back({3000, 4 * layer + 2, 4 * layer + 3});
  }
  MemoryPlan plan = assignMemory(lives, 64);
  EXPECT_EQ(plan.peak, plan.lowerBound);
}

// The largest first, in the gap that it fills best, takes 576 bytes.
TEST(MemoryAssignment, TriesOthersWhereLargestFirstLeavesGaps) {
  EXPECT_EQ(
      assignMemory({{128, 4, 5}, {256, 2, 3}, {192, 2, 4}, {192, 5, 5}}, 64)
          .peak,
      448);
}

/// A step as a search fills it: of each layer, so much is kept for the
/// backward, and units are gathered early, and gradients reduced late, as long
/// as there is room for so many of them. A root is gathered to the loss, and
/// its gradient ends last.
std::vector<Lifetime> makeFullStep(int64_t layers, int64_t kept, int64_t room,
                                   int64_t root = 0, int64_t temporary = 0) {
  constexpr int64_t large = 2048, small = 192, step = 10;
  const int64_t end = 2 * step * layers;
  std::vector<Lifetime> lives;
  std::vector<int64_t> alive(size_t(end + 2 * step), 0);
  auto fits = [&](int64_t from, int64_t to) {
    for (int64_t time = from; time <= to; ++time)
      if (alive[size_t(time)] + large >
          kept * layers * small + room * large + root + temporary)
        return false;
    return true;
  };
  auto take = [&](const Lifetime &life) {
    for (int64_t time = life.begin; time <= life.end; ++time)
      alive[size_t(time)] += life.bytes;
  };
  for (int64_t layer = 0; layer != layers; ++layer) {
    int64_t forward = step * layer, backward = end - step * layer;
    for (int64_t i = 0; i != kept; ++i)
      lives.push_back({small, forward + i, backward - i});
    lives.push_back({large, forward, forward + step - 1});
    lives.push_back({large, backward, backward + step - 1});
    lives.push_back({large, backward + 5, backward + 5 + step - 1});
  }
  if (root) {
    lives.push_back({root, 0, end / 2 + 2});
    lives.push_back({root, end / 2, end + step});
  }
  for (int64_t time = 0; temporary && time < end + step; time += 2)
    lives.push_back({temporary, time, time + 1});
  for (const Lifetime &life : lives)
    take(life);
  for (Lifetime &life : lives) {
    bool isGradient = life.begin % step == 5;
    while (life.bytes == large) {
      Lifetime more = isGradient
                          ? Lifetime{large, life.end + 1, life.end + step}
                          : Lifetime{large, life.begin - step, life.begin - 1};
      if (more.begin < 0 || more.end >= int64_t(alive.size()) ||
          !fits(more.begin, more.end))
        break;
      take(more);
      life.begin = std::min(life.begin, more.begin);
      life.end = std::max(life.end, more.end);
    }
  }
  return lives;
}

// Without packing from both ends it is 1 to 20 % above the bound.
TEST(MemoryAssignment, LeavesNoGapsInStepsThatFillTheirMemory) {
  for (int64_t layers : {16, 24, 32, 48})
    for (int64_t kept : {1, 2, 3, 4})
      for (int64_t room : {4, 5, 6}) {
        MemoryPlan plan = assignMemory(makeFullStep(layers, kept, room), 64);
        EXPECT_EQ(plan.peak, plan.lowerBound)
            << layers << ' ' << kept << ' ' << room;
      }
}

// The root is gathered to the loss, and its gradient is there from then on; in
// the place of the former lies what is gathered later, which is smaller. Where
// others are not allowed in what is left there, it is up to 1.5 % above.
TEST(MemoryAssignment, SmallBuffersFillGapsBetweenLargeOnes) {
  for (int64_t layers : {16, 24, 32, 48})
    for (int64_t kept : {1, 2, 3, 4})
      for (int64_t room : {4, 5, 6}) {
        std::vector<Lifetime> lives =
            makeFullStep(layers, kept, room, /*root=*/2304, /*temporary=*/256);
        MemoryPlan plan = assignMemory(lives, 64);
        EXPECT_TRUE(isPacked(lives, plan, 64));
        EXPECT_EQ(plan.peak, plan.lowerBound)
            << layers << ' ' << kept << ' ' << room;
      }
}

// The time of the peak is what the report shows the reader.
TEST(MemoryAssignment, NamesTheFirstPeak) {
  MemoryPlan plan = assignMemory({{64, 0, 9}, {128, 3, 4}, {128, 7, 8}}, 64);
  EXPECT_EQ(plan.lowerBound, 192);
  EXPECT_EQ(plan.peakTime, 3);
}

// covers: buffers that are not free
TEST(MemoryAssignment, NoTwoLivingBuffersShareAByte) {
  EXPECT_TRUE(rc::check([] {
    std::vector<Lifetime> lives = randomLifetimes();
    RC_ASSERT(isPacked(lives, assignMemory(lives, 64), 64));
  }));
}

//===----------------------------------------------------------------------===//
// Lives
//===----------------------------------------------------------------------===//

Command work(uint32_t stream, std::vector<uint32_t> buffers) {
  Command command;
  command.stream = stream;
  command.buffers = std::move(buffers);
  return command;
}

Command order(CommandKind kind, uint32_t stream, uint32_t event) {
  Command command;
  command.stream = stream;
  command.kind = kind;
  command.event = event;
  return command;
}

// A gather that may run ahead lives from the event that holds it; what it reads
// and writes, until the compute stream has waited.
TEST(BufferLives, LastFromTheEventThatHoldsToTheWait) {
  std::vector<Command> commands = {
      work(0, {0}),                     // 0
      order(CommandKind::Record, 0, 0), // 1
      work(0, {0}),                     // 2
      work(0, {0}),                     // 3
      order(CommandKind::Wait, 1, 0),   // 4
      work(1, {1, 2}),                  // 5: the gather
      order(CommandKind::Record, 1, 1), // 6
      work(0, {0}),                     // 7
      order(CommandKind::Wait, 0, 1),   // 8
      work(0, {2}),                     // 9
      work(1, {3}),                     // 10: nobody waits for it
  };
  std::vector<Lifetime> lives = findLives(commands, 5, 2);
  auto expect = [&](uint32_t buffer, int64_t begin, int64_t end) {
    EXPECT_EQ(lives[buffer].begin, begin) << buffer;
    EXPECT_EQ(lives[buffer].end, end) << buffer;
  };
  expect(0, 0, 7);
  expect(1, 1, 8);
  expect(2, 1, 9);
  expect(3, 1, 11);
  expect(4, 0, -1);
}

// What is launched where the compute stream has waited takes the memory that
// the wait has freed, although nothing is computed between the two.
TEST(BufferLives, BeginAfterTheWaitInFrontOfTheLaunch) {
  std::vector<Command> commands = {
      work(0, {0}),                     // 0
      work(1, {1}),                     // 1: the reduction
      order(CommandKind::Record, 1, 0), // 2
      work(0, {0}),                     // 3
      order(CommandKind::Wait, 0, 0),   // 4
      order(CommandKind::Record, 0, 1), // 5
      order(CommandKind::Wait, 2, 1),   // 6
      work(2, {2}),                     // 7: the gather
  };
  std::vector<Lifetime> lives = findLives(commands, 3, 3);
  EXPECT_EQ(lives[1].end, 4);
  EXPECT_EQ(lives[2].begin, 5);
}

// Without the commands of a higher role, their waits order nothing.
TEST(BufferLives, DoNotTrustWaitsOfHigherRoles) {
  std::vector<Command> commands = {
      work(1, {0}), order(CommandKind::Record, 1, 0),
      order(CommandKind::Wait, 0, 0), work(0, {1})};
  EXPECT_EQ(findLives(commands, 2, 2)[0].end, 2);
  commands[2].role = 1;
  EXPECT_EQ(findLives(commands, 2, 2)[0].end, 4);
}

/// Which command comes before which, by streams and events alone, in a run of
/// all commands up to a role: paths in a graph.
std::vector<std::vector<bool>> findPaths(const std::vector<Command> &commands,
                                         uint32_t last) {
  size_t count = commands.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count));
  for (size_t i = 0; i != count; ++i)
    for (size_t j = 0; j != i; ++j) {
      if (commands[i].role > last || commands[j].role > last)
        continue;
      bool isEvent = commands[i].kind == CommandKind::Wait &&
                     commands[j].kind == CommandKind::Record &&
                     commands[i].event == commands[j].event;
      before[j][i] = commands[i].stream == commands[j].stream || isEvent;
    }
  for (size_t k = 0; k != count; ++k)
    for (size_t i = 0; i != count; ++i)
      for (size_t j = 0; before[i][k] && j != count; ++j)
        before[i][j] = before[i][j] || before[k][j];
  return before;
}

// What begins after another has ended comes after it, by events that are there,
// in every run: so a place is taken over without a wait.
TEST(BufferLives, OneAfterTheOtherIsOrdered) {
  EXPECT_TRUE(rc::check([] {
    std::vector<Command> commands;
    uint32_t events = 0;
    constexpr uint32_t numBuffers = 6;
    for (auto count = *rc::gen::inRange(0, 40); count; --count) {
      auto stream = *rc::gen::inRange<uint32_t>(0, 3);
      auto kind = *rc::gen::inRange(0, 4);
      Command command = work(stream, {});
      if (kind == 0)
        command = order(CommandKind::Record, stream, events++);
      else if (kind == 1 && events)
        command = order(CommandKind::Wait, stream,
                        *rc::gen::inRange<uint32_t>(0, events));
      else
        command.buffers.push_back(*rc::gen::inRange<uint32_t>(0, numBuffers));
      command.role = *rc::gen::inRange<uint32_t>(0, 2);
      commands.push_back(command);
    }
    std::vector<Lifetime> lives = findLives(commands, numBuffers, 3);
    for (uint32_t last : {0u, 1u}) {
      std::vector<std::vector<bool>> before = findPaths(commands, last);
      for (size_t i = 0; i != commands.size(); ++i)
        for (size_t j = 0; j != commands.size(); ++j)
          for (uint32_t a : commands[i].buffers)
            for (uint32_t b : commands[j].buffers)
              if (commands[i].role <= last && commands[j].role <= last &&
                  lives[a].end < lives[b].begin)
                RC_ASSERT(before[i][j]);
    }
  }));
}

} // namespace
