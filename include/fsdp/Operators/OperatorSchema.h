//===- OperatorSchema.h - An operator's schema as text ----------*- C++ -*-===//
//
// As much of the grammar of PyTorch's operator schemas as a plan needs to be
// made and checked without PyTorch: how many arguments and results there are,
// of which kinds, which arguments are written, and what stands for those left
// out. `aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!)
// out)
// -> Tensor(a!)`
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_OPERATORS_OPERATORSCHEMA_H
#define FSDP_OPERATORS_OPERATORSCHEMA_H

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::operators {

struct OperatorSchema {
  /// One argument. `Tensor?[]` is a list of kind "Tensor" with `noneInside`.
  struct Argument {
    std::string kind, name;
    /// The text of the default value: `[0, 1]`, `None`, `"mean"`.
    std::optional<std::string> fallback;
    /// Of `int[2]`: a single number stands for a list of so many. 0 if not
    /// said.
    size_t listSize = 0;
    bool isList = false, isOptional = false, noneInside = false;
    bool isWritten = false;
  };

  std::string name; // with overload: "aten::add.out"
  std::vector<Argument> arguments;
  size_t numResults = 0;

  bool hasWrittenArguments() const {
    for (const Argument &argument : arguments)
      if (argument.isWritten)
        return true;
    return false;
  }
};

/// True if the tensor of this name may be missing, though no schema can say so:
/// attention's backward without a mask, or with sequences of one length.
inline bool mayBeUndefined(std::string_view argument) {
  return argument == "attn_bias" || argument == "cum_seq_q" ||
         argument == "cum_seq_k";
}

/// Reads a schema; nothing if the text is not one.
std::optional<OperatorSchema> parseOperatorSchema(std::string_view text);

} // namespace fsdp::operators

#endif // FSDP_OPERATORS_OPERATORSCHEMA_H
