//===- Options.h - The command line of fsdp-run -----------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_OPTIONS_H
#define FSDP_TOOLS_FSDP_RUN_OPTIONS_H

#include "fsdp/Runtime/Training/TrainingOptions.h"

namespace fsdp {

/// Reads the command line. Nothing if it asked for help, which has been given;
/// throws `fsdp::Error` where it is wrong.
std::optional<TrainingOptions> parseOptions(int argc, char **argv);

/// The value that the command line gives an option, even if the rest of it is
/// wrong; nothing if it gives none.
std::string findOption(int argc, char **argv, const std::string &option);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_OPTIONS_H
