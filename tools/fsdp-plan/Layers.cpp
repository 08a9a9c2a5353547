//===- Layers.cpp - Names of layers, for people ---------------------------===//

#include "Layers.h"

#include "fsdp/Archive/Escape.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace fsdp;

LayerName fsdp::splitLayer(llvm::StringRef path) {
  for (size_t begin = 0; begin < path.size();) {
    size_t end = std::min(path.find('.', begin), path.size());
    uint64_t number;
    if (!path.slice(begin, end).getAsInteger(10, number))
      return {path.take_front(begin), path.drop_front(end), number};
    begin = end + 1;
  }
  return {path, "", std::nullopt};
}

std::string fsdp::spellRanges(const std::set<uint64_t> &numbers) {
  constexpr unsigned mostRanges = 3;
  std::string text;
  unsigned ranges = 0;
  for (auto first = numbers.begin(); first != numbers.end(); ++ranges) {
    auto next = std::next(first);
    uint64_t last = *first;
    for (; next != numbers.end() && *next == last + 1; ++next)
      ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(*first);
    if (last != *first)
      text += " .. " + std::to_string(last);
    first = next;
  }
  if (ranges <= mostRanges)
    return text;
  return llvm::formatv("{0} of {1} .. {2}", numbers.size(), *numbers.begin(),
                       *numbers.rbegin());
}

/// How much of all names stands before "layers.3": up to the same last name.
static size_t findPrefix(const std::vector<std::string> &names) {
  std::optional<llvm::StringRef> before;
  for (const std::string &name : names) {
    LayerName layer = splitLayer(name);
    if (!layer.number || before.value_or(layer.before) != layer.before)
      return 0;
    before = layer.before;
  }
  size_t dot = before ? before->drop_back(!before->empty()).rfind('.')
                      : llvm::StringRef::npos;
  return dot == llvm::StringRef::npos ? 0 : dot + 1;
}

std::string fsdp::spellNames(const std::vector<std::string> &names) {
  constexpr size_t mostItems = 3;
  size_t prefix = findPrefix(names);
  std::vector<std::string> items;
  size_t named = 0;
  for (size_t i = 0, end; i != names.size(); i = end) {
    LayerName layer = splitLayer(names[i]);
    auto follows = [&](size_t next) {
      LayerName other = splitLayer(names[next]);
      return layer.number && other.number && other.before == layer.before &&
             other.after == layer.after &&
             *other.number == *layer.number + (next - i);
    };
    for (end = i + 1; end != names.size() && follows(end);)
      ++end;
    if (end - i == 2) // is no range
      --end;
    if (items.size() == mostItems)
      break;
    named += end - i;
    items.push_back(archive::escape(names[i].substr(prefix)));
    if (end - i > 1)
      items.back() += " to " + archive::escape(names[end - 1].substr(prefix));
  }
  if (named != names.size())
    items.push_back(llvm::formatv("{0} other{1}", names.size() - named,
                                  names.size() - named == 1 ? "" : "s"));
  std::string last = items.empty() ? "" : items.back();
  if (items.size() < 2)
    return last;
  items.pop_back();
  return llvm::join(items, ", ") + " and " + last;
}
