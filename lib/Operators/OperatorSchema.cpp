//===- OperatorSchema.cpp - An operator's schema as text ------------------===//

#include "fsdp/Operators/OperatorSchema.h"

using namespace fsdp::operators;

namespace {

/// Walks a text and knows whether it is inside of brackets or quotes.
class Cursor {
public:
  explicit Cursor(std::string_view text) : text(text) {}

  /// The text up to the next `stop` outside of all brackets and quotes, or up
  /// to the end; nothing if brackets or quotes do not match.
  std::optional<std::string_view> upTo(char stop) {
    size_t begin = position, depth = 0;
    char quote = 0;
    for (; position != text.size(); ++position) {
      char c = text[position];
      if (quote) {
        quote = c == quote ? 0 : quote;
        continue;
      }
      if (depth == 0 && c == stop)
        break;
      if (c == '\'' || c == '"')
        quote = c;
      else if (c == '(' || c == '[')
        ++depth;
      else if ((c == ')' || c == ']') && depth-- == 0)
        return std::nullopt;
    }
    if (depth != 0 || quote != 0)
      return std::nullopt;
    return text.substr(begin, position - begin);
  }

  bool skip(std::string_view expected) {
    if (text.substr(position, expected.size()) != expected)
      return false;
    position += expected.size();
    return true;
  }

  bool atEnd() const { return position == text.size(); }

private:
  std::string_view text;
  size_t position = 0;
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ')
    text.remove_suffix(1);
  return text;
}

/// Splits at commas; an empty text has no pieces.
std::optional<std::vector<std::string_view>> split(std::string_view text) {
  std::vector<std::string_view> pieces;
  Cursor cursor(text);
  while (!cursor.atEnd()) {
    std::optional<std::string_view> piece = cursor.upTo(',');
    if (!piece || trim(*piece).empty())
      return std::nullopt;
    pieces.push_back(trim(*piece));
    if (cursor.skip(",") && cursor.atEnd())
      return std::nullopt;
  }
  return pieces;
}

/// Reads `Tensor(a!) out`, `int[1]? dim=None` or `Tensor?[] indices`.
std::optional<OperatorSchema::Argument> parseArgument(std::string_view text) {
  OperatorSchema::Argument argument;
  Cursor cursor(text);
  std::optional<std::string_view> type = cursor.upTo(' ');
  if (!type || !cursor.skip(" "))
    return std::nullopt;
  std::string_view rest = text.substr(type->size() + 1);
  size_t equals = rest.find('=');
  argument.name = trim(rest.substr(0, equals));
  if (equals != rest.npos)
    argument.fallback = trim(rest.substr(equals + 1));

  // The alias annotation stands after the kind: `Tensor(a!)[]`.
  size_t kindEnd = type->find_first_of("([?");
  argument.kind = type->substr(0, kindEnd);
  std::string_view suffix =
      kindEnd == std::string_view::npos ? "" : type->substr(kindEnd);
  if (!suffix.empty() && suffix.front() == '(') {
    size_t end = suffix.find(')');
    argument.isWritten = suffix.substr(0, end).find('!') != suffix.npos;
    suffix.remove_prefix(end + 1);
  }
  if (!suffix.empty() && suffix.front() == '?') {
    argument.isOptional = true;
    suffix.remove_prefix(1);
  }
  if (!suffix.empty() && suffix.front() == '[') {
    argument.isList = true;
    argument.noneInside = argument.isOptional;
    argument.isOptional = false;
    size_t end = suffix.find(']');
    for (char digit : suffix.substr(1, end - 1)) {
      if (digit < '0' || digit > '9' || argument.listSize > 64)
        return std::nullopt;
      argument.listSize = argument.listSize * 10 + (digit - '0');
    }
    suffix.remove_prefix(end + 1);
    if (suffix == "?") {
      argument.isOptional = true;
      suffix = {};
    }
  }
  if (argument.kind.empty() || argument.name.empty() || !suffix.empty())
    return std::nullopt;
  return argument;
}

} // namespace

std::optional<OperatorSchema>
fsdp::operators::parseOperatorSchema(std::string_view text) {
  OperatorSchema schema;
  size_t open = text.find('(');
  if (open == 0 || open == text.npos)
    return std::nullopt;
  schema.name = text.substr(0, open);

  std::string_view rest = text.substr(open + 1);
  Cursor cursor(rest);
  std::optional<std::string_view> inside = cursor.upTo(')');
  if (!inside || !cursor.skip(") -> "))
    return std::nullopt;
  std::optional<std::vector<std::string_view>> pieces = split(*inside);
  if (!pieces)
    return std::nullopt;
  for (std::string_view piece : *pieces) {
    if (piece == "*")
      continue;
    std::optional<OperatorSchema::Argument> argument = parseArgument(piece);
    if (!argument)
      return std::nullopt;
    schema.arguments.push_back(std::move(*argument));
  }

  std::string_view results = rest.substr(inside->size() + 5);
  if (results.size() >= 2 && results.front() == '(' && results.back() == ')')
    results = results.substr(1, results.size() - 2);
  pieces = split(results);
  if (!pieces)
    return std::nullopt;
  schema.numResults = pieces->size();
  return schema;
}
