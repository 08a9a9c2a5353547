//===- NameRegex.cpp - Regular expressions on names -----------------------===//

#include "fsdp/Runtime/Checkpoints/NameRegex.h"

#include <array>

using namespace fsdp;

std::string NameRegex::replace(const std::string &name,
                               const std::string &text) const {
  std::array<regmatch_t, 10> groups;
  std::string result;
  const char *at = name.c_str(), *end = at + name.size();
  int flags = 0;
  while (::regexec(&regex, at, groups.size(), groups.data(), flags) == 0) {
    result.append(at, static_cast<std::size_t>(groups[0].rm_so));
    for (std::size_t i = 0; i != text.size(); ++i) {
      bool isGroup = text[i] == '\\' && i + 1 != text.size() &&
                     text[i + 1] >= '0' && text[i + 1] <= '9';
      if (!isGroup) {
        result += text[i];
        continue;
      }
      const regmatch_t &group =
          groups[static_cast<std::size_t>(text[++i] - '0')];
      if (group.rm_so >= 0)
        result.append(at + group.rm_so, at + group.rm_eo);
    }
    at += groups[0].rm_eo;
    // What matches nothing is passed over with one character of the name.
    if (groups[0].rm_eo == groups[0].rm_so) {
      if (at == end)
        return result;
      result += *at++;
    }
    flags = REG_NOTBOL;
  }
  return result.append(at, end);
}
