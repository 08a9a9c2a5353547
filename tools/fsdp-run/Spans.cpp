//===- Spans.cpp - What all processes of a run did, and when --------------===//

#include "Spans.h"

#include <cstring>
#include <type_traits>

using namespace fsdp;

/// The time of day when the clock of spans was at 0, in seconds.
static double findOrigin() {
  auto seconds = [](auto time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  };
  return seconds(std::chrono::system_clock::now()) -
         seconds(std::chrono::steady_clock::now());
}

// All processes are of one version, and so have one layout.
static_assert(std::is_trivially_copyable_v<Span>);

static std::string encode(double origin, const std::vector<Span> &spans) {
  std::string text(sizeof origin + spans.size() * sizeof(Span), '\0');
  std::memcpy(text.data(), &origin, sizeof origin);
  if (!spans.empty())
    std::memcpy(text.data() + sizeof origin, spans.data(),
                spans.size() * sizeof(Span));
  return text;
}

static std::vector<Span> decode(const std::string &text, double &origin) {
  std::memcpy(&origin, text.data(), sizeof origin);
  std::vector<Span> spans((text.size() - sizeof origin) / sizeof(Span));
  if (!spans.empty())
    std::memcpy(spans.data(), text.data() + sizeof origin,
                spans.size() * sizeof(Span));
  return spans;
}

std::vector<Span> fsdp::gatherSpans(const Processes &processes,
                                    const std::vector<Span> &own) {
  if (processes.size() == 1)
    return own;
  std::vector<Span> all;
  double here = findOrigin();
  processes.consult("show what was run", encode(here, own),
                    [&](const std::vector<std::string> &texts) {
                      for (std::size_t rank = 0; rank != texts.size(); ++rank) {
                        double there = here;
                        std::vector<Span> spans = decode(texts[rank], there);
                        bool isNear =
                            processes.hosts()[rank] == processes.hosts()[0];
                        double shift = isNear ? 0 : there - here;
                        for (Span &span : spans) {
                          span.begin += shift;
                          span.end += shift;
                          all.push_back(span);
                        }
                      }
                      return "";
                    });
  return all;
}
