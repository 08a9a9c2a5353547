//===- ModulePaths.cpp - Paths of modules, as people write them -----------===//
//
// Patterns of whole paths, and what to say if none matches.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/ModulePaths.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace fsdp {

FailureOr<llvm::Regex>
getPathRegex(StringRef text,
             llvm::function_ref<InFlightDiagnostic()> emitError) {
  // LLVM's expressions take the stack for each bracket, and memory for each
  // repetition that is counted.
  constexpr size_t longest = 1000;
  if (text.size() > longest)
    return emitError() << "expected a regular expression of at most " << longest
                       << " characters, found " << text.size();
  // Extended regular expressions lack two classes that people expect.
  std::string pattern;
  for (size_t i = 0; i < text.size(); ++i) {
    StringRef token = text.substr(i, text[i] == '\\' ? 2 : 1);
    pattern += token == "\\d"   ? "[0-9]"
               : token == "\\w" ? "[A-Za-z0-9_]"
                                : token;
    i += token.size() - 1;
  }
  std::string error;
  if (!llvm::Regex(pattern).isValid(error))
    return emitError() << "'" << text
                       << "' is no regular expression: " << error;
  // A wrapper around the model is called 'm'; what users know lies inside.
  return llvm::Regex("^(m\\.)?(" + pattern + ")$");
}

std::string generalizePath(StringRef path) {
  SmallVector<StringRef> parts;
  path.split(parts, '.');
  std::string result;
  for (StringRef part : parts) {
    bool isNumber = !part.empty() && llvm::all_of(part, llvm::isDigit);
    result += (result.empty() ? "" : "\\.") + (isNumber ? "\\d+" : part.str());
  }
  return result;
}

void listFound(InFlightDiagnostic &diagnostic, std::vector<std::string> found) {
  constexpr size_t shown = 16;
  llvm::StringSet<> seen;
  llvm::erase_if(found,
                 [&](StringRef name) { return !seen.insert(name).second; });
  diagnostic << "; there ";
  if (found.empty()) {
    diagnostic << "is none that is known";
    return;
  }
  diagnostic << "are ";
  llvm::interleaveComma(
      ArrayRef(found).take_front(shown), diagnostic,
      [&](StringRef name) { diagnostic << '\'' << name << '\''; });
  if (found.size() > shown)
    diagnostic << " and " << found.size() - shown << " more";
}

} // namespace fsdp
