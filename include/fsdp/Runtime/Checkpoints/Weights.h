//===- Weights.h - Parameters and buffers out of a file ---------*- C++ -*-===//
//
// Finds the values of a plan's parameters and model buffers in a `.pt2`
// archive, a safetensors file, a folder of these or a checkpoint, by name. A
// tied parameter may stand in the file under any of its names, and where all
// names of one side begin with the same component (the `m.` of a wrapper), the
// other side may lack it. Values may widen (bf16 to f32), never narrow. Of
// safetensors, a rank reads what it holds, a few megabytes at a time.
// Rejections are `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_CHECKPOINTS_WEIGHTS_H
#define FSDP_RUNTIME_CHECKPOINTS_WEIGHTS_H

#include "fsdp/Archive/PT2Archive.h"
#include "fsdp/Archive/TensorFiles.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <map>
#include <set>
#include <variant>

namespace fsdp {

struct NamedTensor;

class Weights {
public:
  /// Opens a folder, or a file of either kind, told apart by its first bytes.
  /// `renames`, each "regex=text", change the names of its tensors, one after
  /// the other: \1 in a text is what the first group matches.
  static Weights open(const std::string &path,
                      const std::vector<std::string> &renames = {});
  /// The tensors of a checkpoint; `path` is what errors name.
  static Weights of(std::string path, archive::TensorFiles files);
  /// No file, and no values; `path` is what errors name.
  static Weights none(std::string path) { return {std::move(path), {}}; }

  /// The file holds initial values, of Python's `fsdp_mlir.initialize`.
  bool isFromModule() const;

  /// A tensor of the file.
  struct Value {
    planfile::DType type;
    std::vector<std::int64_t> sizes;
    std::variant<const archive::Payload *, const archive::TensorPieces *> place;
  };
  /// Reads all of it. Throws if the file is damaged or has been changed.
  HostTensor read(const Value &value) const;

  /// A value and the parameter or model buffer that it belongs to.
  struct Match {
    std::string name;   ///< The plan's.
    std::string source; ///< The file's, as it is renamed.
    bool isBuffer;
    const Value *value;
    planfile::DType wanted; ///< The plan's; setting it converts.
    /// The plan's type does not hold every value of the file's.
    bool isRounded() const;
  };

  /// What the file has for each parameter of the plan, and for each model
  /// buffer with a name (those that the plan embeds may be missing). Valid as
  /// long as this object. With `missing`, parameters that the file lacks go
  /// there, by their primary names. Names of safetensors that the plan has no
  /// use for go to `unused`.
  std::vector<Match> match(const planfile::PlanFile &plan,
                           std::vector<std::string> *missing = nullptr,
                           std::vector<std::string> *unused = nullptr) const;

  /// A sentence if some of the matches are rounded; else empty.
  std::string describeRounding(const std::vector<Match> &matches) const;

  /// A sentence if `match` found names that the plan has no use for; else
  /// empty.
  std::string describeUnused(const std::vector<std::string> &unused) const;

  /// Puts what was matched into the session, one after the other.
  void load(const std::vector<Match> &matches, Session &session) const;

  /// The same with the optimizer states of the parameters among them, which the
  /// file has as optim.state.NAME.exp_avg, as PyTorch does.
  void loadStates(const planfile::PlanFile &plan,
                  const std::vector<Match> &matches, Session &session) const;

private:
  using File =
      std::variant<std::monostate, archive::PT2Archive, archive::TensorFiles>;
  using Entry = std::pair<const std::string, Value>;
  using Names = std::set<const Value *>;

  Weights(std::string path, File file)
      : path(std::move(path)), file(std::move(file)) {}
  void addArchive(const archive::PT2Archive &archive);
  void addTensors(const archive::TensorFiles &files);
  void findPrefix();
  void rename(const std::vector<std::string> &renames);
  bool areEqual(const Value &left, const Value &right) const;
  /// The value under any of `names`, which fits; null if there is none. All
  /// that have one of the names are `used`.
  const Entry *find(const std::vector<std::string> &names,
                    std::string_view planPrefix, planfile::DType wanted,
                    const flatbuffers::Vector<std::int64_t> &sizes,
                    Names &used) const;
  [[noreturn]] void rejectMissing(const std::vector<NamedTensor> &missing,
                                  const std::vector<Match> &matches,
                                  const Names &used) const;
  void check(std::string_view name, const Value &value, planfile::DType wanted,
             const flatbuffers::Vector<std::int64_t> &sizes) const;

  std::string path;
  File file;
  std::map<std::string, Value, std::less<>> values;
  std::map<std::string, Value, std::less<>> states; ///< Of optimizers.
  std::string prefix;                               // of all names
};

} // namespace fsdp

#endif // FSDP_RUNTIME_CHECKPOINTS_WEIGHTS_H
