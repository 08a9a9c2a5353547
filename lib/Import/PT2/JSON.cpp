//===- JSON.cpp - JSON values that know where they are --------------------===//
//
// Reading of values, and the text of what is wrong with them.
//
//===----------------------------------------------------------------------===//

#include "JSON.h"

#include "mlir/IR/Location.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <limits>

using namespace mlir;
using namespace fsdp::pt2;
using simdjson::dom::element_type;

// By value: a loop over what an accessor's result refers to would outlive it.
static simdjson::dom::object getObject(simdjson::dom::element element) {
  return element.get_object().value_unsafe();
}
static simdjson::dom::array getArray(simdjson::dom::element element) {
  return element.get_array().value_unsafe();
}

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

/// Text of a file, short and without control characters.
static std::string escape(StringRef text) {
  std::string result;
  llvm::raw_string_ostream os(result);
  llvm::printEscapedString(text.take_front(80), os);
  return result + (text.size() > 80 ? "..." : "");
}

std::string fsdp::pt2::quote(StringRef text) {
  return "'" + escape(text) + "'";
}

InFlightDiagnostic Document::error() const {
  return emitError(UnknownLoc::get(context)) << file << ": ";
}

void Cursor::printPath(raw_ostream &os) const {
  if (!parent)
    return;
  parent->printPath(os);
  if (!key.data()) {
    os << '[' << index << ']';
    return;
  }
  os << (parent->parent ? "." : "") << escape(key);
}

InFlightDiagnostic Cursor::error() const {
  std::string path;
  llvm::raw_string_ostream os(path);
  printPath(os);
  return document->error() << (path.empty() ? "the program" : path) << ": ";
}

/// A value in few words.
static std::string describe(simdjson::dom::element element) {
  switch (element.type()) {
  case element_type::ARRAY:
    return "an array of " + std::to_string(getArray(element).size());
  case element_type::OBJECT: {
    auto object = getObject(element);
    if (object.size() != 1)
      return "an object of " + std::to_string(object.size());
    return "an object with the key " + quote((*object.begin()).key);
  }
  case element_type::NULL_VALUE:
    return "null";
  case element_type::BOOL:
    return element.get_bool().value_unsafe() ? "true" : "false";
  case element_type::INT64:
    return std::to_string(element.get_int64().value_unsafe());
  case element_type::UINT64:
    return std::to_string(element.get_uint64().value_unsafe());
  case element_type::DOUBLE:
    return llvm::formatv("{0}", element.get_double().value_unsafe());
  case element_type::STRING:
    return quote(element.get_string().value_unsafe());
  }
  llvm_unreachable("covered switch");
}

LogicalResult Cursor::expected(const Twine &what) const {
  return error() << "expected " << what << ", found " << describe(element);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

LogicalResult Cursor::read(int64_t &value) const {
  if (element.type() != element_type::INT64)
    return expected("a 64-bit integer");
  value = element.get_int64().value_unsafe();
  return success();
}

LogicalResult Cursor::read(bool &value) const {
  if (element.type() != element_type::BOOL)
    return expected("true or false");
  value = element.get_bool().value_unsafe();
  return success();
}

LogicalResult Cursor::read(StringRef &value) const {
  if (element.type() != element_type::STRING)
    return expected("text");
  value = element.get_string().value_unsafe();
  return success();
}

LogicalResult Cursor::read(double &value) const {
  switch (element.type()) {
  case element_type::DOUBLE:
  case element_type::INT64:
  case element_type::UINT64:
    value = element.get_double().value_unsafe();
    return success();
  case element_type::STRING: {
    StringRef text(element.get_string().value_unsafe());
    bool isNegative = text.consume_front("-");
    value = text == "NaN" ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
    if (isNegative)
      value = -value;
    if (text == "Infinity" || (text == "NaN" && !isNegative))
      return success();
    [[fallthrough]];
  }
  default:
    return expected("a number, 'Infinity', '-Infinity' or 'NaN'");
  }
}

LogicalResult Cursor::read(std::initializer_list<Field> fields) const {
  if (element.type() != element_type::OBJECT)
    return expected("an object");
  for (const Field &field : fields)
    field.value.document = nullptr;
  for (auto [key, value] : getObject(element))
    for (const Field &field : fields)
      if (field.name == StringRef(key)) {
        if (field.value.document)
          return error() << "the key '" << field.name << "' occurs twice";
        field.value = Cursor(*this, value, field.name);
        break;
      }
  for (const Field &field : fields)
    if (!field.value.document)
      return error() << "expected the key '" << field.name
                     << "', found no such key";
  return success();
}

LogicalResult Cursor::readUnion(StringRef &variant, Cursor &value) const {
  if (element.type() != element_type::OBJECT || getObject(element).size() != 1)
    return expected("an object with one key");
  auto member = *getObject(element).begin();
  variant = member.key;
  value = Cursor(*this, member.value, variant);
  return success();
}

std::optional<Cursor> Cursor::find(StringRef key) const & {
  if (element.type() == element_type::OBJECT)
    for (auto [name, value] : getObject(element))
      if (key == StringRef(name))
        return Cursor(*this, value, key);
  return std::nullopt;
}

LogicalResult Cursor::forEachElement(
    function_ref<LogicalResult(const Cursor &)> visit) const {
  if (element.type() != element_type::ARRAY)
    return expected("an array");
  size_t index = 0;
  for (simdjson::dom::element child : getArray(element))
    if (failed(visit(Cursor(*this, child, index++))))
      return failure();
  return success();
}

LogicalResult Cursor::forEachMember(
    function_ref<LogicalResult(StringRef, const Cursor &)> visit) const {
  if (element.type() != element_type::OBJECT)
    return expected("an object");
  for (auto [key, value] : getObject(element))
    if (failed(visit(StringRef(key), Cursor(*this, value, StringRef(key)))))
      return failure();
  return success();
}
