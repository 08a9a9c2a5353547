//===- Price.cpp - What more memory would buy -----------------------------===//

#include "Price.h"
#include "Layers.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/Support/FormatVariadic.h"

using namespace fsdp;
using fsdp::planner::Explanation;

/// By kind: after "h.3", and after "h.3 and h.4".
static constexpr const char *kindTexts[][2] = {
    {"is no longer recomputed", "are no longer recomputed"},
    {"is recomputed where that is cheap", "are recomputed where that is cheap"},
    {"is recomputed", "are recomputed"},
    {"stays gathered to the backward", "stay gathered to the backward"},
    {"is gathered again in the backward", "are gathered again in the backward"},
    {"leaves a piece to the backward", "leave pieces to the backward"},
    {"stays gathered between micro-batches",
     "stay gathered between micro-batches"},
    {"is gathered in each micro-batch", "are gathered in each micro-batch"},
    {"is in another call", "are in other calls"},
    {"has other launches and waits", "have other launches and waits"}};
static_assert(std::size(kindTexts) ==
              size_t(Explanation::Change::Kind::Places) + 1);

static const char *spellKind(Explanation::Change::Kind kind, bool isOne) {
  return kindTexts[size_t(kind)][isOne ? 0 : 1];
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
