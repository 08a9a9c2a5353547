//===- Expected.h - A value or an error sentence ----------------*- C++ -*-===//
//
// The result type of everything in FSDPArchive. The library reads untrusted
// files and is linked into programs with and without exceptions, so a failure
// is an ordinary value: one sentence for a person, of the form
// `<file>: <where>: expected <x>, found <y>`, without a final period.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_EXPECTED_H
#define FSDP_ARCHIVE_EXPECTED_H

#include <cassert>
#include <string>
#include <utility>
#include <variant>

namespace fsdp::archive {

/// Why something failed.
struct Error {
  std::string message;
  /// What was read is not what was written: it is missing, or has another
  /// checksum, size or format. Not so where it could not be read, which may be
  /// over tomorrow.
  bool isDamage = false;

  static Error damage(std::string message) {
    return {std::move(message), true};
  }
};

/// A `T`, or the `Error` that prevented it.
template <typename T> class [[nodiscard]] Expected {
public:
  Expected(T value) : storage(std::move(value)) {}
  Expected(Error error) : storage(std::move(error)) {}

  /// True if there is a value.
  explicit operator bool() const { return std::holds_alternative<T>(storage); }

  /// The value; only where there is one.
  T &operator*() {
    assert(*this && "an error has no value");
    return *std::get_if<T>(&storage);
  }
  const T &operator*() const {
    assert(*this && "an error has no value");
    return *std::get_if<T>(&storage);
  }
  T *operator->() { return &**this; }
  const T *operator->() const { return &**this; }

  /// The error; only where there is no value.
  const Error &error() const {
    assert(!*this && "a value has no error");
    return *std::get_if<Error>(&storage);
  }

private:
  std::variant<T, Error> storage;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_EXPECTED_H
