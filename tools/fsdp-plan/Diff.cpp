//===- Diff.cpp - What differs between two plans --------------------------===//
//
// Each plan is a list of facts, each of which has a name; facts of one name are
// compared. The order of collectives is compared by itself.
//
//===----------------------------------------------------------------------===//

#include "Diff.h"
#include "../Tool.h"
#include "Layers.h"
#include "Summary.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/PlanFile/PlanFile.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"

#include <map>

using namespace fsdp;
namespace pf = fsdp::planfile;
namespace cl = llvm::cl;
using llvm::StringRef;

namespace {

struct Fact {
  std::string section, name;
  std::string text;
  std::optional<uint64_t> bytes; ///< Of which `text` is the spelling.
};

/// A call of collectives, and how many operators of the model are launched
/// before it.
struct Call {
  std::string name; ///< "all_gather h.0", or with more units of a bucket.
  std::string role;
  unsigned place = 0;

  std::string spell() const { return name + " (" + role + ")"; }
};

/// Reads the facts of one plan, in the order in which they are shown.
class Facts {
public:
  explicit Facts(const pf::PlanFile &file)
      : file(file), summary(summarize(file.plan())) {
    addPlan();
    addUnits();
    addTraffic();
    addMemory();
    for (const pf::Program *program : *file->programs())
      addProgram(*program);
  }

  std::vector<Fact> rows;
  /// The calls of each program, in the order of launch.
  llvm::MapVector<std::string, std::vector<Call>,
                  std::map<std::string, unsigned>>
      calls;

private:
  void add(StringRef section, const llvm::Twine &name,
           const llvm::Twine &text) {
    rows.push_back({section.str(), name.str(), text.str(), std::nullopt});
  }
  void addBytes(const llvm::Twine &name, uint64_t bytes) {
    rows.push_back({"memory per rank", name.str(), spellBytes(bytes), bytes});
  }
  void addPlan();
  void addUnits();
  void addTraffic();
  void addProgram(const pf::Program &program);
  void addCollective(const pf::Command &command, bool joins, unsigned place,
                     std::vector<Call> &calls) const;
  void addMemory();

  const pf::PlanFile &file;
  const PlanSummary summary;
  llvm::StringSet<> units; ///< Their names.
};

} // namespace

/// "all_gather" of AllGather.
static std::string spellName(StringRef name) {
  return llvm::convertToSnakeFromCamelCase(name);
}

void Facts::addPlan() {
  std::string mesh;
  for (const auto &[axis, size] : summary.mesh)
    mesh += (mesh.empty() ? "" : ", ") + axis + " " + std::to_string(size);
  add("plan", "ranks", llvm::Twine(summary.ranks) + " (" + mesh + ")");
  add("plan", "strategy", summary.strategy);
  add("plan", "device", summary.device);
  add("plan", "micro-batches", llvm::Twine(file->micro_batches()));
  add("plan", "proof",
      summary.unproved.empty() ? "proved" : "not proved: " + summary.unproved);
}

void Facts::addUnits() {
  for (auto [unit, row] : llvm::zip_equal(*file->units(), summary.units)) {
    units.insert(row.name);
    add("units", row.name,
        llvm::formatv("{0} parameters ({1} frozen), {2} elements, {3} shards, "
                      "{4}, reduced in {5}",
                      row.parameters, row.frozen, row.elements, unit->shards(),
                      StringRef(pf::EnumNameDType(unit->storage())).lower(),
                      StringRef(pf::EnumNameDType(unit->reduce())).lower())
            .str());
  }
}

void Facts::addTraffic() {
  PlanSummary::Work step = summary.getStep().work;
  for (const PlanSummary::Traffic &row : step.traffic)
    add("collectives per step", row.kind + " over " + row.communicator,
        llvm::Twine(row.calls) + " calls, " + spellBytes(row.bytes));
  for (const PlanSummary::Traffic &row : step.hostCopies)
    add("collectives per step", row.kind + " " + row.communicator,
        llvm::Twine(row.calls) + " calls, " + spellBytes(row.bytes));
}

void Facts::addCollective(const pf::Command &command, bool joins,
                          unsigned place, std::vector<Call> &calls) const {
  uint32_t unit = pf::none;
  if (const auto *gather = command.step_as_AllGather())
    unit = gather->unit();
  else if (const auto *scatter = command.step_as_ReduceScatter())
    unit = scatter->unit();
  else if (const auto *reduce = command.step_as_AllReduce())
    unit = reduce->unit();
  else
    return;
  std::string name = unit == pf::none ? "" : " " + summary.units[unit].name;
  if (joins && !calls.empty())
    calls.back().name += " +" + name;
  else
    calls.push_back({spellName(pf::EnumNameStep(command.step_type())) + name,
                     spellName(pf::EnumNameRole(command.role())), place});
}

void Facts::addProgram(const pf::Program &program) {
  std::string name(file.string(program.name()));
  std::vector<Call> &own = calls[name];
  unsigned launches = 0, again = 0, place = 0, copies = 0, last = pf::none;
  std::map<std::string, unsigned> waits; // by stream
  llvm::StringSet<> forward;             // nodes
  for (const pf::Command *command : *program.commands()) {
    bool joins = command->group() != pf::none && command->group() == last;
    last = command->group();
    addCollective(*command, joins, place, own);
    copies += command->step_type() == pf::Step::Copy;
    if (command->step_type() == pf::Step::Wait)
      ++waits[spellName(pf::EnumNameStream(command->stream()))];
    if (command->step_type() != pf::Step::Launch)
      continue;
    ++launches;
    std::string_view node = file.string(command->node());
    if (units.contains(node)) // copies of its bucket
      continue;
    bool isForward = command->role() == pf::Role::Forward;
    if (isForward)
      forward.insert(node);
    bool isAgain = !isForward && forward.contains(node);
    again += isAgain;
    place += !isAgain;
  }
  std::string section = "program " + name;
  auto run = llvm::find_if(summary.programs,
                           [&](const auto &row) { return row.name == name; });
  if (run != summary.programs.end())
    add(section, "runs in a step", llvm::Twine(run->runs));
  add(section, "launches", llvm::Twine(launches));
  add(section, "of them computed again in the backward", llvm::Twine(again));
  add(section, "copies", llvm::Twine(copies));
  for (const auto &[stream, count] : waits)
    add(section, "waits of the stream " + stream, llvm::Twine(count));
}

void Facts::addMemory() {
  addBytes("arena", summary.arenaBytes);
  addBytes("least memory", summary.lowerBound);
  addBytes("persistent", summary.persistentBytes);
  for (const PlanSummary::Alive &row : summary.persistent)
    addBytes(row.what, row.bytes);
  addBytes("of the host", summary.hostBytes);
  addBytes("of the host, pinned", summary.pinnedBytes);
}

//===----------------------------------------------------------------------===//
// Differences
//===----------------------------------------------------------------------===//

namespace {

/// Prints differences, each section under its title.
class Printer {
public:
  explicit Printer(llvm::raw_ostream &os) : os(os) {}

  void print(StringRef section, const llvm::Twine &line) {
    if (section != current)
      os << (current.empty() ? "" : "\n") << archive::escape(section.str())
         << "\n";
    current = section.str();
    os << "  " << archive::escape(line.str()) << "\n";
  }
  bool hasPrinted() const { return !current.empty(); }

private:
  llvm::raw_ostream &os;
  std::string current;
};

/// Lines about layers that differ in nothing but their numbers are one.
class LayerLines {
public:
  void add(StringRef name, const llvm::Twine &rest) {
    LayerName layer = splitLayer(name);
    auto &numbers = lines[{layer.before.str(), layer.after.str() + rest.str()}];
    if (layer.number)
      numbers.insert(*layer.number);
  }
  void print(Printer &printer, StringRef section) {
    for (const auto &[text, numbers] : lines)
      printer.print(section, text.first + spellRanges(numbers) + text.second);
  }

private:
  llvm::MapVector<std::pair<std::string, std::string>, std::set<uint64_t>,
                  std::map<std::pair<std::string, std::string>, unsigned>>
      lines;
};

} // namespace

static std::string spellChange(const Fact *before, const Fact *after) {
  std::string text = ": " + (before ? before->text : "none") + " -> " +
                     (after ? after->text : "none");
  if (before && after && before->bytes && after->bytes) {
    bool isLess = *after->bytes < *before->bytes;
    text += isLess ? " (-" : " (+";
    text += spellBytes(isLess ? *before->bytes - *after->bytes
                              : *after->bytes - *before->bytes) +
            ")";
  }
  return text;
}

/// Compares facts by their names, in the order of the first plan; what only
/// the second one has follows in its section.
static void compareFacts(const Facts &a, const Facts &b, Printer &printer) {
  llvm::MapVector<StringRef, std::vector<const Fact *>> sections;
  std::map<std::pair<StringRef, StringRef>, const Fact *> ofA, ofB;
  for (const Fact &fact : a.rows) {
    ofA[{fact.section, fact.name}] = &fact;
    sections[fact.section].push_back(&fact);
  }
  for (const Fact &fact : b.rows) {
    ofB[{fact.section, fact.name}] = &fact;
    if (!ofA.count({fact.section, fact.name}))
      sections[fact.section].push_back(&fact);
  }
  for (auto &[section, facts] : sections) {
    auto has = [name = section](const Facts &plan) {
      return llvm::any_of(
          plan.rows, [&](const Fact &fact) { return fact.section == name; });
    };
    if (!has(a) || !has(b)) {
      printer.print(section, has(a) ? "only in a" : "only in b");
      continue;
    }
    LayerLines lines;
    for (const Fact *fact : facts) {
      std::pair<StringRef, StringRef> key(section, fact->name);
      auto before = ofA.find(key), after = ofB.find(key);
      const Fact *from = before == ofA.end() ? nullptr : before->second;
      const Fact *to = after == ofB.end() ? nullptr : after->second;
      if (!from || !to || from->text != to->text || from->bytes != to->bytes)
        lines.add(fact->name, spellChange(from, to));
    }
    lines.print(printer, section);
  }
}

/// The calls from `first` on, as far as a line goes.
static std::string spellCalls(llvm::ArrayRef<Call> calls, size_t first) {
  constexpr size_t most = 3;
  std::string text;
  for (const Call &call : calls.drop_front(first).take_front(most))
    text += (text.empty() ? "" : ", ") + call.spell();
  return text.empty() ? "none" : text;
}

/// Takes out of `calls` those that `others` lacks, and prints them.
static std::vector<Call> takeCommon(llvm::ArrayRef<Call> calls,
                                    llvm::ArrayRef<Call> others,
                                    StringRef section, StringRef where,
                                    Printer &printer) {
  llvm::StringMap<unsigned> known;
  for (const Call &call : others)
    ++known[call.spell()];
  std::vector<Call> common;
  LayerLines lines;
  for (const Call &call : calls) {
    unsigned &left = known[call.spell()];
    if (left) {
      --left;
      common.push_back(call);
    } else {
      lines.add(call.name, " (" + call.role + "): only in " + where);
    }
  }
  lines.print(printer, section);
  return common;
}

/// What is launched in one of the plans, in another order, or else at another
/// place.
static void compareCalls(StringRef program, llvm::ArrayRef<Call> ofA,
                         llvm::ArrayRef<Call> ofB, Printer &printer) {
  std::string section = ("launches of collectives, program " + program).str();
  std::vector<Call> a = takeCommon(ofA, ofB, section, "a", printer),
                    b = takeCommon(ofB, ofA, section, "b", printer);
  size_t first = 0;
  while (first < a.size() && a[first].spell() == b[first].spell())
    ++first;
  if (first < a.size()) {
    printer.print(section, "in another order, beginning with");
    printer.print(section, "  a: " + spellCalls(a, first));
    printer.print(section, "  b: " + spellCalls(b, first));
    return;
  }
  LayerLines lines;
  for (auto [before, after] : llvm::zip_equal(a, b))
    if (int change = int(after.place) - int(before.place))
      lines.add(before.name,
                " (" + before.role + "): " + llvm::Twine(std::abs(change)) +
                    " operator" + (std::abs(change) == 1 ? "" : "s") +
                    (change < 0 ? " earlier" : " later"));
  lines.print(printer, section);
}

static int diff(const pf::PlanFile &a, const pf::PlanFile &b) {
  if (a.bytes() == b.bytes())
    return 0;
  Facts before(a), after(b);
  Printer printer(llvm::outs());
  compareFacts(before, after, printer);
  for (const auto &[program, calls] : before.calls)
    if (auto other = after.calls.find(program); other != after.calls.end())
      compareCalls(program, calls, other->second, printer);
  if (!printer.hasPrinted())
    printer.print("plan", "the files differ in details alone, such as kernels, "
                          "places in memory or names of nodes");
  return 1;
}

int fsdp::diffPlans(int argc, char **argv) {
  cl::OptionCategory category("Options");
  cl::opt<std::string> first(cl::Positional, cl::desc("<a.plan>"),
                             cl::cat(category));
  cl::opt<std::string> second(cl::Positional, cl::desc("<b.plan>"),
                              cl::cat(category));
  std::string name = "fsdp-plan diff";
  std::vector<char *> arguments(argv, argv + argc + 1); // with the null
  arguments.front() = name.data();
  constexpr int trouble = 2; // as diff has it
  if (mlir::failed(parseOptions(
          argc, arguments.data(),
          "Says what differs between two plans: units, programs, collectives "
          "and their order, memory. The exit code is 0 if the files are the "
          "same, 1 if they differ, 2 after an error.\n",
          {&category})))
    return trouble;
  if (second.empty())
    return (void)reject("expected two plans, a.plan and b.plan; see --help"),
           trouble;
  auto a = pf::PlanFile::open(first), b = pf::PlanFile::open(second);
  for (auto *file : {&a, &b})
    if (!*file)
      return (void)reject(file->error().message), trouble;
  int code = diff(*a, *b);
  return mlir::failed(finishOutput()) ? trouble : code;
}
