//===- HelpText.h - What --help prints --------------------------*- C++ -*-===//

#ifndef FSDP_ARCHIVE_HELPTEXT_H
#define FSDP_ARCHIVE_HELPTEXT_H

#include <string>
#include <string_view>

namespace fsdp::archive {

/// An option, such as "--steps N", and from column 30 on what it does: lines no
/// longer than the terminal is wide (or COLUMNS says), from 60 to 100 columns.
std::string spellHelpRow(std::string_view option, std::string_view description);

/// Lines of `text`, each wrapped in the same way.
std::string wrapHelp(std::string_view text);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_HELPTEXT_H
