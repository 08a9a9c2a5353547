//===- Values.cpp - Numbers that stand for values -------------------------===//

#include "fsdp/Symbolic/Values.h"

#include <cstring>
#include <xxhash.h>

namespace fsdp::symbolic {

Number hashText(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

Number hashDouble(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

Key::Key(std::string_view name) { add(hashText(name)); }

Key &Key::add(const IndexMap &map) {
  add(map.getOffset());
  for (auto [size, stride] : map)
    add(size).add(stride);
  return add(~uint64_t(0));
}

void Key::fold() {
  words[0] = number();
  count = 1;
}

Number Key::number() const {
  return XXH3_64bits(words.data(), count * sizeof(uint64_t));
}

Number Content::number() const {
  return isUniform ? base : Key("elements", base).add(map).number();
}

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

void append(Pieces &pieces, Piece piece) {
  if (piece.size == 0)
    return;
  if (!pieces.empty()) {
    Piece &last = pieces.back();
    const IndexMap &map = last.content.map;
    if (last.content.base == piece.content.base) {
      if (last.content.isUniform) {
        last.size += piece.size;
        return;
      }
      uint64_t begin = map.getOffset(), next = begin + last.size;
      if (map == IndexMap::range(begin, last.size) &&
          piece.content.map == IndexMap::range(next, piece.size)) {
        last.size += piece.size;
        last.content.map = IndexMap::range(begin, last.size);
        return;
      }
    }
  }
  pieces.push_back(piece);
}

Content join(const Pieces &pieces) {
  if (pieces.size() == 1)
    return pieces.front().content;
  Key key("pieces");
  uint64_t size = 0;
  for (const Piece &piece : pieces) {
    key.add(piece.size).add(piece.content.number());
    size += piece.size;
  }
  return Values::vector(key.number(), size);
}

Pieces slice(const Pieces &pieces, uint64_t begin, uint64_t end) {
  Pieces result;
  uint64_t at = 0;
  for (const Piece &piece : pieces) {
    uint64_t from = std::max(begin, at), to = std::min(end, at + piece.size);
    if (from < to) {
      Content content = piece.content;
      if (!content.isUniform && to - from != piece.size) {
        IndexMap part = IndexMap::range(from - at, to - from);
        std::optional<IndexMap> map = PlaceMap::ofIndices(content.map)(part);
        content = map ? Content{content.base, false, *map}
                      : Content{content.number(), false, part};
      }
      append(result, {to - from, content});
    }
    at += piece.size;
  }
  return result;
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

Content Values::uniform(double value, DType dtype) {
  return {Key("uniform", hashDouble(value), dtype).number(), true, {}};
}

/// Whether the number is that of zeros of some type.
static bool isZeroNumber(Number number) {
  static const auto zeros = [] {
    std::array<Number, static_cast<size_t>(DType::MAX) + 1> result{};
    for (size_t i = 0; i != result.size(); ++i)
      result[i] = Values::zero(static_cast<DType>(i)).base;
    return result;
  }();
  for (Number zero : zeros)
    if (zero == number)
      return true;
  return false;
}

bool Values::isZero(const Pieces &pieces) {
  for (const Piece &piece : pieces)
    if (!piece.content.isUniform || !isZeroNumber(piece.content.base))
      return false;
  return true;
}

Content Values::shard(Pieces whole, uint64_t axes, uint64_t size) {
  Number base = Key("shard", join(whole).number(), axes, size).number();
  shards.try_emplace(base, Shard{std::move(whole), axes, size});
  return vector(base, size);
}

const Values::Shard *Values::findShard(const Content &content) const {
  auto found = shards.find(content.base);
  if (found == shards.end() ||
      !(content.map == IndexMap::range(0, found->second.size)))
    return nullptr;
  return &found->second;
}

Pieces Values::beside(uint64_t rows, const std::vector<Matrix> &matrices) {
  Pieces result;
  if (rows == 1 || matrices.size() < 2) {
    for (const Matrix &matrix : matrices)
      for (const Piece &piece : matrix.elements)
        append(result, piece);
    return result;
  }
  Key key("beside", rows);
  Row row{rows};
  for (const Matrix &matrix : matrices) {
    key.add(matrix.columns).add(join(matrix.elements).number());
    row.columns += matrix.columns;
  }
  row.matrices = matrices;
  uint64_t size = rows * row.columns;
  sides.try_emplace(key.number(), std::move(row));
  return {{size, vector(key.number(), size)}};
}

const Values::Row *Values::findRow(const Content &content) const {
  auto found = sides.find(content.base);
  if (found == sides.end())
    return nullptr;
  const Row &row = found->second;
  bool isWhole = content.map == IndexMap::range(0, row.rows * row.columns);
  return isWhole ? &row : nullptr;
}

const Pieces *Values::findMatrix(const Content &content) const {
  auto found = sides.find(content.base);
  if (found == sides.end())
    return nullptr;
  const Row &row = found->second;
  uint64_t at = 0;
  for (const Matrix &matrix : row.matrices) {
    if (at == content.map.getOffset()) {
      IndexMap map = IndexMap::range(at, matrix.columns);
      bool fits = map.append(row.rows, row.columns);
      return fits && map == content.map ? &matrix.elements : nullptr;
    }
    at += matrix.columns;
  }
  return nullptr;
}

/// Changes every element alike: the places stay.
template <typename Change>
Content Values::change(const Content &content, const Change &change) {
  auto found = shards.find(content.base);
  if (found == shards.end())
    return change(content);
  Pieces whole = found->second.whole;
  for (Piece &piece : whole)
    piece.content = this->change(piece.content, change);
  Content result =
      shard(std::move(whole), found->second.axes, found->second.size);
  result.map = content.map;
  return result;
}

Content Values::cast(const Content &content, DType to) {
  return change(content, [&](const Content &value) -> Content {
    if (value.isUniform && isZeroNumber(value.base))
      return zero(to);
    Number number = Key("cast", value.base, to).number();
    if (auto found = casts.find(number); found != casts.end())
      number = found->second;
    return {number, value.isUniform, value.map};
  });
}

Content Values::sum(const Content &content, uint64_t axes, double divisor,
                    DType via, DType dtype) {
  return change(content, [&](const Content &value) -> Content {
    if (value.isUniform && isZeroNumber(value.base))
      return zero(dtype);
    Sum total{value.base, axes, divisor, via, dtype};
    // A sum of sums along other axes is one sum.
    if (auto found = sums.find(value.base); found != sums.end() &&
                                            found->second.via == via &&
                                            (found->second.axes & axes) == 0) {
      total = found->second;
      total.axes |= axes;
      total.divisor *= divisor;
      total.dtype = dtype;
    }
    Number number = Key("sum", total.of, total.axes, hashDouble(total.divisor),
                        total.via, total.dtype)
                        .number();
    sums.try_emplace(number, total);
    return {number, value.isUniform, value.map};
  });
}

} // namespace fsdp::symbolic
