//===- JSONWriter.h - JSON that is always valid -----------------*- C++ -*-===//
//
// Used as `llvm::json::OStream` is: what an object or an array has is written
// by a function, and the writer sets the commas. Of numbers, what JSON has no
// word for becomes null.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_JSONWRITER_H
#define FSDP_ARCHIVE_JSONWRITER_H

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace fsdp::archive {

class JSONWriter {
public:
  /// How elements are set apart: as little as may be, by spaces, or each on a
  /// line of its own, two spaces deeper than the one around it.
  enum class Layout { Dense, Spaced, Lines };

  /// A number with so many digits after its point.
  struct Fixed {
    double value;
    int digits;
  };
  /// A number of so many digits in all.
  struct Rounded {
    double value;
    int digits;
  };

  /// Integers, booleans, text, and numbers as shortly as tells them from all
  /// others.
  template <typename T> void value(const T &value) {
    begin();
    if constexpr (std::is_same_v<T, bool>)
      text += value ? "true" : "false";
    else if constexpr (std::is_integral_v<T>)
      text += std::to_string(value);
    else
      text += spell(value);
  }
  template <typename Contents>
  void object(const Contents &contents, Layout layout = Layout::Spaced) {
    nest('{', contents, '}', layout);
  }
  template <typename Contents>
  void array(const Contents &contents, Layout layout = Layout::Spaced) {
    nest('[', contents, ']', layout);
  }
  /// An array of values.
  template <typename Range>
  void values(const Range &range, Layout layout = Layout::Spaced) {
    array(
        [&] {
          for (const auto &each : range)
            value(each);
        },
        layout);
  }

  // Members of an object.

  template <typename T>
  void attribute(std::string_view name, const T &attributed) {
    key(name);
    value(attributed);
  }
  template <typename Contents>
  void attributeObject(std::string_view name, const Contents &contents,
                       Layout layout = Layout::Spaced) {
    key(name);
    object(contents, layout);
  }
  template <typename Contents>
  void attributeArray(std::string_view name, const Contents &contents,
                      Layout layout = Layout::Spaced) {
    key(name);
    array(contents, layout);
  }
  template <typename Range>
  void attributeValues(std::string_view name, const Range &range,
                       Layout layout = Layout::Spaced) {
    key(name);
    values(range, layout);
  }

  /// What has been written.
  std::string take() { return std::move(text); }

private:
  template <typename Contents>
  void nest(char opening, const Contents &contents, char closing,
            Layout layout) {
    begin();
    text += opening;
    Level around =
        std::exchange(level, {layout, level.depth + (layout == Layout::Lines)});
    contents();
    std::swap(level, around);
    if (layout == Layout::Lines && !around.isEmpty)
      breakLine();
    text += closing;
  }
  /// What stands before an element: nothing before one that has a key.
  void begin();
  void key(std::string_view name);
  void breakLine();
  static std::string spell(std::string_view value);
  static std::string spell(double value);
  static std::string spell(Fixed value);
  static std::string spell(Rounded value);

  struct Level {
    Layout layout = Layout::Dense;
    unsigned depth = 0; ///< Of lines.
    bool isEmpty = true;
  };
  Level level;
  bool isAfterKey = false;
  std::string text;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_JSONWRITER_H
