//===- OpFacts.cpp - What is known of each ATen operator ------------------===//

#include "fsdp/Operators/OpFacts.h"

#include "OpFactsManual.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

using namespace fsdp::operators;
using namespace std::string_view_literals;

static constexpr OpFacts generated[] = {
#include "OpFacts.inc"
};

/// The generated rows with what is known by hand added, made on first use.
static const std::vector<OpFacts> &getTable() {
  static const std::vector<OpFacts> table = [] {
    std::vector<OpFacts> rows(std::begin(generated), std::end(generated));
    std::unordered_map<std::string_view, uint16_t> familyTags;
    for (const OpFacts &row : rows)
      familyTags[getBaseName(row.name)] |= row.tags;
    for (OpFacts &row : rows)
      addManualFacts(row, familyTags[getBaseName(row.name)]);
    return rows;
  }();
  return table;
}

const OpFacts *fsdp::operators::lookupOpFacts(std::string_view name) {
  const std::vector<OpFacts> &table = getTable();
  auto it = std::lower_bound(table.begin(), table.end(), name,
                             [](const OpFacts &row, std::string_view name) {
                               return row.name < name;
                             });
  return it != table.end() && it->name == name ? &*it : nullptr;
}

OpFactsRange fsdp::operators::getAllOpFacts() {
  const std::vector<OpFacts> &table = getTable();
  return {table.data(), table.data() + table.size()};
}
