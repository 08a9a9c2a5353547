//===- NumPy.cpp - Headers of .npy files ----------------------------------===//

#include "fsdp/Archive/NumPy.h"

#include "fsdp/Archive/Escape.h"

#include <algorithm>
#include <charconv>

using namespace fsdp::archive;

namespace {

/// A text that is eaten from its beginning.
class Cursor {
public:
  explicit Cursor(std::string_view text) : text(text) {}

  bool eat(std::string_view word) {
    if (text.substr(0, word.size()) != word)
      return false;
    text.remove_prefix(word.size());
    return true;
  }
  bool eatNumber(uint64_t &number) {
    auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc())
      return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return true;
  }
  std::string_view eatUntil(char end) {
    std::string_view found = text.substr(0, text.find(end));
    text.remove_prefix(found.size());
    return found;
  }
  std::string_view rest() const { return text; }

private:
  std::string_view text;
};

} // namespace

static std::optional<DType> findDType(std::string_view descr) {
  const std::pair<std::string_view, DType> known[] = {{"<u2", DType::U16},
                                                      {"<u4", DType::U32},
                                                      {"<i4", DType::I32},
                                                      {"<i8", DType::I64}};
  for (auto [name, dtype] : known)
    if (name == descr)
      return dtype;
  return std::nullopt;
}

/// The form that NumPy writes: keys in order, spaces at the end.
static Expected<NumPyHeader> parse(std::string_view text,
                                   const std::string &path) {
  auto reject = [&](const std::string &expected, std::string_view found) {
    return Error{path + ": expected " + expected + ", found " +
                 escape(std::string(found.substr(0, 40)))};
  };
  Cursor cursor(text);
  NumPyHeader header{};
  if (!cursor.eat("{'descr': '"))
    return reject("the header of an array of numbers", text);
  std::string_view descr = cursor.eatUntil('\'');
  std::optional<DType> dtype = findDType(descr);
  if (!dtype)
    return reject("elements of type <u2, <u4, <i4 or <i8", descr);
  header.dtype = *dtype;
  if (!cursor.eat("', 'fortran_order': "))
    return reject("a header as NumPy writes it", cursor.rest());
  if (cursor.eat("True"))
    return Error{path + ": expected an array in C order, found one in Fortran "
                        "order"};
  if (!cursor.eat("False, 'shape': ("))
    return reject("a header as NumPy writes it", cursor.rest());
  uint64_t size = 0;
  while (cursor.eatNumber(size)) {
    header.shape.push_back(size);
    if (!cursor.eat(", "))
      break;
  }
  if (header.shape.empty() || header.shape.size() > 2)
    return Error{path +
                 ": expected an array of one or two axes, found one of " +
                 std::to_string(header.shape.size())};
  bool hasEnd = cursor.eat(header.shape.size() == 1 ? ",), }" : "), }");
  if (!hasEnd ||
      cursor.rest().find_first_not_of(" \n") != std::string_view::npos)
    return reject("a header as NumPy writes it", cursor.rest());
  return header;
}

Expected<NumPyHeader> fsdp::archive::readNumPyHeader(const InputFile &file) {
  constexpr std::string_view magic = "\x93NUMPY";
  constexpr uint64_t mostBytes = 1 << 16; // of the header
  constexpr uint64_t fixedBytes = 8;      // magic and version
  Expected<std::string> begin =
      file.read(0, std::min<uint64_t>(file.size(), fixedBytes + 4));
  if (!begin)
    return begin.error();
  if (begin->size() < fixedBytes + 4 ||
      begin->compare(0, magic.size(), magic) != 0)
    return Error{file.path() +
                 ": expected an array that numpy.save has written, found "
                 "another file"};
  auto byte = [&](size_t i) {
    return static_cast<uint64_t>(static_cast<unsigned char>((*begin)[i]));
  };
  uint64_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0)
    return Error{file.path() + ": expected version 1.0, 2.0 or 3.0, found " +
                 std::to_string(version) + "." + std::to_string(byte(7))};
  uint64_t length = byte(8) | byte(9) << 8;
  uint64_t start = fixedBytes + 2;
  if (version != 1) {
    length |= byte(10) << 16 | byte(11) << 24;
    start += 2;
  }
  if (length > mostBytes || length > file.size() - start)
    return Error{file.path() + ": expected a header of at most " +
                 std::to_string(std::min(mostBytes, file.size() - start)) +
                 " bytes, found one of " + std::to_string(length)};
  Expected<std::string> text = file.read(start, length);
  if (!text)
    return text.error();
  Expected<NumPyHeader> header = parse(*text, file.path());
  if (!header)
    return header;
  header->offset = start + length;
  uint64_t bytes = getItemSize(header->dtype);
  for (uint64_t size : header->shape)
    if (__builtin_mul_overflow(bytes, size, &bytes))
      return Error{file.path() + ": expected an array that fits into the "
                                 "file, found a larger one"};
  if (bytes != file.size() - header->offset)
    return Error{file.path() + ": expected " + std::to_string(bytes) +
                 " bytes of elements, found " +
                 std::to_string(file.size() - header->offset)};
  return header;
}
