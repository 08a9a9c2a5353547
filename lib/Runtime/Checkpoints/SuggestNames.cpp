//===- SuggestNames.cpp - What a missing tensor may be called -------------===//

#include "SuggestNames.h"

#include "../Support/Text.h"

#include <algorithm>
#include <map>

using namespace fsdp;

/// What differs at the beginning of two names, whole components: "model." and
/// "m." of model.h.0.w and m.h.0.w.
static std::pair<std::string, std::string> splitEnd(const std::string &left,
                                                    const std::string &right) {
  auto [one, other] = std::ranges::mismatch(left.rbegin(), left.rend(),
                                            right.rbegin(), right.rend());
  auto begin = left.size() - static_cast<std::size_t>(one - left.rbegin());
  auto isWhole = [&](const std::string &name, std::size_t tail) {
    return tail == name.size() || name[name.size() - tail - 1] == '.';
  };
  for (;; ++begin) {
    std::size_t tail = left.size() - begin;
    if (tail == 0 || (isWhole(left, tail) && isWhole(right, tail)))
      return {left.substr(0, begin), right.substr(0, right.size() - tail)};
  }
}

static std::string escapeRegex(const std::string &text) {
  std::string escaped;
  for (char c : text) {
    if (std::string_view(".^$|()[]{}*+?\\").find(c) != std::string_view::npos)
      escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// Whether each missing tensor is there with `theirs` in place of `ours`.
static bool fits(const std::vector<NamedTensor> &missing,
                 const std::map<std::string, std::string> &types,
                 const std::vector<std::string> &used, const std::string &ours,
                 const std::string &theirs) {
  return std::ranges::none_of(
             used,
             [&](const auto &name) { return name.starts_with(theirs); }) &&
         std::ranges::all_of(missing, [&](const NamedTensor &each) {
           if (!each.name.starts_with(ours))
             return false;
           auto found = types.find(theirs + each.name.substr(ours.size()));
           return found != types.end() && found->second == each.type;
         });
}

std::string fsdp::suggestNames(const std::vector<NamedTensor> &missing,
                               const std::vector<NamedTensor> &unused,
                               const std::vector<std::string> &used) {
  const NamedTensor &first = missing.front();
  std::map<std::string, std::string> types;
  std::vector<std::string> alike;
  for (const NamedTensor &each : unused) {
    types.emplace(each.name, each.type);
    if (each.type == first.type)
      alike.push_back(each.name);
  }
  if (alike.empty())
    return {};
  std::string text = "; unused there, and " + first.type + " as " + first.name +
                     ": " + listSome(alike);
  for (const std::string &name : alike)
    if (auto [ours, theirs] = splitEnd(first.name, name);
        fits(missing, types, used, ours, theirs))
      return text + "; --rename '^" + escapeRegex(theirs) + "=" + ours +
             "' would fit";
  return text;
}
