//===- Memory.h - Which value lies where ------------------------*- C++ -*-===//
//
// Memory as intervals of bytes, each with the content that was written there
// last, by whom, and who has read it since. A read gives the number of what it
// finds; one that finds bytes of another buffer, or a command that no event
// orders against, is a problem. A read counts for all that is left of what was
// written at once, also where it took a part: that may find a race too many,
// never one too few. Time n log n in the number of accesses.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_MEMORY_H
#define FSDP_SYMBOLIC_MEMORY_H

#include "fsdp/Symbolic/Values.h"

#include <map>

namespace fsdp::symbolic {

inline constexpr size_t numStreams = static_cast<size_t>(Stream::MAX) + 1;

/// For each stream, the last command that is known to be done; -1 if none.
struct Clock : std::array<int32_t, numStreams> {
  Clock() { fill(-1); }
  void join(const Clock &other);
};

/// A command that touches memory.
struct Actor {
  int32_t position = -1; // -1: before all commands
  Stream stream = Stream::Compute;
};

/// Sizes and strides in elements, and what follows from them.
struct Layout {
  Layout(std::vector<int64_t> sizes, std::vector<int64_t> strides);

  std::vector<int64_t> sizes, strides;
  uint64_t numel = 1;
  uint64_t extent = 0; // elements from the first to after the last
  /// Running indices to places, and back where no two share a place.
  std::optional<Part> map, inverse;
  /// All places of the extent are elements, once each.
  bool isGapless = false;
  Number shape = 0; // of the sizes
  Number order = 0; // of the strides, where there is more than one element

  static Layout vector(uint64_t size) {
    return Layout({static_cast<int64_t>(size)}, {1});
  }
};

/// A tensor in memory. `root` owns the bytes; `begin` is that of the first
/// element, in bytes.
struct Window {
  uint32_t buffer = 0, root = 0;
  Space space = Space::Device;
  DType dtype = DType::F32;
  uint64_t begin = 0;
  const Layout *layout = nullptr;

  uint64_t end() const;
  bool isEmpty() const { return layout->numel == 0; }
  /// Another layout on the same memory, `offset` elements farther on.
  Window at(int64_t offset, const Layout &layout) const;
};

/// Why an access is wrong.
struct Problem {
  enum Kind {
    Unwritten,   // nobody has written the bytes
    Stale,       // somebody has, for another buffer
    RaceToRead,  // `other` writes what is read, in no order
    RaceToWrite, // `other` touches what is written, in no order
    Overlap,     // the same command reads some of what it writes
    Shared,      // `other` has written on another part of the buffer
  } kind;
  uint32_t buffer;
  uint64_t begin, end; // bytes
  Actor other;         // not of Unwritten
  uint32_t otherRoot;  // of Stale, Overlap, Shared: whose bytes they are
  int32_t lastWriter;  // of Stale: of the buffer itself; -1 if none
};

class Memory {
public:
  explicit Memory(Values &values) : values(&values) {}

  /// Who accesses now, and what has been done before.
  void setActor(Actor who, const Clock &done) {
    actor = who;
    clock = done;
  }

  /// The content of a window, which becomes a problem if it is none; as it is
  /// kept, or as it is numbered.
  Content readPacked(const Window &window);
  Content read(const Window &window) {
    return values->unpack(readPacked(window));
  }
  /// `content` by running index.
  void write(const Window &window, const Content &content);

  /// The first problem so far.
  const std::optional<Problem> &getProblem() const { return problem; }
  void setProblem(const Problem &found) {
    if (!problem)
      problem = found;
  }

  /// A new program begins: all that was done is in order, and of the bytes
  /// only those whose root `keeps` are left.
  template <typename Keeps> void beginProgram(const Keeps &keeps) {
    for (Segments &part : segments)
      for (auto it = part.begin(); it != part.end();) {
        it->second.writer = {};
        it->second.readers = {};
        it = keeps(it->second.root) ? std::next(it) : part.erase(it);
      }
    writers.clear();
    losses.clear();
  }

private:
  /// What was written at once, and what it left between its elements: by
  /// place, in elements.
  struct Store {
    Content content;
    DType dtype;
    bool hasGaps; // somewhere there may be nothing
  };
  struct Segment {
    uint64_t end;
    uint64_t shift; // of its first byte in the store
    uint32_t store, root;
    Actor writer;
    Clock readers;
  };
  using Segments = std::map<uint64_t, Segment>; // by first byte

  /// A buffer is in use from its first access to its last: what has lost bytes
  /// to another one is not touched again.
  struct Loss {
    uint64_t begin, end;
    Actor to;
    uint32_t root; // who has them now
  };

  void report(const Window &window, Problem::Kind kind, uint64_t begin,
              uint64_t end, const Segment *segment, Actor other);
  static Segments::iterator find(Segments &part, uint64_t at);
  bool isDone(Actor other) const;
  /// True if between the elements there may be places that nobody has written.
  bool checkRead(const Window &window);
  void checkWrite(const Window &window);
  void checkLoss(const Window &window);
  bool get(const Window &window, Segments::const_iterator segment,
           const Part &layout, Content &result);
  bool getAll(const Window &window, const Part &layout, Content &result);
  Content getBytes(const Window &window, std::string_view by);
  Content keepGaps(const Window &window, const Content &content, bool &hasGaps);
  void place(const Window &window, uint64_t begin, uint64_t end, Store store);

  Values *values;
  std::array<Segments, static_cast<size_t>(Space::MAX) + 1> segments;
  std::vector<Store> stores;
  std::vector<int32_t> writers;    // of each root, the last one
  std::map<uint32_t, Loss> losses; // of each root, the first one
  std::optional<Problem> problem;
  Actor actor;
  Clock clock;
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_MEMORY_H
