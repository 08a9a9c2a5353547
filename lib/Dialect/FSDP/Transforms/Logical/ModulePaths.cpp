//===- ModulePaths.cpp - Paths of modules, as people write them -----------===//
//
// Patterns of whole paths, and what to say if none matches.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace fsdp {

/// LLVM writes a piece as often as it is repeated, pieces of pieces too.
static uint64_t countCopies(StringRef text) {
  uint64_t copies = 1;
  while (text.contains('{')) {
    text = text.split('{').second;
    uint64_t least = 1, most = 1;
    text.consumeInteger(10, least);
    if (text.consume_front(","))
      text.consumeInteger(10, most);
    copies =
        llvm::SaturatingMultiply(copies, std::max({uint64_t(1), least, most}));
  }
  return copies;
}

std::string findRegexError(StringRef text) {
  // Each bracket takes the stack.
  constexpr size_t longest = 1000, mostCopies = 1000;
  if (text.size() > longest)
    return ("expected a regular expression of at most " + Twine(longest) +
            " characters, found " + Twine(text.size()))
        .str();
  if (uint64_t copies = countCopies(text); copies > mostCopies)
    return ("expected repetitions in a regular expression that multiply to at "
            "most " +
            Twine(mostCopies) + ", found '" + text + "'")
        .str();
  std::string error;
  if (llvm::Regex(text).isValid(error))
    return {};
  return ("expected a regular expression, found '" + text + "': " + error)
      .str();
}

/// Extended regular expressions lack two classes that people expect.
static FailureOr<std::string>
getPattern(StringRef text, llvm::function_ref<InFlightDiagnostic()> emitError) {
  std::string pattern;
  for (size_t i = 0; i < text.size(); ++i) {
    StringRef token = text.substr(i, text[i] == '\\' ? 2 : 1);
    pattern += token == "\\d"   ? "[0-9]"
               : token == "\\w" ? "[A-Za-z0-9_]"
                                : token;
    i += token.size() - 1;
  }
  if (std::string error = findRegexError(pattern); !error.empty())
    return emitError() << error;
  return pattern;
}

FailureOr<llvm::Regex>
getPathRegex(StringRef text,
             llvm::function_ref<InFlightDiagnostic()> emitError) {
  FailureOr<std::string> pattern = getPattern(text, emitError);
  if (failed(pattern))
    return failure();
  // A wrapper around the model is called 'm'; what users know lies inside.
  return llvm::Regex("^(m\\.)?(" + *pattern + ")$");
}

FailureOr<llvm::Regex>
getNameRegex(StringRef text,
             llvm::function_ref<InFlightDiagnostic()> emitError) {
  FailureOr<std::string> pattern = getPattern(text, emitError);
  return failed(pattern) ? FailureOr<llvm::Regex>() : llvm::Regex(*pattern);
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
