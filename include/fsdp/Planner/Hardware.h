//===- Hardware.h - How long work takes on a machine ------------*- C++ -*-===//
//
// Constants of a machine, read from a file such as hardware/cpu.toml, and the
// durations that follow from them: a roofline for computations, latency and
// bandwidth for collectives. Durations are predictions, in nanoseconds; they
// are at most about a week each.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_HARDWARE_H
#define FSDP_PLANNER_HARDWARE_H

#include "fsdp/Archive/Expected.h"
#include "fsdp/Planner/CollectiveCost.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::planner {

enum class FloatType { F64, F32, BF16, F16 };
inline constexpr size_t numFloatTypes = 4;

enum class CollectiveKind { AllGather, ReduceScatter, AllReduce };
inline constexpr size_t numCollectiveKinds = 3;

/// What one rank computes in one launch.
struct Computation {
  enum class Kind {
    Matrix,
    Attention,
    MaskedAttention,
    FlashAttention,
    Vector
  };
  Kind kind = Kind::Vector;
  FloatType type = FloatType::F32; ///< For matrix and attention.
  double flops = 0;
  double bytes = 0;      ///< Read and written.
  bool isOnHost = false; ///< In the memory of the host, by its cores.
};

/// A copy between host and device.
struct Transfer {
  double bytes = 0;
};

/// A collective over `ranks` ranks; `bytes` are those of the whole tensor, not
/// of a rank's piece.
struct Communication {
  CollectiveKind kind;
  double bytes = 0; ///< As they are sent: in the type of the message.
  int64_t ranks = 1;
  double copied = 0; ///< Bytes read and written on its stream, in and out.
  /// Ranks from the first of the group to the last, both with; 0: as many as
  /// there are, as they are neighbours.
  int64_t span = 0;
  int64_t block = 1; ///< So many neighbours at a time are in the group.
};

struct Hardware {
  /// In one node: latency + perStep * (ranks - 1) + sent / bandwidth, with
  /// sent = bytes * (ranks - 1) / ranks, twice that for an all-reduce. Over
  /// several nodes, with g ranks of the group in each: latency is that of the
  /// network, each step to the next node is one of the network, all others are
  /// of the node, and bandwidth is the smaller one of the node's and g times
  /// the network's (rings, as NCCL's src/graph/tuning.cc has them).
  struct Line {
    double latency = 0, perStep = 0; ///< Nanoseconds.
    double bandwidth = 0;            ///< Bytes per nanosecond.
  };
  using Link = std::array<Line, numCollectiveKinds>;

  std::string name;
  double launch = 0;       ///< Nanoseconds, of every computation.
  bool sharedCore = false; ///< The streams of a rank take turns on one core.
  bool sharedLink = false; ///< Collectives that run at once share links.
  /// Operations per nanosecond. Of attention: by the kernel that plans take,
  /// where a tensor says what is masked, and by FlashAttention 2.
  std::array<double, numFloatTypes> matrix = {}, attention = {},
                                    maskedAttention = {}, flashAttention = {};
  bool hasCudnnAttention = false; ///< Plans take cuDNN's.
  /// As its vendor states it, of products; 0: not known.
  std::array<double, numFloatTypes> peak = {};
  double vector = 0;
  /// Bytes per nanosecond; the second where no more than `cacheBytes` are
  /// touched.
  double memory = 0, cache = 0, cacheBytes = 0;
  double capacity = 0;   ///< Bytes of memory that a rank has; 0: not said.
  double contention = 0; ///< The part by which a collective that runs slows
                         ///< computations beside it.
  /// `nodeRanks` ranks share a node; `network` has one rank's way out of it.
  Link node = {}, network = {};
  int64_t nodeRanks = 1;
  bool hasNetwork = false; ///< If not, any group is in one node.
  /// Each rank's way to the memory of the host and back; and what the host
  /// reads and writes there for it, in bytes per nanosecond. No bandwidth: the
  /// machine has no such memory.
  struct Host {
    double latency = 0, bandwidth = 0, memory = 0;
  } host = {};

  int64_t getDuration(const Computation &work) const;
  int64_t getDuration(const Communication &work) const;
  int64_t getDuration(const Transfer &work) const;
  /// In parts of 1024, as a step's model has it.
  int64_t getContention() const;
  /// What it adds to its call, copies included.
  CollectiveCost getCost(const Communication &work) const;
  /// What it takes of the links in a node and of those between nodes; nothing,
  /// unless links are shared. One rank in each node sends nothing in the nodes.
  LinkUse getLinks(const Communication &work) const;

private:
  /// How a group uses the links: so many ranks in each node, and how fast.
  struct Way {
    bool leavesNode = false;
    int64_t inNode = 1; ///< Ranks of a group over several nodes.
    double bandwidth = 0;
  };
  Way findWay(const Communication &work) const;
};

/// Reads the text of a hardware file; errors name `path`.
/// `factors`, "KEY=FACTORx,...", multiply numbers of the file.
archive::Expected<Hardware> parseHardware(std::string_view text,
                                          const std::string &path,
                                          const std::string &factors = "");

/// The text of a hardware file, without comments, that reads as `hardware`.
std::string write(const Hardware &hardware);

/// The names of the files of hardware/, which are built in.
std::vector<std::string_view> getBuiltinHardware();

/// The hardware that is built in under this name ("cpu", "h100"), or else the
/// file of that name.
archive::Expected<Hardware> loadHardware(const std::string &nameOrPath,
                                         const std::string &factors = "");

/// A hardware file with the numbers of another in place of its own: of one that
/// has only what was measured, such as `[compute]` with `vector`.
archive::Expected<Hardware> loadMeasuredHardware(const std::string &nameOrPath,
                                                 const std::string &ratesPath);

/// The file that was kept for the machine whose device is "cpu" or "cuda", as
/// `python -m fsdp_mlir calibrate` keeps it: fsdp-mlir/DEVICE.toml in
/// $XDG_CONFIG_HOME, or in ~/.config. Empty if there is none.
std::string findKeptHardware(std::string_view device);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_HARDWARE_H
