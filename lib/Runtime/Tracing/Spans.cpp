//===- Spans.cpp - What was run when, for another process -----------------===//

#include "fsdp/Runtime/Tracing/Spans.h"

#include <cmath>
#include <cstring>
#include <type_traits>

using namespace fsdp;

/// The fields of a span, in the order in which they are sent. Whose it is, its
/// sender says.
template <typename Function>
static void forEachField(Span &span, const Function &function) {
  function(span.program);
  function(span.command);
  function(span.isDrain);
  function(span.stream);
  function(span.run);
  function(span.update);
  function(span.begin);
  function(span.end);
}

template <typename T> static void putField(std::string &text, T value) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  text.append(bytes, sizeof value);
}

/// False if the text has ended.
template <typename T> static bool takeField(std::string_view &text, T &value) {
  // Only 0 and 1 are bools.
  using Sent = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
  Sent sent;
  if (text.size() < sizeof sent)
    return false;
  std::memcpy(&sent, text.data(), sizeof sent);
  text.remove_prefix(sizeof sent);
  value = static_cast<T>(sent);
  return true;
}

std::string fsdp::encodeSpans(std::vector<Span> spans) {
  std::string text;
  for (Span &span : spans)
    forEachField(span, [&](auto value) { putField(text, value); });
  return text;
}

static bool isOf(const planfile::Plan &plan, const Span &span) {
  return span.program < plan.programs()->size() &&
         span.command <
             plan.programs()->Get(span.program)->commands()->size() &&
         span.stream >= planfile::Stream::MIN &&
         span.stream <= planfile::Stream::MAX && std::isfinite(span.begin) &&
         std::isfinite(span.end) && span.begin <= span.end;
}

std::vector<Span> fsdp::decodeSpans(const planfile::Plan &plan, unsigned rank,
                                    std::string_view text) {
  std::vector<Span> spans;
  while (!text.empty()) {
    Span &span = spans.emplace_back();
    span.rank = rank;
    bool isGood = true;
    forEachField(
        span, [&](auto &value) { isGood = isGood && takeField(text, value); });
    if (!isGood || !isOf(plan, span))
      throw Error("rank " + std::to_string(rank) +
                      ": expected what it has run of the plan, found something "
                      "else",
                  Failure::RankFailed);
  }
  return spans;
}
