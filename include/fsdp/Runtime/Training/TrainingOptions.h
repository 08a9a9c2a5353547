//===- TrainingOptions.h - What a training is told --------------*- C++ -*-===//

#ifndef FSDP_RUNTIME_TRAINING_TRAININGOPTIONS_H
#define FSDP_RUNTIME_TRAINING_TRAININGOPTIONS_H

#include "fsdp/Runtime/Execution/Session.h"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// Of `TrainingOptions::init`: the values are in the file of `weights`.
inline constexpr const char *fromModule = "from-module";

struct TrainingOptions {
  std::vector<std::string> plans; ///< One, or one for each rank.
  std::string weights, init, data, reference, trace, profile;
  std::string summon, summonOnly; ///< A file, and a regular expression.
  bool withGrads = false;
  std::string exported; ///< A .safetensors file, or a folder.
  std::uint64_t maxShardSize =
      5'000'000'000;       ///< Bytes of a file of `exported`.
  std::string checkpoint;  ///< The folder that checkpoints are written to.
  long long every = 0;     ///< Steps between two of them; 0: at the end alone.
  long long keep = 0;      ///< How many; 0: all.
  std::string resume;      ///< A checkpoint, a folder of them, or auto.
  std::string tensorBoard; ///< The folder of event files.
  std::string program = "step"; ///< The one that trains.
  std::string log;              ///< The folder of the ranks' own lines.
  std::string evalData;
  long long evalEvery = 0; ///< Steps between two evaluations; 0: none.
  std::optional<long long> ranks;
  long long steps = 0;
  std::optional<unsigned> tokenBits;        ///< None: those of DataOptions.
  std::optional<std::uint64_t> shuffleSeed; ///< None: the order of the files.
  HyperParameters hyperParameters;
  /// By group of fsdp-plan --lr-groups: its rate in parts of that of others.
  std::map<unsigned, double> lrScales;
  std::string lrSchedule = "constant"; ///< Or linear, cosine, a file.
  long long warmupSteps = 0;
  Seeds seeds; ///< Of what draws random numbers.
  double tolerance = 1e-5;
  std::string backend = "local";
  std::string map = "hosts"; ///< Which rank a process is.
  std::string device;
  std::vector<std::string> libraries, trusted;
  std::vector<std::string> renames; ///< Of tensors of `weights`.
  bool verify = false;
  bool json = false, overlap = false;
  bool verbose = false;        ///< Says where time and memory went.
  long long logEvery = 0;      ///< Steps between two lines; 0: about ten lines.
  std::uint64_t chaosSeed = 0; ///< 0: no chaos.
  /// Those of `spellHyperParameters` that are given, not the default.
  std::set<std::string> given;
  double timeout = std::chrono::duration<double>(defaultTimeout).count();

  std::chrono::milliseconds getTimeout() const {
    return std::chrono::ceil<std::chrono::milliseconds>(
        std::chrono::duration<double>(timeout));
  }
};

/// What a training is told, by the names of the options.
using TrainingFacts = std::vector<std::pair<std::string, std::string>>;

/// The hyper-parameters and steps of a training, which a checkpoint keeps.
TrainingFacts spellHyperParameters(const TrainingOptions &options);
/// Those that are not given become what they were: `facts` of a checkpoint,
/// which are untrusted.
void resumeHyperParameters(const TrainingFacts &facts,
                           TrainingOptions &options);

/// A hyper-parameter that is a number: the name of its option, what it is, for
/// people, and where it stands.
struct HyperParameterOption {
  const char *name, *help;
  double HyperParameters::*value;
};
std::span<const HyperParameterOption> getHyperParameterOptions();

/// Reads factors of rates, as "1=0.1", into `scales`.
void readScales(const std::vector<std::string> &texts,
                std::map<unsigned, double> &scales);

/// Throws unless `steps` and `warmupSteps` fit each other.
void checkSteps(const TrainingOptions &options);

/// True of a schedule of learning rates that is no file.
bool isNamedSchedule(const std::string &schedule);

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_TRAININGOPTIONS_H
