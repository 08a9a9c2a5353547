//===- TextMutator.cpp - Damages text that has a structure ----------------===//

#include "TextMutator.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <vector>

using namespace fsdp::fuzz;

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t maxSize);

std::string fsdp::fuzz::mutateBytes(std::string bytes, size_t maxSize) {
  size_t size = std::min(bytes.size(), maxSize);
  bytes.resize(maxSize);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t *>(bytes.data()), size,
                                maxSize));
  return bytes;
}

namespace {

struct Piece {
  enum Kind { Number, Word, String, Group, Item, Line };
  Kind kind;
  size_t begin, end;
};

/// The pieces of a text, large and small.
class Pieces {
public:
  explicit Pieces(std::string_view text) : text(text) { read(); }

  const std::vector<Piece> &ofKind(Piece::Kind kind) const {
    return pieces[kind];
  }
  std::string_view spell(const Piece &piece) const {
    return text.substr(piece.begin, piece.end - piece.begin);
  }

private:
  void read();
  size_t findEnd(size_t begin, bool (*belongs)(char)) const {
    while (begin != text.size() && belongs(text[begin]))
      ++begin;
    return begin;
  }
  size_t findStringEnd(size_t begin) const;
  void add(Piece::Kind kind, size_t begin, size_t end) {
    if (begin < end)
      pieces[kind].push_back({kind, begin, end});
  }

  std::string_view text;
  std::vector<Piece> pieces[6];
};

bool isDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }
bool isNumberPart(char c) { return isDigit(c) || c == '.'; }
bool isWordStart(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '%' ||
         c == '@' || c == '#' || c == '!' || c == '^';
}
bool isWordPart(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' ||
         c == '$';
}

} // namespace

size_t Pieces::findStringEnd(size_t begin) const {
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      return i + 1;
  }
  return begin + 1; // not a string
}

void Pieces::read() {
  struct Open {
    char bracket;
    size_t begin, item; // of the group and of the item that goes on
  };
  std::vector<Open> open;
  size_t line = 0;
  bool afterNumber = false; // the x of 4x8xf32 is no part of a word
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    size_t end = i + 1;
    bool isNumber = false;
    switch (c) {
    case '"':
      end = findStringEnd(i);
      add(Piece::String, i, end);
      break;
    case '\n':
      add(Piece::Line, line, end);
      line = end;
      break;
    case '(':
    case '[':
    case '{':
    case '<':
      open.push_back({c, i, end});
      break;
    case ',':
      if (!open.empty()) {
        add(Piece::Item, open.back().item, i);
        open.back().item = end;
      }
      break;
    case '>':
      if (i != 0 && text[i - 1] == '-')
        break; // an arrow
      [[fallthrough]];
    case ')':
    case ']':
    case '}': {
      char bracket = c == ')' ? '(' : c == ']' ? '[' : c == '}' ? '{' : '<';
      if (open.empty() || open.back().bracket != bracket)
        break;
      add(Piece::Item, open.back().item, i);
      add(Piece::Group, open.back().begin, end);
      open.pop_back();
      break;
    }
    default:
      if (isDigit(c) ||
          (c == '-' && i + 1 < text.size() && isDigit(text[i + 1]))) {
        end = findEnd(end, isNumberPart);
        add(Piece::Number, i, end);
        isNumber = true;
      } else if (isWordStart(c) && !(afterNumber && c == 'x')) {
        end = findEnd(end, isWordPart);
        add(Piece::Word, i, end);
      }
      break;
    }
    afterNumber = isNumber;
    i = end;
  }
  add(Piece::Line, line, text.size());
}

static constexpr std::string_view oddNumbers[] = {
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "8",
    "16",
    "64",
    "127",
    "256",
    "1024",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "1099511627776",
    "144115188075855872",
    "4611686018427387904",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "0.5",
    "-0.0",
    "1e-320",
    "1e308",
};

static std::string mutateNumber(std::string_view number, Random &random) {
  if (random.once(2))
    return std::string(oddNumbers[random.below(std::size(oddNumbers))]);
  if (number.find('.') != number.npos || number.size() > 18)
    return "1";
  long long value = std::stoll(std::string(number));
  switch (random.below(4)) {
  case 0:
    return std::to_string(value + 1);
  case 1:
    return std::to_string(value - 1);
  case 2:
    return std::to_string(value * 2);
  default:
    return std::to_string(-value);
  }
}

/// One change; the text itself if there is nothing to change in this way.
static std::string mutateOnce(const std::string &text, Random &random,
                              size_t maxSize) {
  Pieces pieces(text);
  static constexpr Piece::Kind kinds[] = {
      Piece::Number, Piece::Number, Piece::Word, Piece::String,
      Piece::String, Piece::Group,  Piece::Item, Piece::Item,
      Piece::Item,   Piece::Line,   Piece::Line,
  };
  const auto &candidates = pieces.ofKind(kinds[random.below(std::size(kinds))]);
  if (candidates.empty())
    return text;
  const Piece &piece = random.pick(candidates);
  std::string_view spelling = pieces.spell(piece);
  auto replace = [&](std::string_view replacement) {
    return std::string(text, 0, piece.begin)
        .append(replacement)
        .append(text, piece.end);
  };
  if (random.once(24))
    return replace(mutateBytes(std::string(spelling),
                               std::min(maxSize, spelling.size() + 16)));
  const Piece &other = random.pick(candidates);
  switch (piece.kind) {
  case Piece::Number:
    return random.once(3) ? replace(pieces.spell(other))
                          : replace(mutateNumber(spelling, random));
  case Piece::String:
    // What is in a string may have a structure, too.
    if (random.once(3) && spelling.size() > 2)
      return replace(
          '"' +
          mutateOnce(std::string(spelling.substr(1, spelling.size() - 2)),
                     random, maxSize) +
          '"');
    return replace(pieces.spell(other));
  case Piece::Word:
  case Piece::Group:
    return replace(pieces.spell(other));
  case Piece::Item:
  case Piece::Line:
    break;
  }
  bool isItem = piece.kind == Piece::Item;
  switch (random.below(4)) {
  case 0: { // gone, and a comma beside it
    bool takesComma = isItem && text[piece.end] == ',';
    return std::string(text, 0, piece.begin)
        .append(text, piece.end + takesComma);
  }
  case 1: // twice
    return replace(
        std::string(spelling).append(isItem ? "," : "").append(spelling));
  case 2: // another in its place
    return replace(pieces.spell(other));
  default: { // exchanged with another
    const Piece &first = piece.begin < other.begin ? piece : other;
    const Piece &second = piece.begin < other.begin ? other : piece;
    if (first.end > second.begin)
      return text;
    return std::string(text, 0, first.begin)
        .append(pieces.spell(second))
        .append(text, first.end, second.begin - first.end)
        .append(pieces.spell(first))
        .append(text, second.end);
  }
  }
}

std::string fsdp::fuzz::mutateText(std::string text, Random &random,
                                   size_t maxSize) {
  do {
    std::string changed = mutateOnce(text, random, maxSize);
    if (changed.size() <= maxSize)
      text = std::move(changed);
  } while (!random.once(2));
  return text;
}

std::string fsdp::fuzz::spliceText(std::string_view text,
                                   std::string_view other, Random &random) {
  static constexpr Piece::Kind kinds[] = {Piece::Group, Piece::Item,
                                          Piece::Item, Piece::Line};
  Piece::Kind kind = kinds[random.below(std::size(kinds))];
  Pieces into(text), from(other);
  if (into.ofKind(kind).empty() || from.ofKind(kind).empty())
    return std::string(text);
  const Piece &piece = random.pick(into.ofKind(kind));
  return std::string(text.substr(0, piece.begin))
      .append(from.spell(random.pick(from.ofKind(kind))))
      .append(text.substr(piece.end));
}
