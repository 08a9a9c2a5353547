//===- Escape.h - Text from outside, for terminals and JSON -----*- C++ -*-===//
//
// Names of tensors, units and files come from outside and may hold anything:
// sequences that steer a terminal, marks that turn the direction of a line,
// bytes that are no UTF-8. Whatever is shown to a person goes through `escape`,
// whatever is written as JSON through `quoteJSON`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_ESCAPE_H
#define FSDP_ARCHIVE_ESCAPE_H

#include <string>
#include <string_view>

namespace fsdp::archive {

/// One line of valid UTF-8: control characters and invalid bytes become
/// `\x1b`, invisible characters and marks of direction `\u202e`.
std::string escape(std::string_view text);

/// A JSON string, quotes included. Invalid bytes become U+FFFD.
std::string quoteJSON(std::string_view text);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_ESCAPE_H
