//===- MemoryTest.cpp - Which value lies where ----------------------------===//
//
// Random commands on random streams, against a memory of single bytes and an
// order that is searched for as a path.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Memory.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <set>

using namespace fsdp::symbolic;
using fsdp::planfile::Space;

namespace {

/// A vector of floats in the memory of a root.
struct Place {
  Layout layout;
  Window window;
  Place(uint32_t root, uint64_t begin, Layout shape)
      : layout(std::move(shape)) {
    window = {root, root, Space::Device, DType::F32, begin, &layout};
  }
  Place(const Place &) = delete;
};

/// One that runs after all that ran before it.
void act(Memory &memory, int32_t position) {
  Clock done;
  done.fill(position);
  memory.setActor({position, Stream::Compute}, done);
}

std::optional<Problem::Kind> kindOf(const Memory &memory) {
  if (!memory.getProblem())
    return {};
  return memory.getProblem()->kind;
}

} // namespace

// The search for what lies in the gaps ends where there is nothing.
TEST(Memory, WritesBetweenGapsOfNothing) {
  Values values;
  Memory memory(values);
  Place columns(0, 0, Layout({4, 2}, {4, 1}));
  act(memory, 0);
  memory.write(columns.window, Content::vector(7, 8));
  EXPECT_EQ(values.getNumber(memory.read(columns.window)),
            values.getNumber(Content::vector(7, 8)));
}

TEST(Memory, ReadsWhatWasWritten) {
  Values values;
  Memory memory(values);
  Place rows(0, 0, Layout({2, 3}, {3, 1})),
      columns(0, 0, Layout({3, 2}, {1, 3}));
  act(memory, 0);
  memory.write(rows.window, Content::vector(7, 6));
  EXPECT_EQ(values.getNumber(memory.read(rows.window)),
            values.getNumber(Content::vector(7, 6)));
  EXPECT_NE(values.getNumber(memory.read(columns.window)),
            values.getNumber(Content::vector(7, 6)));
  // Written in the one order, read in the other, and written back.
  Content transposed = memory.read(columns.window);
  act(memory, 1);
  memory.write(columns.window, transposed);
  EXPECT_EQ(values.getNumber(memory.read(rows.window)),
            values.getNumber(Content::vector(7, 6)));
  EXPECT_FALSE(kindOf(memory));
}

// The number of what is read is that of the elements, whatever pieces they were
// written in.
TEST(Memory, PiecesMakeTheWhole) {
  Values values;
  Memory memory(values);
  Place all(0, 64, Layout::vector(8)), front(0, 64, Layout::vector(3)),
      back(0, 76, Layout::vector(5));
  Content rest = Content::vector(7, 5);
  rest.parts.front().index = 3;
  act(memory, 0);
  memory.write(front.window, Content::vector(7, 3));
  memory.write(back.window, rest);
  EXPECT_EQ(values.getNumber(memory.read(all.window)),
            values.getNumber(Content::vector(7, 8)));
}

TEST(Memory, ForgetsWhatAProgramDoesNotKeep) {
  Values values;
  Memory memory(values);
  Place kept(0, 0, Layout::vector(4)), lost(1, 16, Layout::vector(4));
  act(memory, 0);
  memory.write(kept.window, Content::vector(7, 4));
  memory.write(lost.window, Content::vector(8, 4));
  memory.beginProgram([](uint32_t root) { return root == 0; });
  act(memory, 0);
  memory.read(kept.window);
  EXPECT_FALSE(kindOf(memory));
  memory.read(lost.window);
  EXPECT_EQ(kindOf(memory), Problem::Unwritten);
}

namespace {

/// Commands on streams, with events between them: who is done before whom.
struct Order {
  static constexpr size_t numUsed = 3;    // of the streams
  std::vector<std::vector<size_t>> after; // direct predecessors

  bool isBefore(size_t first, size_t second) const {
    std::set<size_t> seen = {second};
    std::vector<size_t> work = {second};
    while (!work.empty()) {
      size_t at = work.back();
      work.pop_back();
      for (size_t previous : after[at])
        if (seen.insert(previous).second)
          work.push_back(previous);
    }
    return first == second || seen.count(first);
  }
};

/// The memory, byte by byte.
struct Byte {
  std::optional<uint32_t> root;
  std::optional<size_t> writer = {};        // none: before all commands
  std::pair<Number, uint64_t> element = {}; // which one of which vector
  std::vector<size_t> readers = {};
};

} // namespace

// A command races exactly if nothing orders it against one that touches the
// same bytes; it reads exactly what was written there last, for its own root.
TEST(Memory, AgreesWithBytesAndPaths) {
  std::array<int, 6> seen{};
  int reads = 0;
  auto trial = [&] {
    constexpr size_t numElements = 12, numCommands = 20;
    Values values;
    Memory memory(values);
    std::vector<Byte> bytes(numElements); // of one element: they move together
    std::set<uint32_t> losers;            // whose bytes another root has taken
    Order order;
    std::array<Clock, numStreams> clocks;
    std::array<std::optional<size_t>, Order::numUsed> latest;
    std::vector<std::pair<Clock, size_t>> events;
    std::map<Number, std::vector<std::pair<Number, uint64_t>>> meanings;
    // Before all commands there is something nearly everywhere.
    constexpr size_t numWritten = 11;
    Place written(0, 0, Layout::vector(numWritten));
    memory.setActor({}, Clock());
    memory.write(written.window, Content::vector(100, numWritten));
    for (size_t i = 0; i != numWritten; ++i)
      bytes[i] = {0, {}, {100, i}, {}};
    for (size_t command = 0; command != numCommands; ++command) {
      auto index = *rc::gen::inRange<size_t>(0, Order::numUsed);
      Stream stream = static_cast<Stream>(index);
      order.after.emplace_back();
      if (latest[index])
        order.after.back().push_back(*latest[index]);
      latest[index] = command;
      Clock &clock = clocks[index];
      clock[index] = int32_t(command);
      // Mostly all that came before is waited for, or most trials would end
      // soon.
      bool waitsForAll = *rc::gen::inRange(0, 4) != 0;
      for (auto &[known, recorded] : events)
        if (waitsForAll || *rc::gen::inRange(0, 3) == 0) {
          clock.join(known);
          order.after.back().push_back(recorded);
        }
      memory.setActor({int32_t(command), stream}, clock);

      auto begin = *rc::gen::inRange<size_t>(0, numElements);
      auto end = *rc::gen::inRange<size_t>(begin + 1, numElements + 1);
      // Two roots in the same memory.
      auto root = uint32_t(*rc::gen::inRange(0, 12) == 0);
      Place place(root, 4 * begin, Layout::vector(end - begin));
      std::optional<Problem::Kind> expected;
      auto expect = [&](Problem::Kind kind) {
        if (!expected)
          expected = kind;
      };
      if (*rc::gen::inRange(0, 2)) {
        for (size_t i = begin; i != end; ++i)
          for (size_t other : bytes[i].readers)
            if (!order.isBefore(other, command))
              expect(Problem::RaceToWrite);
        for (size_t i = begin; i != end; ++i)
          if (bytes[i].writer && !order.isBefore(*bytes[i].writer, command))
            expect(Problem::RaceToWrite);
        if (losers.count(root))
          expect(Problem::Shared);
        Number base = 100 + command % 3; // the same vectors, again and again
        memory.write(place.window, Content::vector(base, end - begin));
        for (size_t i = begin; i != end; ++i) {
          if (bytes[i].root && *bytes[i].root != root)
            losers.insert(*bytes[i].root);
          bytes[i] = {root, command, {base, i - begin}, {}};
        }
      } else {
        std::vector<std::pair<Number, uint64_t>> elements;
        for (size_t i = begin; i != end; ++i) {
          if (!bytes[i].root)
            expect(Problem::Unwritten);
          else if (*bytes[i].root != root)
            expect(Problem::Stale);
          else if (bytes[i].writer &&
                   !order.isBefore(*bytes[i].writer, command))
            expect(Problem::RaceToRead);
          elements.push_back(bytes[i].element);
        }
        if (losers.count(root))
          expect(Problem::Shared);
        // A read counts for all that was written at once, as far as it is
        // there.
        auto isSame = [&](size_t i, size_t j) {
          return bytes[i].root && bytes[i].root == bytes[j].root &&
                 bytes[i].writer == bytes[j].writer;
        };
        size_t from = begin, until = end;
        while (from != 0 && isSame(from - 1, from))
          --from;
        while (until != numElements && isSame(until, until - 1))
          ++until;
        for (size_t i = from; i != until; ++i)
          bytes[i].readers.push_back(command);
        Content content = memory.read(place.window);
        if (!expected) {
          // Equal numbers if and only if equal elements.
          Number number = values.getNumber(content);
          auto [known, isNew] = meanings.try_emplace(number, elements);
          RC_ASSERT(known->second == elements);
          for (auto &[other, others] : meanings)
            RC_ASSERT(other == number || others != elements);
          ++reads;
        }
      }
      RC_ASSERT(kindOf(memory) == expected);
      if (expected) {
        ++seen[size_t(*expected)];
        return; // the first problem is the one that is told
      }
      events.emplace_back(clock, command);
    }
  };
  // A second check would repeat the first: one seed serves the whole process.
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i != 20; ++i)
      trial();
  }));
  for (Problem::Kind kind :
       {Problem::Unwritten, Problem::Stale, Problem::RaceToRead,
        Problem::RaceToWrite, Problem::Shared})
    EXPECT_GT(seen[size_t(kind)], 0) << "no trial had problem " << kind;
  EXPECT_GT(reads, 100);
}

// A place between elements is none of them, and need not be written.
TEST(Memory, HolesBetweenElementsAreNotRead) {
  Values values;
  Memory memory(values);
  Place first(0, 0, Layout::vector(2)), second(0, 12, Layout::vector(2));
  Place odd(0, 0, Layout({2}, {4})), all(0, 0, Layout::vector(5));
  act(memory, 0);
  memory.write(first.window, Content::vector(7, 2));
  memory.write(second.window, Content::vector(8, 2));
  act(memory, 1);
  Content content = memory.read(odd.window); // places 0 and 4; 2 is a hole
  EXPECT_FALSE(kindOf(memory));
  EXPECT_TRUE(values.isWhole(content, 2));
  memory.read(all.window);
  EXPECT_EQ(kindOf(memory), Problem::Unwritten);
}

// Whatever windows are written in whatever order, a window that is read has the
// number of its elements: those of a memory that is spelled out.
TEST(Memory, WindowsAgreeWithElements) {
  int reads = 0, unwritten = 0;
  auto trial = [&] {
    constexpr size_t numElements = 64;
    Values values;
    Memory memory(values);
    std::vector<std::pair<Number, uint64_t>> elements(numElements);
    std::map<Number, std::vector<std::pair<Number, uint64_t>>> meanings;
    // Nearly everywhere there is something.
    constexpr size_t numWritten = 56;
    Place all(0, 0, Layout::vector(numWritten));
    act(memory, 0);
    memory.write(all.window, Content::vector(9, numWritten));
    for (size_t i = 0; i != numWritten; ++i)
      elements[i] = {9, i};
    for (int32_t command = 1; command != 20; ++command) {
      // A window of up to three axes, in any order, with gaps.
      std::vector<int64_t> sizes, strides;
      int64_t stride = 1;
      for (int i = *rc::gen::inRange(0, 4); i != 0; --i) {
        sizes.push_back(*rc::gen::inRange<int64_t>(1, 5));
        stride *= *rc::gen::inRange<int64_t>(1, 3);
        strides.push_back(stride);
        stride *= sizes.back();
      }
      for (size_t i = 1; i < sizes.size(); ++i) {
        auto other = *rc::gen::inRange<size_t>(0, i + 1);
        std::swap(sizes[i], sizes[other]);
        std::swap(strides[i], strides[other]);
      }
      bool writes = *rc::gen::inRange(0, 2);
      if (!writes && *rc::gen::inRange(0, 3) == 0 && !sizes.empty())
        strides[0] = 0; // expanded
      Layout layout(sizes, strides);
      if (layout.extent > numElements)
        continue;
      auto begin =
          *rc::gen::inRange<uint64_t>(0, numElements - layout.extent + 1);
      Place place(0, 4 * begin, layout);
      std::vector<size_t> places;
      auto walk = [&](auto &self, size_t axis, size_t at) -> void {
        if (axis == sizes.size())
          return places.push_back(at);
        for (int64_t i = 0; i != sizes[axis]; ++i)
          self(self, axis + 1, at + size_t(i * strides[axis]));
      };
      walk(walk, 0, begin);
      act(memory, command);
      if (writes) {
        Number base = 100 + Number(*rc::gen::inRange(0, 3));
        bool isZero = *rc::gen::inRange(0, 4) == 0;
        Content content = isZero ? Values::zero(DType::F32, layout.numel)
                                 : Content::vector(base, layout.numel);
        memory.write(place.window, content);
        for (size_t i = 0; i != places.size(); ++i)
          elements[places[i]] = isZero ? std::pair<Number, uint64_t>(1, 0)
                                       : std::pair<Number, uint64_t>(base, i);
        continue;
      }
      Content content = memory.read(place.window);
      std::vector<std::pair<Number, uint64_t>> expected;
      bool isWritten = true;
      for (size_t at : places) {
        expected.push_back(elements[at]);
        isWritten &= elements[at].first != 0;
      }
      RC_ASSERT(isWritten == !kindOf(memory));
      if (!isWritten) {
        RC_ASSERT(kindOf(memory) == Problem::Unwritten);
        ++unwritten;
        return;
      }
      RC_ASSERT(values.findUnknown(content).empty());
      RC_ASSERT(values.isWhole(content, layout.numel));
      auto [known, isNew] =
          meanings.try_emplace(values.getNumber(content), expected);
      RC_ASSERT(known->second == expected);
      for (auto &[number, others] : meanings)
        RC_ASSERT(number == known->first || others != expected);
      ++reads;
    }
  };
  // A second check would repeat the first: one seed serves the whole process.
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i != 20; ++i)
      trial();
  }));
  EXPECT_GT(reads, 50);
  EXPECT_GT(unwritten, 0);
}

// A wide read of several narrow ones depends on all of them.
TEST(Memory, WideReadsKeepWhatIsNarrow) {
  Values values;
  Memory memory(values);
  Place all(0, 0, Layout::vector(1)), left(0, 0, Layout::vector(1)),
      right(0, 4, Layout::vector(1));
  all.window.dtype = DType::I64;
  auto number = [&](Number first, Number second) {
    act(memory, 0);
    memory.write(left.window, Content::vector(first, 1));
    memory.write(right.window, Content::vector(second, 1));
    return values.getNumber(memory.read(all.window));
  };
  EXPECT_EQ(number(1, 2), number(1, 2));
  EXPECT_NE(number(1, 2), number(1, 3));
  EXPECT_NE(number(1, 2), number(3, 2));
}
