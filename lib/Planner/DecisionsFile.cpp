//===- DecisionsFile.cpp - Decisions as text ------------------------------===//
//
// One line for each unit, so that a difference between two files is one between
// two plans. The reader is strict: what it does not know is an error, never
// passed over.
//
//===----------------------------------------------------------------------===//

#include "Toml.h"
#include "fsdp/Planner/Decisions.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <unordered_map>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;

static constexpr int64_t formatVersion = 2;
static constexpr size_t mostTextBytes = size_t(64) << 20;

bool fsdp::planner::operator==(const UnitDecision &a, const UnitDecision &b) {
  auto key = [](const UnitDecision &unit) {
    return std::make_tuple(unit.keep, unit.gathers[0].joins,
                           unit.gathers[0].ahead, unit.gathers[1].joins,
                           unit.gathers[1].ahead, unit.reduction.joins,
                           unit.reduction.wait);
  };
  return key(a) == key(b);
}

bool fsdp::planner::operator==(const ProgramDecisions &a,
                               const ProgramDecisions &b) {
  return a.units == b.units && a.recompute == b.recompute;
}

bool fsdp::planner::operator==(const Decisions &a, const Decisions &b) {
  return a.programs == b.programs && a.resident == b.resident;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// In quotes, and in ASCII.
static std::string quote(const std::string &name) {
  std::string text = "\"";
  for (size_t i = 0; i != name.size();) {
    auto byte = static_cast<unsigned char>(name[i++]);
    uint32_t code = byte;
    int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
    if (more)
      code = byte & (0x3fu >> more);
    for (; more && i != name.size(); --more)
      code = code << 6 | (static_cast<unsigned char>(name[i++]) & 0x3fu);
    char escaped[16];
    if (code < ' ' || code > '~')
      std::snprintf(escaped, sizeof escaped, "\\U%08X", code);
    else
      std::snprintf(escaped, sizeof escaped,
                    code == '"' || code == '\\' ? "\\%c" : "%c", int(code));
    text += escaped;
  }
  return text + "\"";
}

/// The names of those that have a value.
template <typename T>
static std::string list(const std::vector<T> &values, T value,
                        const std::vector<std::string> &names) {
  std::string text;
  for (size_t i = 0; i != values.size(); ++i)
    if (values[i] == value)
      text += (text.empty() ? "" : ", ") + quote(names[i]);
  return "[" + text + "]";
}

static std::vector<std::string> getUnitNames(const StepModel &model) {
  std::vector<std::string> names;
  for (const Unit &unit : model.units)
    names.push_back(unit.name);
  return names;
}

std::string fsdp::planner::write(const StepModel &model,
                                 const Decisions &decisions) {
  auto spell = [](bool value) { return value ? "true" : "false"; };
  constexpr const char *keeps[] = {"false", "true", "\"piece\""};
  std::vector<std::string> units = getUnitNames(model);
  std::string text =
      "version = " + std::to_string(formatVersion) +
      "\nresident = " + list(decisions.resident, uint8_t(true), units) + "\n";
  for (size_t p = 0; p != model.programs.size(); ++p) {
    const ProgramDecisions &own = decisions.programs[p];
    std::string table = "programs." + quote(model.programs[p].name);
    text +=
        "\n[" + table +
        "]\nrecompute = " + list(own.recompute, Recompute::All, model.modules) +
        "\nrecompute_cheap = " +
        list(own.recompute, Recompute::Cheap, model.modules) + "\n\n[" + table +
        ".units]\n";
    for (size_t u = 0; u != units.size(); ++u) {
      const UnitDecision &unit = own.units[u];
      text += quote(units[u]) + " = { keep = " + keeps[size_t(unit.keep)];
      for (Phase phase : {Phase::Forward, Phase::Backward}) {
        text += phase == Phase::Forward ? ", forward = { joins = "
                                        : ", backward = { joins = ";
        text += spell(unit[phase].joins);
        text += ", ahead = " + std::to_string(unit[phase].ahead) + " }";
      }
      text += ", reduction = { joins = ";
      text += spell(unit.reduction.joins);
      text += ", wait = " + std::to_string(unit.reduction.wait) + " } }\n";
    }
  }
  return text;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {
using Numbers = std::unordered_map<std::string, size_t>;

/// Reads tables and keeps the first error.
class DecisionsReader {
public:
  DecisionsReader(const StepModel &model, std::string path)
      : model(model), path(std::move(path)) {
    for (size_t i = 0; i != model.units.size(); ++i)
      units.emplace(model.units[i].name, i);
    for (size_t i = 0; i != model.modules.size(); ++i)
      modules.emplace(model.modules[i], i);
    for (size_t i = 0; i != model.programs.size(); ++i)
      programs.emplace(model.programs[i].name, i);
  }

  Expected<Decisions> read(const toml::table &root);

private:
  void fail(const toml::node &at, const std::string &message) {
    if (error.empty())
      error = path + ": line " + std::to_string(at.source().begin.line) + ": " +
              message;
  }
  void expect(const toml::node &node, const std::string &what);
  const toml::table *getTable(const toml::node &node, const std::string &what);
  void expectKeys(const toml::table &table,
                  std::initializer_list<std::string_view> known);
  void readFlag(const toml::table &table, std::string_view key, bool &flag);
  void readKeep(const toml::table &table, Keep &keep);
  void readSlots(const toml::table &table, std::string_view key,
                 uint16_t &slots);
  void readList(const toml::table &table, std::string_view key,
                const char *what, const Numbers &names,
                const std::function<void(const toml::node &, size_t)> &add);
  void readUnit(const toml::node &node, UnitDecision &unit);
  void readRecompute(const toml::table &table, const Program &program,
                     std::vector<Recompute> &recompute);
  void readProgram(const toml::node &node, const Program &program,
                   ProgramDecisions &own);
  size_t find(const toml::node &at, const char *what, const Numbers &names,
              const std::string &name);

  const StepModel &model;
  std::string path, error;
  Numbers units, modules, programs;
};
} // namespace

/// A name as it stands in a sentence.
static std::string spellName(std::string name) {
  constexpr size_t most = 80;
  for (char &c : name)
    if (c < ' ' || c > '~')
      c = '?';
  if (name.size() > most)
    name = name.substr(0, most) + "...";
  return "'" + name + "'";
}

static std::string describe(const toml::node &node) {
  if (const auto *text = node.as_string())
    return spellName(text->get());
  if (const auto *number = node.as_integer())
    return std::to_string(number->get());
  if (const auto *flag = node.as_boolean())
    return flag->get() ? "true" : "false";
  return node.is_table()   ? "a table"
         : node.is_array() ? "a list"
                           : "something else";
}

void DecisionsReader::expect(const toml::node &node, const std::string &what) {
  fail(node, "expected " + what + ", found " + describe(node));
}

const toml::table *DecisionsReader::getTable(const toml::node &node,
                                             const std::string &what) {
  if (!node.is_table())
    expect(node, what);
  return node.as_table();
}

void DecisionsReader::expectKeys(
    const toml::table &table, std::initializer_list<std::string_view> known) {
  if (std::optional<UnknownKey> unknown = findUnknownKey(table, known))
    fail(unknown->value,
         unknown->expected + ", found " + spellName(unknown->name));
}

void DecisionsReader::readFlag(const toml::table &table, std::string_view key,
                               bool &flag) {
  const toml::node *node = table.get(key);
  if (node && !node->is_boolean())
    expect(*node, std::string(key) + " to be true or false");
  if (node)
    flag = node->value_or(flag);
}

/// Of a unit that the backward does not gather again, it says nothing.
void DecisionsReader::readKeep(const toml::table &table, Keep &keep) {
  const toml::node *node = table.get("keep");
  if (!node)
    return;
  if (const auto *flag = node->as_boolean())
    keep = flag->get() ? Keep::All : Keep::None;
  else if (node->value<std::string_view>() != "piece")
    expect(*node, "keep to be true, false or \"piece\"");
  else if (!mayKeepPieces(model))
    expect(*node,
           "keep to be true or false, since no unit may keep a piece here "
           "(--reshard-after-forward N)");
  else
    keep = Keep::Piece;
}

void DecisionsReader::readSlots(const toml::table &table, std::string_view key,
                                uint16_t &slots) {
  const toml::node *node = table.get(key);
  if (!node)
    return;
  const auto *number = node->as_integer();
  if (!number || number->get() < 0 || number->get() > mostSlots)
    return expect(*node, std::string(key) + " to be a whole number from 0 to " +
                             std::to_string(mostSlots));
  slots = uint16_t(number->get());
}

size_t DecisionsReader::find(const toml::node &at, const char *what,
                             const Numbers &names, const std::string &name) {
  auto found = names.find(name);
  if (found != names.end())
    return found->second;
  fail(at, std::string("expected a ") + what + " of the step, found " +
               spellName(name));
  return names.size();
}

void DecisionsReader::readList(
    const toml::table &table, std::string_view key, const char *what,
    const Numbers &names,
    const std::function<void(const toml::node &, size_t)> &add) {
  const toml::node *node = table.get(key);
  if (!node)
    return;
  const toml::array *array = node->as_array();
  if (!array)
    return expect(*node, std::string(key) + " to be a list of names");
  for (const toml::node &item : *array) {
    const auto *name = item.as_string();
    if (!name)
      return expect(item, std::string("the name of a ") + what);
    size_t number = find(item, what, names, name->get());
    if (number < names.size())
      add(item, number);
  }
}

void DecisionsReader::readUnit(const toml::node &node, UnitDecision &unit) {
  const toml::table *table = getTable(node, "a table for the unit");
  if (!table)
    return;
  expectKeys(*table, {"keep", "forward", "backward", "reduction"});
  readKeep(*table, unit.keep);
  for (Phase phase : {Phase::Forward, Phase::Backward}) {
    const char *key = phase == Phase::Forward ? "forward" : "backward";
    if (const toml::node *part = table->get(key))
      if (const toml::table *gather = getTable(*part, "a table for a gather")) {
        expectKeys(*gather, {"joins", "ahead"});
        readFlag(*gather, "joins", unit[phase].joins);
        readSlots(*gather, "ahead", unit[phase].ahead);
      }
  }
  if (const toml::node *part = table->get("reduction"))
    if (const toml::table *own = getTable(*part, "a table for a reduction")) {
      expectKeys(*own, {"joins", "wait"});
      readFlag(*own, "joins", unit.reduction.joins);
      readSlots(*own, "wait", unit.reduction.wait);
    }
}

/// Each module is in one of the lists; what is not cheap of a module cannot be
/// left out where nothing of it is cheap.
void DecisionsReader::readRecompute(const toml::table &table,
                                    const Program &program,
                                    std::vector<Recompute> &recompute) {
  readList(table, "recompute", "module", modules,
           [&](const toml::node &, size_t number) {
             recompute[number] = Recompute::All;
           });
  readList(table, "recompute_cheap", "module", modules,
           [&](const toml::node &item, size_t number) {
             const std::vector<uint32_t> &cheap = program.cheap;
             if (recompute[number] == Recompute::All)
               return expect(item, "a module that is not in recompute as well");
             if (std::find(cheap.begin(), cheap.end(), number) == cheap.end())
               return expect(item, "a module of which something is cheap to "
                                   "compute again");
             recompute[number] = Recompute::Cheap;
           });
}

void DecisionsReader::readProgram(const toml::node &node,
                                  const Program &program,
                                  ProgramDecisions &own) {
  const toml::table *table = getTable(node, "a table for the program");
  if (!table)
    return;
  expectKeys(*table, {"recompute", "recompute_cheap", "units"});
  readRecompute(*table, program, own.recompute);
  const toml::node *part = table->get("units");
  const toml::table *rows =
      part ? getTable(*part, "a table of units") : nullptr;
  if (!rows)
    return;
  for (auto &&[key, value] : *rows) {
    size_t number = find(value, "unit", units, std::string(key.str()));
    if (number < own.units.size())
      readUnit(value, own.units[number]);
  }
}

Expected<Decisions> DecisionsReader::read(const toml::table &root) {
  Decisions decisions = makeDecisions(model);
  expectKeys(root, {"version", "resident", "programs"});
  if (const toml::node *version = root.get("version"); !version)
    fail(root, "expected version = " + std::to_string(formatVersion) +
                   ", found nothing");
  else if (const auto *number = version->as_integer();
           !number || number->get() != formatVersion)
    expect(*version, "version " + std::to_string(formatVersion));
  readList(root, "resident", "unit", units,
           [&](const toml::node &, size_t number) {
             decisions.resident[number] = true;
           });
  if (const toml::node *node = root.get("programs"))
    if (const toml::table *table = getTable(*node, "a table of programs"))
      for (auto &&[key, value] : *table) {
        size_t number =
            find(value, "program", programs, std::string(key.str()));
        if (number < decisions.programs.size())
          readProgram(value, model.programs[number],
                      decisions.programs[number]);
      }
  if (!error.empty())
    return Error{error};
  return decisions;
}

Expected<Decisions> fsdp::planner::readDecisions(const StepModel &model,
                                                 std::string_view text,
                                                 const std::string &path) {
  Expected<toml::table> root =
      parseToml(text, path, "decisions file", mostTextBytes);
  return root ? DecisionsReader(model, path).read(*root) : root.error();
}
