//===- Tool.h - What the compiler's commands have in common -----*- C++ -*-===//
//
// How a command gives up, reads its input and writes its output. A failure of
// LLVM itself (no memory, an output that is lost) is a sentence as any other,
// and ends the command with exit code 1.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_TOOL_H
#define FSDP_TOOLS_TOOL_H

#include "mlir/Support/LLVM.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MemoryBuffer.h"

namespace fsdp {

/// Replaces LLVM's texts about crashes; at the start of `main`. `name`: of the
/// command, a literal.
void initTool(const char *name);

/// Reads the command line into the registered options of LLVM. Fails with a
/// sentence, also where an option is not known; ends the command where help or
/// the version is asked for. `groups`: of the options that help shows, in
/// order; without them it is LLVM's.
mlir::LogicalResult
parseOptions(int argc, char **argv, llvm::StringRef overview,
             llvm::ArrayRef<llvm::cl::OptionCategory *> groups = {});

/// Fails, with a sentence, if an option of the command line is not registered.
/// LLVM takes what begins like `--help` for it.
mlir::LogicalResult checkOptions(int argc, char **argv);

/// Prints `<tool>: error: <sentence>`, escaped.
mlir::LogicalResult reject(const llvm::Twine &sentence);

/// Flushes the standard output. Fails, with a sentence, if some of it is lost.
mlir::LogicalResult finishOutput();

/// Calls `job` with the content of `input` and writes what it prints to
/// `output`, once it has succeeded; `-` is a standard stream. Of an archive
/// `job` is given the name only, since it is opened piece by piece.
mlir::LogicalResult filterFile(
    llvm::StringRef input, llvm::StringRef output,
    llvm::function_ref<mlir::LogicalResult(std::unique_ptr<llvm::MemoryBuffer>,
                                           llvm::raw_ostream &)>
        job);

} // namespace fsdp

#endif // FSDP_TOOLS_TOOL_H
