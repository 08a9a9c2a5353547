//===- Weights.h - Parameters and buffers out of a file ---------*- C++ -*-===//
//
// Finds the values of a plan's parameters and model buffers in a `.pt2` archive
// or a safetensors file, by name. A tied parameter may stand in the file under
// any of its names, and where all names of one side begin with the same
// component (the `m.` of a wrapper), the other side may lack it. Values may
// widen (bf16 to f32), never narrow. Rejections are `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_WEIGHTS_H
#define FSDP_RUNTIME_WEIGHTS_H

#include "fsdp/Archive/PT2Archive.h"
#include "fsdp/Archive/PlanFile.h"
#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Runtime/Session.h"

#include <map>
#include <variant>

namespace fsdp {

class Weights {
public:
  /// Opens a file of either kind, told apart by its first bytes.
  static Weights open(const std::string &path);
  /// No file, and no values; `path` is what errors name.
  static Weights none(std::string path) { return {std::move(path), {}}; }

  /// The file holds initial values, of Python's `fsdp_mlir.initialize`.
  bool isFromModule() const;

  /// A tensor of the file.
  struct Value {
    planfile::DType type;
    std::vector<std::int64_t> sizes;
    std::variant<const archive::Payload *, const archive::TensorInfo *> place;
  };
  /// Reads it. Throws if the file is damaged or has been changed.
  HostTensor read(const Value &value) const;

  /// A value and the parameter or model buffer that it belongs to.
  struct Match {
    std::string name;
    bool isBuffer;
    const Value *value;
    planfile::DType wanted; ///< The plan's; setting it converts.
    /// The plan's type does not hold every value of the file's.
    bool isRounded() const;
  };

  /// What the file has for each parameter of the plan, and for each model
  /// buffer with a name (those that the plan embeds may be missing). Valid as
  /// long as this object. With `missing`, parameters that the file lacks go
  /// there, by their primary names.
  std::vector<Match> match(const planfile::PlanFile &plan,
                           std::vector<std::string> *missing = nullptr) const;

  /// A sentence if some of the matches are rounded; else empty.
  std::string describeRounding(const std::vector<Match> &matches) const;

  /// Puts what was matched into the session, one after the other.
  void load(const std::vector<Match> &matches, Session &session) const;

private:
  using File =
      std::variant<std::monostate, archive::PT2Archive, archive::Safetensors>;

  Weights(std::string path, File file)
      : path(std::move(path)), file(std::move(file)) {}
  void addArchive(const archive::PT2Archive &archive);
  void addSafetensors(const archive::Safetensors &safetensors);
  /// The value under any of `names`, which fits; null if there is none.
  const Value *find(const std::vector<std::string> &names,
                    std::string_view planPrefix, planfile::DType wanted,
                    const flatbuffers::Vector<std::int64_t> &sizes) const;
  void check(std::string_view name, const Value &value, planfile::DType wanted,
             const flatbuffers::Vector<std::int64_t> &sizes) const;

  std::string path;
  File file;
  std::map<std::string, Value, std::less<>> values;
  std::string prefix; // of all names
};

} // namespace fsdp

#endif // FSDP_RUNTIME_WEIGHTS_H
