//===- ValueWords.cpp - Values in words -----------------------------------===//
//
// What made a value is remembered for diagnostics alone.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Values.h"

#include <algorithm>

namespace fsdp::symbolic {

void Values::note(Number base, std::string_view words,
                  std::vector<Number> operands) {
  if (!isRecording)
    return;
  auto [origin, isNew] = origins.try_emplace(base);
  if (isNew)
    origin->second = {std::string(words), std::move(operands)};
}

void Values::note(Number base, std::string_view words, const Content &content) {
  if (!isRecording)
    return;
  std::vector<Number> operands;
  for (const Part &part : content.parts)
    operands.push_back(part.base);
  note(base, words, std::move(operands));
}

void Values::describe(Number base, unsigned depth, std::string &text) const {
  auto found = origins.find(base);
  if (found == origins.end()) {
    text += isZeroNumber(base) ? "zeros" : "constants";
    return;
  }
  const Origin &origin = found->second;
  text += origin.words;
  if (origin.operands.empty())
    return;
  if (depth == 0) {
    text += " ...";
    return;
  }
  text += " (";
  for (size_t i = 0; i != origin.operands.size(); ++i) {
    if (i == 4) {
      text += ", ...";
      break;
    }
    text += i ? ", " : "";
    describe(origin.operands[i], depth - 1, text);
  }
  text += ")";
}

std::string Values::describe(const Content &content) const {
  std::vector<Number> bases;
  for (const Part &part : content.parts)
    if (std::find(bases.begin(), bases.end(), part.base) == bases.end())
      bases.push_back(part.base);
  std::string text;
  for (size_t i = 0; i != bases.size(); ++i) {
    if (i == 3) {
      text += " and others";
      break;
    }
    text += i ? ", beside " : "";
    describe(bases[i], 2, text);
  }
  return text.empty() ? "nothing" : text;
}

std::string Values::findUnknown(const Content &content) const {
  if (unknowns.empty())
    return {};
  std::vector<Number> work;
  for (const Part &part : content.parts)
    work.push_back(part.base);
  std::unordered_map<Number, bool> seen;
  while (!work.empty()) {
    Number base = work.back();
    work.pop_back();
    if (!seen.try_emplace(base).second)
      continue;
    if (auto found = unknowns.find(base); found != unknowns.end())
      return found->second;
    if (auto found = origins.find(base); found != origins.end())
      work.insert(work.end(), found->second.operands.begin(),
                  found->second.operands.end());
  }
  return {};
}

} // namespace fsdp::symbolic
