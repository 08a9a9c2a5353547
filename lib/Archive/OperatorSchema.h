//===- OperatorSchema.h - An operator's schema as text ----------*- C++ -*-===//
//
// As much of the grammar of PyTorch's operator schemas as a plan needs to be
// checked without PyTorch: how many arguments and results there are, of which
// kinds, and which arguments are written.
// `aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out)
// -> Tensor(a!)`
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_ARCHIVE_OPERATORSCHEMA_H
#define FSDP_LIB_ARCHIVE_OPERATORSCHEMA_H

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::planfile {

struct OperatorSchema {
  /// One argument. `Tensor?[]` is a list of kind "Tensor" with `noneInside`.
  struct Argument {
    std::string kind, name;
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

/// Reads a schema; nothing if the text is not one.
std::optional<OperatorSchema> parseOperatorSchema(std::string_view text);

} // namespace fsdp::planfile

#endif // FSDP_LIB_ARCHIVE_OPERATORSCHEMA_H
