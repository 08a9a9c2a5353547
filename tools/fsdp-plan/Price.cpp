//===- Price.cpp - What more memory would buy -----------------------------===//

#include "Price.h"
#include "Layers.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/Support/FormatVariadic.h"

using namespace fsdp;
using fsdp::planner::Explanation;

/// After "h.3", or after "h.3 and h.4".
static const char *spellKind(Explanation::Change::Kind kind, bool isOne) {
  switch (kind) {
  case Explanation::Change::Kind::NotRecomputed:
    return isOne ? "is no longer recomputed" : "are no longer recomputed";
  case Explanation::Change::Kind::Recomputed:
    return isOne ? "is recomputed" : "are recomputed";
  case Explanation::Change::Kind::Kept:
    return isOne ? "stays gathered to the backward"
                 : "stay gathered to the backward";
  case Explanation::Change::Kind::NotKept:
    return isOne ? "is gathered again in the backward"
                 : "are gathered again in the backward";
  case Explanation::Change::Kind::Resident:
    return isOne ? "stays gathered between micro-batches"
                 : "stay gathered between micro-batches";
  case Explanation::Change::Kind::NotResident:
    return isOne ? "is gathered in each micro-batch"
                 : "are gathered in each micro-batch";
  case Explanation::Change::Kind::Calls:
    return isOne ? "is in another call" : "are in other calls";
  case Explanation::Change::Kind::Places:
    return isOne ? "has other launches and waits"
                 : "have other launches and waits";
  }
  return "";
}

std::string fsdp::spellPrice(const Explanation::Price &price, int64_t time) {
  std::string more = spellBytes(price.more) + " more buys ";
  if (price.changes.empty())
    return more + "nothing that a short search finds; the bound falls by " +
           spellTime(price.bound);
  std::string text = llvm::formatv(
      "{0}{1} (-{2:f1} %; the bound falls by {3}): ", more,
      spellTime(time - price.time),
      100 * (1 - double(price.time) / double(time)), spellTime(price.bound));
  // Calls and places follow from what is recomputed and kept, and are said only
  // where they are all there is.
  bool isFirst = true;
  for (const Explanation::Change &change : price.changes) {
    if (!isFirst && change.kind >= Explanation::Change::Kind::Calls)
      break;
    text += (isFirst ? "" : "; ") + spellNames(change.names) + " " +
            spellKind(change.kind, change.names.size() == 1);
    isFirst = false;
  }
  return text;
}

void fsdp::addPrice(const Explanation::Price &price,
                    llvm::json::Object &search) {
  llvm::json::Array changes;
  for (const Explanation::Change &change : price.changes)
    changes.push_back(
        llvm::json::Object{{"what", spellKind(change.kind, /*isOne=*/false)},
                           {"names", llvm::json::Array(change.names)}});
  search["more_bytes"] = price.more;
  search["more_ns"] = price.time;
  search["more_bound_ns"] = price.bound;
  search["more_changes"] = std::move(changes);
}
