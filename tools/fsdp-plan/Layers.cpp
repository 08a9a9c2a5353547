//===- Layers.cpp - Names of layers, for people ---------------------------===//

#include "Layers.h"

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
