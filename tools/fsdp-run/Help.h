//===- Help.h - The --help of fsdp-run --------------------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_HELP_H
#define FSDP_TOOLS_FSDP_RUN_HELP_H

#include "fsdp/Archive/HelpText.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace fsdp {

/// Groups of rows, wrapped to the terminal.
class Help final : public CLI::Formatter {
public:
  std::string make_option(const CLI::Option *option,
                          bool isPositional) const override {
    std::string text = option->get_description();
    if (std::string value = option->get_default_str(); !value.empty())
      text += " (default: " + value + ")";
    return archive::spellHelpRow(make_option_name(option, isPositional) +
                                     make_option_opts(option),
                                 text);
  }
  std::string make_help(const CLI::App *app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return CLI::detail::find_and_replace(
        Formatter::make_help(app, std::move(name), mode), "\n\n\n", "\n\n");
  }
  /// What may follow the name: " INT", " local|mpi|nccl".
  std::string make_option_opts(const CLI::Option *option) const override {
    if (option->get_type_size() == 0)
      return "";
    std::string type = option->get_type_name();
    if (std::size_t choices = type.find(":{"); choices != std::string::npos) {
      type = type.substr(choices + 2, type.size() - choices - 3);
      std::replace(type.begin(), type.end(), ',', '|');
    }
    return " " + type;
  }
  std::string make_description(const CLI::App *app) const override {
    return archive::wrapHelp(app->get_description()) + "\n";
  }
  std::string make_footer(const CLI::App *app) const override {
    return archive::wrapHelp(app->get_footer());
  }
};

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_HELP_H
