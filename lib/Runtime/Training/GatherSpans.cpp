//===- GatherSpans.cpp - What all processes did, and when -----------------===//

#include "GatherSpans.h"

#include "fsdp/Runtime/Tracing/Spans.h"

#include <cmath>
#include <cstring>

using namespace fsdp;

/// The time of day when the clock of spans was at 0, in seconds.
static double findOrigin() {
  auto seconds = [](auto time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  };
  return seconds(std::chrono::system_clock::now()) -
         seconds(std::chrono::steady_clock::now());
}

std::vector<Span> fsdp::gatherSpans(const planfile::Plan &plan,
                                    const Processes &processes,
                                    const std::vector<Span> &own) {
  if (processes.size() == 1)
    return own;
  std::vector<Span> all;
  double here = findOrigin();
  std::string shown(sizeof here, '\0');
  std::memcpy(shown.data(), &here, sizeof here);
  const std::vector<std::string> hosts = processes.hosts();
  processes.consult(
      "show what was run", shown + encodeSpans(own),
      [&](const std::vector<std::string> &texts) {
        for (unsigned rank = 0; rank != texts.size(); ++rank) {
          std::string_view text = texts[rank];
          double there = NAN;
          if (text.size() >= sizeof there)
            std::memcpy(&there, text.data(), sizeof there);
          if (!std::isfinite(there))
            throw Error("rank " + std::to_string(rank) +
                            ": expected the time of its clock, found none",
                        Failure::RankFailed);
          std::vector<Span> spans =
              decodeSpans(plan, rank, text.substr(sizeof there));
          bool isNear = hosts[rank] == hosts[0];
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
