//===- Tool.cpp - What the compiler's commands have in common -------------===//

#include "Tool.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/HelpText.h"
#include "fsdp/Archive/PT2Archive.h"
#include "fsdp/Archive/WriteFile.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/PrettyStackTrace.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>
#include <optional>
#include <unistd.h>
#include <utility>

using namespace mlir;
using namespace fsdp;
namespace cl = llvm::cl;

static const char *toolName = "fsdp";

/// No destructor may run, and not much memory may be needed.
[[noreturn]] static void giveUp(void *, const char *reason, bool) {
  for (StringRef text : {StringRef(toolName), StringRef(": error: "),
                         StringRef(reason), StringRef("\n")})
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
      break;
  std::_Exit(1);
}

void fsdp::initTool(const char *name) {
  toolName = name;
  llvm::install_fatal_error_handler(giveUp);
  llvm::install_bad_alloc_error_handler(giveUp);
  llvm::install_out_of_memory_new_handler();
  llvm::cl::SetVersionPrinter([](raw_ostream &os) {
    os << toolName << " " << FSDP_VERSION << ", LLVM " << LLVM_VERSION_STRING
       << "\n";
  });
  llvm::setBugReportMsg("This is a bug: please report it, with the command "
                        "and its files.\n");
}

LogicalResult fsdp::checkOptions(int argc, char **argv) {
  auto &known = llvm::cl::getRegisteredOptions();
  bool isValue = false; // of the option before, whatever it looks like
  for (StringRef argument : llvm::ArrayRef(argv, argc).drop_front()) {
    if (std::exchange(isValue, false))
      continue;
    if (argument == "--")
      break;
    StringRef name = argument.ltrim('-').split('=').first;
    auto option = argument.starts_with("-") ? known.find(name) : known.end();
    if (option != known.end()) {
      isValue =
          !argument.contains('=') &&
          option->second->getValueExpectedFlag() == llvm::cl::ValueRequired;
      continue;
    }
    bool isOption = argument.starts_with("--") || argument.starts_with("-h");
    if (!isOption || name == "h")
      continue;
    std::string hint = "see --help";
    for (const auto &[other, option] : known)
      if (option->getOptionHiddenFlag() == llvm::cl::NotHidden &&
          (StringRef(other).starts_with(name) ||
           name.edit_distance(other) <= 2))
        hint = "did you mean --" + std::string(other) + "?";
    return reject("there is no option --" + name + "; " + hint);
  }
  return success();
}

static void printHelp(StringRef command, StringRef overview,
                      llvm::ArrayRef<cl::OptionCategory *> groups) {
  llvm::raw_ostream &os = llvm::outs();
  std::string usage =
      "Usage: " +
      (command.starts_with(toolName) ? "" : std::string(toolName) + " ") +
      command.str() + " [options]";
  for (const cl::Option *each : cl::SubCommand::getTopLevel().PositionalOpts)
    usage += " " + each->HelpStr.str();
  os << archive::wrapHelp(overview) << "\n" << archive::wrapHelp(usage);
  for (cl::OptionCategory *group : groups) {
    llvm::SmallVector<const cl::Option *> options;
    for (const auto &[name, option] : cl::getRegisteredOptions())
      if (llvm::is_contained(option->Categories, group) &&
          !option->HelpStr.empty())
        options.push_back(option);
    if (options.empty())
      continue;
    llvm::sort(options, [](const cl::Option *a, const cl::Option *b) {
      return a->ArgStr < b->ArgStr;
    });
    os << "\n" << group->getName() << ":\n";
    for (const cl::Option *each : options) {
      std::string head =
          (each->ArgStr.size() == 1 ? "-" : "--") + each->ArgStr.str();
      if (!each->ValueStr.empty())
        head += " " + each->ValueStr.str();
      os << archive::spellHelpRow(head, each->HelpStr);
    }
  }
}

/// LLVM takes the last of several values, and forgets the others.
static LogicalResult checkOccurrences() {
  for (const auto &[name, option] : cl::getRegisteredOptions())
    if (option->getNumOccurrencesFlag() == cl::Optional &&
        option->getNumOccurrences() > 1)
      return fsdp::reject("--" + option->ArgStr + ": expected once, found " +
                          llvm::Twine(option->getNumOccurrences()) + " times");
  return success();
}

LogicalResult fsdp::parseOptions(int argc, char **argv, StringRef overview,
                                 llvm::ArrayRef<cl::OptionCategory *> groups) {
  // LLVM's help has one line for each option, however long.
  std::optional<cl::opt<bool>> help;
  std::optional<cl::alias> shortHelp;
  if (!groups.empty()) {
    cl::getRegisteredOptions().lookup("help")->removeArgument();
    help.emplace("help", cl::desc("Show this text"), cl::cat(*groups.front()));
    shortHelp.emplace("h", cl::aliasopt(*help));
  }
  if (failed(checkOptions(argc, argv)))
    return failure();
  std::string errors;
  llvm::raw_string_ostream stream(errors);
  if (llvm::cl::ParseCommandLineOptions(argc, argv, overview, &stream)) {
    if (!help)
      return success();
    if (!*help)
      return checkOccurrences();
    printHelp(llvm::sys::path::filename(argv[0]), overview, groups);
    std::exit(failed(finishOutput()));
  }
  llvm::errs() << errors;
  return failure();
}

LogicalResult fsdp::reject(const llvm::Twine &sentence) {
  llvm::errs() << toolName << ": error: " << archive::escape(sentence.str())
               << "\n";
  return failure();
}

LogicalResult fsdp::finishOutput() {
  llvm::outs().flush();
  std::error_code error = llvm::outs().error();
  if (!error)
    return success();
  llvm::outs().clear_error();
  return reject("standard output: cannot write: " + error.message());
}

LogicalResult
fsdp::filterFile(StringRef input, StringRef output,
                 function_ref<LogicalResult(std::unique_ptr<llvm::MemoryBuffer>,
                                            raw_ostream &)>
                     job) {
  if (output != "-")
    if (auto error = archive::checkOutputs({{"-o", output.str()}},
                                           {{"the input", input.str()}}))
      return reject(error->message);
  // Read, not mapped: who truncates the file must not kill the command.
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> buffer =
      archive::PT2Archive::isArchive(input.str())
          ? llvm::MemoryBuffer::getMemBuffer("", input)
      : input == "-"
          ? llvm::MemoryBuffer::getSTDIN()
          : llvm::MemoryBuffer::getFile(input, /*IsText=*/false,
                                        /*RequiresNullTerminator=*/true,
                                        /*IsVolatile=*/true, llvm::Align(16));
  if (!buffer)
    return reject(input + ": cannot open: " + buffer.getError().message());
  if (output == "-") {
    LogicalResult result = job(std::move(*buffer), llvm::outs());
    return success(succeeded(finishOutput()) && succeeded(result));
  }
  std::string content;
  llvm::raw_string_ostream stream(content);
  if (failed(job(std::move(*buffer), stream)))
    return failure();
  auto written = archive::writeFile(output.str(), {content});
  return written ? success() : reject(written.error().message);
}
