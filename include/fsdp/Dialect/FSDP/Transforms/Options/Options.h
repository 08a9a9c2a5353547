//===- Options.h - What people may decide about a step ----------*- C++ -*-===//
//
// The types of the options in Options.td, and how they are read from text: the
// same by passes, by the pipeline and by `fsdp-plan`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_OPTIONS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_OPTIONS_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "llvm/Support/CommandLine.h"

#include <optional>
#include <string>
#include <vector>

#include "fsdp/Dialect/FSDP/Transforms/Options/OptionEnums.h.inc"

namespace fsdp {

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

/// A number of bytes; 0 for no limit.
struct ByteSize {
  int64_t bytes = 0;
  operator int64_t() const { return bytes; }
};

/// `true` (no group: all ranks gather again), `false` (a group of one rank
/// keeps all), or the ranks of a group that keeps the unit between them.
struct ReshardAfterForward {
  std::optional<int64_t> group;
  bool isAuto = false; ///< fsdp-plan decides it.
};

/// The ranks as a mesh: sizes of named axes, outermost first; neighbours differ
/// along the last one. Without axes: it is not said.
struct MeshSizes {
  std::vector<std::pair<std::string, int64_t>> axes;
  bool isAuto = false; ///< fsdp-plan decides them.

  /// The axis along which units have copies, unless they say otherwise.
  static constexpr llvm::StringLiteral replicate = "replicate";
  static MeshSizes of(int64_t replicate, int64_t shard);
  bool hasAxis(llvm::StringRef name) const;
  /// The size of the axis "replicate"; 1 if there is none.
  int64_t getReplicas() const;
  /// How many ranks all axes have, or INT64_MAX if that is less.
  int64_t getRanks() const;
};

/// True of a strategy that shards within groups of a mesh of several copies.
bool isHybrid(Strategy strategy);
/// Into how many shards it splits a unit over so many ranks.
int64_t countShards(Strategy strategy, int64_t ranks, const MeshSizes &mesh);

/// For how many chunks of rows a loss is computed.
struct ChunkLoss {
  int64_t chunks = 1;
  bool isAuto = false; ///< fsdp-plan decides it.
};

/// What is decided for the units of which `regex` matches the whole name.
struct UnitRule {
  std::string regex;
  std::optional<Strategy> strategy;
  std::optional<bool> reshard, reshardAfterBackward;
  std::vector<std::string> shard; ///< The axes, in any order; none: unsaid.
  bool isShardAuto = false;       ///< fsdp-plan decides them.
  ElementType storage = ElementType::Unchanged;
  ElementType reduce = ElementType::Unchanged;

  /// What a later rule says counts.
  void add(const UnitRule &later);
};

struct UnitRules {
  std::vector<UnitRule> rules;

  /// fsdp-plan decides the axes of some units.
  bool isAuto() const {
    return llvm::any_of(rules, [](const UnitRule &r) { return r.isShardAuto; });
  }
};

/// What the backward computes again: nothing, the modules of which `scope`
/// matches the path, what is cheap of these, or as many units as `budget`
/// takes.
struct Remat {
  std::string scope;
  bool isCheap = false;
  ByteSize budget;
};

/// Which parameters have no weight decay: those of fewer than `dims`
/// dimensions, and those of which `regex`, if there is one, matches a part of
/// the name.
struct NoDecay {
  int64_t dims = 0;
  std::string regex;
  explicit operator bool() const { return dims || !regex.empty(); }
};

/// Groups of parameters, each with a learning rate of its own: a parameter is
/// in the last one that it matches.
struct LRGroups {
  std::vector<NoDecay> rules;
  explicit operator bool() const { return !rules.empty(); }
};

/// What lies in host memory: parameter shards, optimizer states with gradients,
/// or both of as many units as it takes to save `bytes` of device memory.
struct Offload {
  bool parameters = false, states = false;
  ByteSize bytes;
  bool isAuto = false; ///< fsdp-plan decides it.
  explicit operator bool() const { return parameters || states || bytes; }
};

/// Of how many micro-batches a step is, and whether the loss is their mean.
struct Accumulation {
  int64_t microBatches = 1;
  bool isMean = false;
};

/// Which collectives go in one call: at most so many units, or bytes; both 0 is
/// no bucket.
struct Bucket {
  BucketMode mode = BucketMode::Group;
  int64_t units = 0;
  ByteSize bytes;
};

/// How many gathered units may be alive, 0 for any number. A default rises to
/// what the step needs.
struct GatherLimit {
  int64_t units = 2;
  bool isDefault = true;
};

/// Pipelines of passes of other people, one for the end of each level; empty:
/// none.
struct PassesAt {
  std::string aten, logical, scheduled, plan;
};

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

/// Sets `value` to what `text` says, or returns what was expected instead.
std::string readOption(llvm::StringRef text, bool &value);
std::string readOption(llvm::StringRef text, std::string &value);
std::string readOption(llvm::StringRef text, ByteSize &value);
std::string readOption(llvm::StringRef text, ReshardAfterForward &value);
std::string readOption(llvm::StringRef text, MeshSizes &value);
std::string readOption(llvm::StringRef text, ChunkLoss &value);
/// `file:PATH`: the rules that are in the file, which is read.
std::string readOption(llvm::StringRef text, UnitRules &value);
std::string readOption(llvm::StringRef text, Accumulation &value);
std::string readOption(llvm::StringRef text, Remat &value);
std::string readOption(llvm::StringRef text, Offload &value);
std::string readOption(llvm::StringRef text, NoDecay &value);
std::string readOption(llvm::StringRef text, LRGroups &value);
std::string readOption(llvm::StringRef text, GradScaler &value);
std::string readOption(llvm::StringRef text, ClipGradNorm &value);
std::string readOption(llvm::StringRef text, Bucket &value);
std::string readOption(llvm::StringRef text, GatherLimit &value);
std::string readOption(llvm::StringRef text, PassesAt &value);
/// A number of at least `least`.
std::string readOption(llvm::StringRef text, int64_t &value, int64_t least = 0);

/// Enumerations are read in any case.
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::string readOption(llvm::StringRef text, Enum &value) {
  std::string names;
  for (uint32_t i = 0; !stringifyEnum(Enum(i)).empty(); ++i) {
    if (stringifyEnum(Enum(i)).equals_insensitive(text)) {
      value = Enum(i);
      return "";
    }
    names += (i ? ", " : "") + stringifyEnum(Enum(i)).str();
  }
  return "one of " + names;
}

/// Also zero3 and zero2, as DeepSpeed numbers the stages.
std::string readOption(llvm::StringRef text, Strategy &value);

/// The text that `readOption` reads as `value`.
std::string spellOption(bool value);
std::string spellOption(int64_t value);
std::string spellOption(const std::string &value);
std::string spellOption(const ByteSize &value);
std::string spellOption(const ReshardAfterForward &value);
std::string spellOption(const MeshSizes &value);
std::string spellOption(const ChunkLoss &value);
std::string spellOption(const UnitRules &value);
std::string spellOption(const Accumulation &value);
std::string spellOption(const Remat &value);
std::string spellOption(const Offload &value);
std::string spellOption(const NoDecay &value);
std::string spellOption(const LRGroups &value);
std::string spellOption(const GradScaler &value);
std::string spellOption(const ClipGradNorm &value);
std::string spellOption(const Bucket &value);
std::string spellOption(const GatherLimit &value);
std::string spellOption(const PassesAt &value);
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::string spellOption(Enum value) {
  return stringifyEnum(value).str();
}

/// Reads options of passes, also as they are printed: a pipeline that MLIR
/// writes down, for a reproducer, is one that it reads.
template <typename T> struct OptionParser : llvm::cl::basic_parser<T> {
  using llvm::cl::basic_parser<T>::basic_parser;

  bool parse(llvm::cl::Option &option, llvm::StringRef, llvm::StringRef text,
             T &value) {
    std::string expected = readOption(text, value);
    if (expected.empty())
      return false;
    value = T();
    return !isNothing(text) &&
           option.error("expected " + expected + "; found '" + text + "'");
  }
  static void print(llvm::raw_ostream &os, const T &value) {
    std::string text = spellOption(value);
    bool isWord = text.find_first_of(" \t") == std::string::npos;
    os << (isWord ? "" : "\"") << text << (isWord ? "" : "\"");
  }
  void printOptionDiff(const llvm::cl::Option &, const T &,
                       const llvm::cl::OptionValue<T> &, size_t) const {}

private:
  /// Whether a value that nobody gives is printed so; what is a number, MLIR
  /// prints as one.
  static bool isNothing(llvm::StringRef text) {
    if constexpr (std::is_convertible_v<T, int64_t>)
      if (text == std::to_string(int64_t(T())))
        return true;
    return text == spellOption(T());
  }
};

} // namespace fsdp

#define FSDP_OPTION_TYPE(T)                                                    \
  template <> struct llvm::cl::parser<T> : fsdp::OptionParser<T> {             \
    using fsdp::OptionParser<T>::OptionParser;                                 \
  }

FSDP_OPTION_TYPE(fsdp::Strategy);
FSDP_OPTION_TYPE(fsdp::ElementType);
FSDP_OPTION_TYPE(fsdp::Optimizer);
FSDP_OPTION_TYPE(fsdp::BackwardPrefetch);
FSDP_OPTION_TYPE(fsdp::ReduceWait);
FSDP_OPTION_TYPE(fsdp::SyncBuffers);
FSDP_OPTION_TYPE(fsdp::ByteSize);
FSDP_OPTION_TYPE(fsdp::ReshardAfterForward);
FSDP_OPTION_TYPE(fsdp::MeshSizes);
FSDP_OPTION_TYPE(fsdp::ChunkLoss);
FSDP_OPTION_TYPE(fsdp::UnitRules);
FSDP_OPTION_TYPE(fsdp::Accumulation);
FSDP_OPTION_TYPE(fsdp::Remat);
FSDP_OPTION_TYPE(fsdp::Offload);
FSDP_OPTION_TYPE(fsdp::NoDecay);
FSDP_OPTION_TYPE(fsdp::LRGroups);
FSDP_OPTION_TYPE(fsdp::GradScaler);
FSDP_OPTION_TYPE(fsdp::ClipGradNorm);
FSDP_OPTION_TYPE(fsdp::Bucket);
FSDP_OPTION_TYPE(fsdp::GatherLimit);
FSDP_OPTION_TYPE(fsdp::PassesAt);
#undef FSDP_OPTION_TYPE

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_OPTIONS_H
