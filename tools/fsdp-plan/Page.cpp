//===- Page.cpp - A plan as one HTML page ---------------------------------===//
//
// page.html draws; here its data is put in.
//
//===----------------------------------------------------------------------===//

#include "Page.h"
#include "Report.h"

#include "llvm/Support/FormatVariadic.h"

using namespace fsdp;
using llvm::StringRef;

static constexpr StringRef page =
#include "page.inc"
    ;

/// JSON inside of a script element: no text of it may end the element.
static void addJSON(StringRef json, std::string &text) {
  for (char c : json)
    if (c == '<') // in strings alone
      text += "\\u003c";
    else
      text += c;
}

std::string fsdp::makePage(StringRef title, const Compilation &made) {
  auto [before, after] = page.split("{{data}}");
  std::string text = before.str();
  addJSON(llvm::formatv("{{\"name\": {0}, \"report\": {1}, \"programs\": [",
                        llvm::json::Value(llvm::json::fixUTF8(title)),
                        toJSON(made.summary))
              .str(),
          text);
  for (const auto &[name, timeline] : made.timelines) {
    if (text.back() != '[')
      text += ",";
    addJSON(llvm::formatv("{{\"name\": {0}, \"events\": ",
                          llvm::json::Value(llvm::json::fixUTF8(name)))
                .str(),
            text);
    addJSON(timeline, text);
    text += "}";
  }
  return text + "]}" + after.str();
}
