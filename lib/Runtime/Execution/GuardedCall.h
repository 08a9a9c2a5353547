//===- GuardedCall.h - A call, by the names of its arguments ----*- C++ -*-===//
//
// What the rules of `Guard` are written with.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_GUARDEDCALL_H
#define FSDP_LIB_RUNTIME_EXECUTION_GUARDEDCALL_H

#include "Guard.h"
#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <sstream>

namespace fsdp {

class GuardedCall {
public:
  GuardedCall(const c10::FunctionSchema &schema,
              const std::vector<c10::IValue> &arguments, Guard &guard)
      : schema(schema), arguments(arguments), guard(guard) {}

  /// None if there is no such argument.
  const c10::IValue &value(std::string_view name) const {
    static const c10::IValue none;
    for (std::size_t i = 0; i != schema.arguments().size(); ++i)
      if (schema.arguments()[i].name() == name)
        return arguments[i];
    return none;
  }
  bool has(std::string_view name) const {
    const c10::IValue &found = value(name);
    return !found.isNone() && (!found.isTensor() || found.toTensor().defined());
  }
  const at::Tensor &tensor(std::string_view name) const {
    if (!has(name))
      fail(std::string(name), "a tensor", "none");
    return value(name).toTensor();
  }
  std::int64_t integer(std::string_view name) const {
    return value(name).toInt();
  }
  std::vector<std::int64_t> integers(std::string_view name) const {
    return value(name).toIntVector();
  }

  [[noreturn]] static void fail(const std::string &what,
                                const std::string &expected,
                                const std::string &found) {
    throw Error(what + ": expected " + expected + ", found " + found);
  }
  template <typename T> static std::string spell(const T &value) {
    std::ostringstream text;
    text << value;
    return text.str();
  }

  void expectSizes(std::string_view name, c10::IntArrayRef sizes) const {
    if (tensor(name).sizes() != sizes)
      fail(std::string(name), "sizes " + spell(sizes),
           spell(tensor(name).sizes()));
  }
  void expectSame(std::string_view name, std::string_view other) const {
    expectSizes(name, tensor(other).sizes());
  }
  void expectDims(std::string_view name, std::int64_t least,
                  std::int64_t most) const {
    std::int64_t found = tensor(name).dim();
    if (found < least || found > most)
      fail(std::string(name),
           std::to_string(least) +
               (most == least ? "" : " to " + std::to_string(most)) +
               " dimensions",
           std::to_string(found));
  }
  void expectNumel(std::string_view name, std::int64_t count) const {
    if (tensor(name).numel() != count)
      fail(std::string(name), std::to_string(count) + " elements",
           std::to_string(tensor(name).numel()));
  }
  void expectContiguous(std::string_view name) const {
    if (!tensor(name).is_contiguous())
      fail(std::string(name), "contiguous elements",
           "strides " + spell(tensor(name).strides()));
  }
  /// Rows that can be read from their first element on.
  void expectRows(std::string_view name) const {
    const at::Tensor &rows = tensor(name);
    if (rows.dim() && rows.size(-1) > 1 && rows.stride(-1) != 1)
      fail(std::string(name), "a last stride of 1",
           std::to_string(rows.stride(-1)));
  }
  void expect(bool holds, const std::string &what, const std::string &expected,
              const std::string &found) const {
    if (!holds)
      fail(what, expected, found);
  }
  /// As tensor operators take dimensions, negative ones from the end.
  std::int64_t dimension(std::int64_t dim, std::int64_t dims) const {
    expect(dim >= -dims && dim < std::max<std::int64_t>(dims, 1), "dim",
           "one of " + std::to_string(dims), std::to_string(dim));
    return dim < 0 ? dim + dims : dim;
  }

  /// The result holds integers.
  bool isInteger() const {
    if (has("out"))
      return at::isIntegralType(tensor("out").scalar_type(), true);
    return !has("dtype") ||
           at::isIntegralType(value("dtype").toScalarType(), true);
  }

  /// Elements to look at before each call: in [low, high].
  void limit(std::string_view name, std::int64_t low, std::int64_t high,
             std::optional<std::int64_t> except = {}) const {
    const at::Tensor &indices = tensor(name);
    if (indices.numel() != 0)
      guard.ranges.push_back({std::string(name), indices, low, high, except});
  }

  void divide(const at::Tensor &dividend, const at::Tensor &divisor) const {
    guard.divides = true;
    guard.dividend = dividend;
    guard.divisor = divisor;
  }

private:
  const c10::FunctionSchema &schema;
  const std::vector<c10::IValue> &arguments;
  Guard &guard;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_GUARDEDCALL_H
