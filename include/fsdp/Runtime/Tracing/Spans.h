//===- Spans.h - What was run when, for another process ---------*- C++ -*-===//

#ifndef FSDP_RUNTIME_TRACING_SPANS_H
#define FSDP_RUNTIME_TRACING_SPANS_H

#include "fsdp/Runtime/Execution/Session.h"

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// The spans of one rank as bytes, of which none says whose they are.
std::string encodeSpans(std::vector<Span> spans);

/// `text` is untrusted: throws unless all of it is spans of commands of the
/// plan.
std::vector<Span> decodeSpans(const planfile::Plan &plan, unsigned rank,
                              std::string_view text);

} // namespace fsdp

#endif // FSDP_RUNTIME_TRACING_SPANS_H
