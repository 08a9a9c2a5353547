//===- NameRegex.h - Regular expressions on names ---------------*- C++ -*-===//
//
// As the compiler's options have them: POSIX extended, and a part of a name may
// match.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_CHECKPOINTS_NAMEREGEX_H
#define FSDP_RUNTIME_CHECKPOINTS_NAMEREGEX_H

#include "fsdp/Runtime/Support/Error.h"

#include <regex.h>

namespace fsdp {

class NameRegex {
public:
  /// `option` is what errors name.
  NameRegex(const std::string &option, const std::string &text) {
    if (int code = ::regcomp(&regex, text.c_str(), REG_EXTENDED)) {
      char reason[128];
      ::regerror(code, &regex, reason, sizeof reason);
      throw Error(option + ": expected a regular expression, found '" + text +
                  "': " + reason);
    }
  }

  ~NameRegex() { ::regfree(&regex); }
  NameRegex(const NameRegex &) = delete;
  NameRegex &operator=(const NameRegex &) = delete;

  bool matches(const std::string &name) const {
    return ::regexec(&regex, name.c_str(), 0, nullptr, 0) == 0;
  }

  /// The name with `text` in place of each part that matches; \1 to \9 in it
  /// are what the groups match.
  std::string replace(const std::string &name, const std::string &text) const;

private:
  regex_t regex;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_CHECKPOINTS_NAMEREGEX_H
