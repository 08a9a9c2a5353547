//===- HelpText.cpp - What --help prints ----------------------------------===//

#include "fsdp/Archive/HelpText.h"

#include <algorithm>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

static constexpr std::size_t descriptionColumn = 30;

static std::size_t getWidth() {
  int columns = 0;
  winsize size{};
  if (const char *text = std::getenv("COLUMNS"))
    columns = std::atoi(text);
  else if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    columns = size.ws_col;
  return static_cast<std::size_t>(
      std::clamp(columns > 0 ? columns : 100, 60, 100));
}

/// Appends words to a line that has got to `column`; further lines begin at
/// `indent`. They break at spaces and after bars.
static void append(std::string &out, std::string_view text, std::size_t column,
                   std::size_t indent) {
  const std::size_t width = getWidth();
  while (!text.empty()) {
    std::size_t end = std::min(text.find_first_of(" |"), text.size());
    bool isSpace = end != text.size() && text[end] == ' ';
    end += end != text.size() && !isSpace;
    if (column + end > width && column > indent) {
      out.erase(out.find_last_not_of(' ') + 1);
      out.append("\n").append(indent, ' ');
      column = indent;
    }
    end += isSpace;
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(end);
  }
  out.erase(out.find_last_not_of(' ') + 1);
}

std::string fsdp::archive::spellHelpRow(std::string_view option,
                                        std::string_view description) {
  std::string out = "  ";
  append(out, option, out.size(), 6);
  std::size_t column = out.size() - (out.rfind('\n') + 1);
  if (column + 2 > descriptionColumn || out.find('\n') != std::string::npos) {
    out += '\n';
    column = 0;
  }
  out.append(descriptionColumn - column, ' ');
  append(out, description, descriptionColumn, descriptionColumn);
  return out += '\n';
}

std::string fsdp::archive::wrapHelp(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t end = std::min(text.find('\n'), text.size());
    append(out, text.substr(0, end), 0, 0);
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}
