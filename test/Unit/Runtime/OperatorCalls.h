//===- OperatorCalls.h - Calls of operators, and odd ones -------*- C++ -*-===//
//
// Calls as data: read from a file of recorded ones, changed in one place, and
// given elements.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TEST_UNIT_RUNTIME_OPERATORCALLS_H
#define FSDP_TEST_UNIT_RUNTIME_OPERATORCALLS_H

#include "Tensors.h"
#include "fsdp/PlanFile/PlanFile.h"

#include <simdjson.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

namespace fsdp::test {

using Random = std::mt19937_64;

inline std::size_t pick(Random &random, std::size_t count) {
  return random() % count;
}
template <typename T> T pickOf(Random &random, std::initializer_list<T> from) {
  return from.begin()[pick(random, from.size())];
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

struct TensorSpec {
  planfile::DType type = planfile::DType::F32;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t low = 0, high = 3; ///< Of integers.
  bool isOdd = false;             ///< Elements out of the range, NaN.
  bool atBegin = false;           ///< Of its page, not at the end.
  bool aliasesFirst = false;

  std::uint64_t extent() const {
    std::uint64_t last = 0;
    for (std::size_t d = 0; d != sizes.size(); ++d) {
      if (sizes[d] == 0)
        return 0;
      last += static_cast<std::uint64_t>((sizes[d] - 1) * strides[d]);
    }
    return last + 1;
  }
  std::uint64_t bytes() const { return extent() * planfile::getItemSize(type); }
};

/// An argument; what none of these is, a device or a layout, is its default.
using Spec =
    std::variant<std::monostate, bool, std::int64_t, double, std::string,
                 planfile::DType, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, TensorSpec,
                 std::vector<std::optional<TensorSpec>>>;
using Call = std::map<std::string, Spec>;

inline const std::map<std::string_view, planfile::DType> types = {
    {"f32", planfile::DType::F32},   {"f64", planfile::DType::F64},
    {"bf16", planfile::DType::BF16}, {"f16", planfile::DType::F16},
    {"i64", planfile::DType::I64},   {"i32", planfile::DType::I32},
    {"i16", planfile::DType::I16},   {"i8", planfile::DType::I8},
    {"u8", planfile::DType::U8},     {"b", planfile::DType::Bool},
    {"c64", planfile::DType::C64},   {"c128", planfile::DType::C128}};

inline std::vector<std::int64_t>
rowMajor(const std::vector<std::int64_t> &sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- != 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

inline std::vector<std::int64_t> numbers(simdjson::dom::array array) {
  std::vector<std::int64_t> values;
  for (simdjson::dom::element element : array)
    values.push_back(std::int64_t(element));
  return values;
}

inline std::optional<TensorSpec> readTensor(simdjson::dom::element element) {
  simdjson::dom::object object;
  std::string_view type;
  if (element.get(object) || object["t"].get(type))
    return std::nullopt;
  TensorSpec spec;
  spec.type = types.at(type);
  spec.sizes = numbers(object["s"]);
  simdjson::dom::array array;
  spec.strides =
      object["st"].get(array) ? rowMajor(spec.sizes) : numbers(array);
  if (!object["r"].get(array)) {
    spec.low = std::int64_t(array.at(0));
    spec.high = std::int64_t(array.at(1));
  }
  return spec;
}

inline Spec read(simdjson::dom::element element) {
  switch (element.type()) {
  case simdjson::dom::element_type::BOOL:
    return bool(element);
  case simdjson::dom::element_type::INT64:
    return std::int64_t(element);
  case simdjson::dom::element_type::DOUBLE:
    return double(element);
  case simdjson::dom::element_type::STRING:
    return std::string(std::string_view(element));
  case simdjson::dom::element_type::OBJECT: {
    if (std::optional<TensorSpec> tensor = readTensor(element))
      return *tensor;
    std::string_view type;
    if (!element["dtype"].get(type))
      return types.at(type);
    return {};
  }
  case simdjson::dom::element_type::ARRAY: {
    simdjson::dom::array array = element;
    std::vector<std::optional<TensorSpec>> tensors;
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    std::vector<bool> booleans;
    for (simdjson::dom::element item : array) {
      if (item.is_object() || item.is_null())
        tensors.push_back(readTensor(item));
      else if (item.is_bool())
        booleans.push_back(bool(item));
      else if (item.is_double())
        reals.push_back(double(item));
      else if (item.is_int64())
        integers.push_back(std::int64_t(item));
    }
    if (!tensors.empty())
      return tensors;
    if (!booleans.empty())
      return booleans;
    if (!reals.empty())
      return reals;
    return integers;
  }
  default:
    return {};
  }
}

inline std::string_view baseOf(std::string_view name) {
  std::string_view base = name.substr(0, name.find('.'));
  if (base.size() > 1 && base.back() == '_' && !base.starts_with("__"))
    base.remove_suffix(1);
  return base;
}

/// The recorded calls of all overloads, by the name that they share.
inline std::map<std::string, std::vector<std::pair<std::string, Call>>>
readCalls(const std::string &path) {
  std::map<std::string, std::vector<std::pair<std::string, Call>>> calls;
  simdjson::dom::parser parser;
  simdjson::dom::document_stream stream;
  simdjson::padded_string text = simdjson::padded_string::load(path);
  if (parser.parse_many(text).get(stream))
    throw std::runtime_error("cannot read " + path);
  for (simdjson::dom::element document : stream) {
    simdjson::dom::object object = document;
    auto name = std::string(std::string_view(object["op"]));
    Call call;
    for (auto [key, value] : object)
      if (key != "op")
        call.emplace(key, read(value));
    calls[std::string(baseOf(name))].emplace_back(name, std::move(call));
  }
  return calls;
}

//===----------------------------------------------------------------------===//
// Changes
//===----------------------------------------------------------------------===//

inline void change(TensorSpec &spec, Random &random) {
  auto &sizes = spec.sizes, &strides = spec.strides;
  std::size_t d = sizes.empty() ? 0 : pick(random, sizes.size());
  switch (pick(random, sizes.empty() ? 4 : 11)) {
  case 0:
    spec.isOdd = true;
    return;
  case 1:
    spec.type =
        std::next(types.begin(), long(pick(random, types.size())))->second;
    return;
  case 2:
    spec.atBegin = true;
    return;
  case 3:
    sizes.insert(sizes.begin() + long(d),
                 pickOf<std::int64_t>(random, {0, 1, 2, 3}));
    break;
  case 4:
    sizes[d] = pickOf<std::int64_t>(random, {0, 1, 2, 3, 5, 7, 16, 33});
    break;
  case 5:
    sizes[d] += pickOf<std::int64_t>(random, {1, 2, sizes[d]});
    break;
  case 6:
    sizes.erase(sizes.begin() + long(d));
    break;
  case 7:
    strides[d] = 0;
    return;
  case 8:
    for (std::int64_t &stride : strides)
      stride *= 2;
    return;
  case 9: { // another order in memory
    std::vector<std::size_t> order(sizes.size());
    for (std::size_t i = 0; i != order.size(); ++i)
      order[i] = i;
    std::ranges::shuffle(order, random);
    std::int64_t stride = 1;
    for (std::size_t i : order) {
      strides[i] = stride;
      stride *= std::max<std::int64_t>(sizes[i], 1);
    }
    return;
  }
  default:
    spec.aliasesFirst = true;
    return;
  }
  strides = rowMajor(sizes);
}

inline std::int64_t oddInteger(Random &random) {
  return pickOf<std::int64_t>(random, {0, 1, -1, 2, 3, 5, 7, -2, 10, 33, 1000,
                                       (1LL << 31) - 1, 1LL << 31, -(1LL << 31),
                                       1LL << 62, INT64_MIN, INT64_MAX});
}

inline double oddReal(Random &random) {
  return pickOf<double>(random, {0, 1, -1, .5, 2, 1e-30, 1e30, -1e30, 3e9,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()});
}

template <typename T, typename Change>
void changeList(std::vector<T> &list, Random &random, Change changeOne) {
  if (list.empty())
    return;
  std::size_t i = pick(random, list.size());
  std::size_t kind = pick(random, 5);
  if (kind == 0)
    list.erase(list.begin() + long(i));
  else if (kind == 1)
    list.push_back(list[i]);
  else
    changeOne(i);
}

inline void change(Spec &spec, Random &random) {
  if (auto *tensor = std::get_if<TensorSpec>(&spec))
    change(*tensor, random);
  else if (auto *boolean = std::get_if<bool>(&spec))
    *boolean = !*boolean;
  else if (auto *integer = std::get_if<std::int64_t>(&spec))
    *integer = pick(random, 3) ? oddInteger(random)
                               : static_cast<std::int64_t>(
                                     static_cast<std::uint64_t>(*integer) +
                                     pickOf<std::uint64_t>(random, {1, ~0ull}));
  else if (auto *real = std::get_if<double>(&spec))
    *real = oddReal(random);
  else if (auto *text = std::get_if<std::string>(&spec))
    *text = pickOf<const char *>(random, {"", "floor", "trunc", "none", "sum"});
  else if (auto *type = std::get_if<planfile::DType>(&spec))
    *type = std::next(types.begin(), long(pick(random, types.size())))->second;
  else if (auto *integers = std::get_if<std::vector<std::int64_t>>(&spec))
    changeList(*integers, random,
               [&](std::size_t i) { (*integers)[i] = oddInteger(random); });
  else if (auto *reals = std::get_if<std::vector<double>>(&spec))
    changeList(*reals, random,
               [&](std::size_t i) { (*reals)[i] = oddReal(random); });
  else if (auto *booleans = std::get_if<std::vector<bool>>(&spec))
    changeList(*booleans, random,
               [&](std::size_t i) { (*booleans)[i] = !(*booleans)[i]; });
  else if (auto *tensors =
               std::get_if<std::vector<std::optional<TensorSpec>>>(&spec))
    changeList(*tensors, random, [&](std::size_t i) {
      if ((*tensors)[i])
        change(*(*tensors)[i], random);
    });
}

/// Elements for a tensor, in the order of memory.
inline at::Tensor makeElements(const TensorSpec &spec, Random &random) {
  auto count = static_cast<std::int64_t>(spec.extent());
  at::Tensor values = at::empty({count}, at::kDouble);
  auto *data = values.mutable_data_ptr<double>();
  bool isInteger = at::isIntegralType(scalarType(spec.type), true);
  for (std::int64_t i = 0; i != count; ++i) {
    if (!spec.isOdd)
      data[i] =
          isInteger
              ? double(spec.low +
                       std::int64_t(
                           pick(random, std::size_t(spec.high - spec.low) + 1)))
              : double(pick(random, 2001)) / 1000 - 1;
    else
      data[i] = isInteger ? double(oddInteger(random)) : oddReal(random);
  }
  if (!isInteger)
    return values.to(scalarType(spec.type));
  // What doubles can't say: the ends of the range.
  at::Tensor integers = values.clamp(-0x1p62, 0x1p62).to(at::kLong);
  auto *exact = integers.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i != count; ++i)
    if (data[i] <= -0x1p63)
      exact[i] = INT64_MIN;
  return integers.to(scalarType(spec.type));
}

inline std::ostream &operator<<(std::ostream &os, const TensorSpec &spec) {
  return os << planfile::EnumNameDType(spec.type)
            << c10::IntArrayRef(spec.sizes) << " strides "
            << c10::IntArrayRef(spec.strides) << (spec.isOdd ? " odd" : "")
            << (spec.aliasesFirst ? " alias" : "");
}

inline std::ostream &operator<<(std::ostream &os, const Spec &spec) {
  std::visit(
      [&](const auto &value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          os << "None";
        else if constexpr (std::is_same_v<T, planfile::DType>)
          os << planfile::EnumNameDType(value);
        else if constexpr (std::is_same_v<
                               T, std::vector<std::optional<TensorSpec>>>)
          for (const auto &item : value)
            item ? os << *item << " " : os << "None ";
        else if constexpr (std::is_same_v<T, std::vector<bool>>)
          for (bool item : value)
            os << item << " ";
        else
          os << value;
      },
      spec);
  return os;
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_OPERATORCALLS_H
