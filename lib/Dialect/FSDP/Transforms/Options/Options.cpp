//===- Options.cpp - What people may decide about a step ------------------===//
//
// Options as text.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/InputFile.h"
#include "fsdp/Archive/Numbers.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>

#include "fsdp/Dialect/FSDP/Transforms/Options/OptionEnums.cpp.inc"

using llvm::StringRef;

namespace fsdp {

static const char *const sizeForm =
    "bytes, or a decimal number with KiB, MiB, GiB, KB, MB or GB";

std::string readOption(StringRef text, bool &value) {
  value = !text.equals_insensitive("false");
  bool isKnown = text.empty() || text.equals_insensitive("true") || !value;
  return isKnown ? "" : "true or false";
}

std::string readOption(StringRef text, std::string &value) {
  value = text.str();
  return text.empty() ? "a value" : "";
}

std::string readOption(StringRef text, int64_t &value, int64_t least) {
  // Ranks and units are counted in 32 bits.
  if (text.getAsInteger(10, value) || value < least)
    return "a number of at least " + std::to_string(least);
  return value > INT32_MAX ? "a number of at most " + std::to_string(INT32_MAX)
                           : "";
}

std::string readOption(StringRef text, Strategy &value) {
  bool isZero3 = text.equals_insensitive("zero3"),
       isZero2 = text.equals_insensitive("zero2");
  if (!isZero3 && !isZero2)
    return readOption<Strategy>(text, value);
  value = isZero3 ? Strategy::FullShard : Strategy::ShardGradOp;
  return "";
}

std::string readOption(StringRef text, ByteSize &value) {
  std::optional<int64_t> bytes = parseBytes(text);
  value.bytes = bytes.value_or(0);
  return bytes && *bytes > 0 ? "" : sizeForm;
}

std::string readOption(StringRef text, ReshardAfterForward &value) {
  int64_t group = 1;
  value.isAuto = text == "auto";
  if (text.equals_insensitive("true") || value.isAuto) {
    value.group = std::nullopt;
    return "";
  }
  if (!text.equals_insensitive("false") && !readOption(text, group, 1).empty())
    return "true, false, auto or a number of ranks";
  value.group = group;
  return "";
}

MeshSizes MeshSizes::of(int64_t replicate, int64_t shard) {
  return {{{MeshSizes::replicate.str(), replicate}, {"shard", shard}}};
}

bool MeshSizes::hasAxis(StringRef name) const {
  return llvm::is_contained(llvm::make_first_range(axes), name);
}

int64_t MeshSizes::getReplicas() const {
  for (const auto &[name, size] : axes)
    if (name == replicate)
      return size;
  return 1;
}

int64_t MeshSizes::getRanks() const {
  uint64_t ranks = 1;
  for (int64_t size : llvm::make_second_range(axes))
    ranks = llvm::SaturatingMultiply(ranks, uint64_t(size));
  return int64_t(std::min<uint64_t>(ranks, INT64_MAX));
}

bool isHybrid(Strategy strategy) {
  return strategy == Strategy::HybridShard ||
         strategy == Strategy::HybridShardZero2;
}

int64_t countShards(Strategy strategy, int64_t ranks, const MeshSizes &mesh) {
  return ranks / (isHybrid(strategy) ? mesh.getReplicas() : 1);
}

/// Letters, digits and underscores, no digit first, and no value of an option.
static bool isAxisName(StringRef text) {
  return !text.empty() && !llvm::isDigit(text.front()) && text != "auto" &&
         llvm::all_of(text,
                      [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

std::string readOption(StringRef text, MeshSizes &value) {
  static const char *const form =
      "RxS, such as 2x4, or axes NAME=SIZE, outermost first, such as "
      "replicate=2,shard=4,local=8, each size at least 1, or auto";
  value = {};
  value.isAuto = text == "auto";
  if (value.isAuto)
    return "";
  if (!text.contains('=')) {
    value = MeshSizes::of(0, 0);
    auto [replicate, shard] = text.split('x');
    return readOption(replicate, value.axes[0].second, 1).empty() &&
                   readOption(shard, value.axes[1].second, 1).empty()
               ? ""
               : form;
  }
  llvm::SmallVector<StringRef> parts;
  text.split(parts, ',');
  for (StringRef part : parts) {
    auto [name, number] = part.split('=');
    name = name.trim();
    int64_t size = 0;
    if (!isAxisName(name) || !readOption(number.trim(), size, 1).empty())
      return form;
    if (value.hasAxis(name))
      return "each axis once, and '" + name.str() + "' is there twice";
    value.axes.emplace_back(name, size);
  }
  return "";
}

std::string readOption(StringRef text, ChunkLoss &value) {
  value = {};
  value.isAuto = text == "auto";
  return value.isAuto || readOption(text, value.chunks, 1).empty()
             ? ""
             : "a number of at least 1, or auto";
}

void UnitRule::add(const UnitRule &later) {
  auto take = [](auto &own, const auto &other, bool isSaid) {
    if (isSaid)
      own = other;
  };
  bool saysAxes = !later.shard.empty() || later.isShardAuto;
  take(shard, later.shard, saysAxes);
  take(isShardAuto, later.isShardAuto, saysAxes);
  take(strategy, later.strategy, later.strategy.has_value());
  take(reshard, later.reshard, later.reshard.has_value());
  take(reshardAfterBackward, later.reshardAfterBackward,
       later.reshardAfterBackward.has_value());
  take(storage, later.storage, later.storage != ElementType::Unchanged);
  take(reduce, later.reduce, later.reduce != ElementType::Unchanged);
}

/// `auto`, or as `shard+local`: axes, each once.
static std::string readAxes(StringRef text, UnitRule &rule) {
  std::vector<std::string> &axes = rule.shard;
  axes.clear();
  rule.isShardAuto = text == "auto";
  if (rule.isShardAuto)
    return "";
  llvm::SmallVector<StringRef> names;
  text.split(names, '+');
  for (StringRef name : names) {
    if (!isAxisName(name) || llvm::is_contained(axes, name))
      return "axes of --mesh, each once, such as shard+local, or auto";
    axes.push_back(name.str());
  }
  return "";
}

/// `REGEX: strategy=NAME shard=AXIS+AXIS|auto reshard=true|false
/// reshard-after-backward=true|false storage=DTYPE reduce=DTYPE`.
static std::string readRule(StringRef text, UnitRule &rule) {
  auto [regex, settings] = text.rsplit(':');
  rule.regex = regex.trim().str();
  llvm::SmallVector<StringRef> parts;
  llvm::SplitString(settings, parts, " ,\t");
  if (rule.regex.empty() || parts.empty())
    return "REGEX: and what is decided, such as 'h\\.\\d+: reshard=false', in "
           "'" +
           text.str() + "'";
  for (StringRef part : parts) {
    auto [name, value] = part.split('=');
    std::string expected;
    if (name == "strategy")
      expected = readOption(value, rule.strategy.emplace());
    else if (name == "reshard")
      expected = value.empty() ? "true or false"
                               : readOption(value, rule.reshard.emplace());
    else if (name == "reshard-after-backward")
      expected = value.empty()
                     ? "true or false"
                     : readOption(value, rule.reshardAfterBackward.emplace());
    else if (name == "shard")
      expected = readAxes(value, rule);
    else if (name == "storage")
      expected = readOption(value, rule.storage);
    else if (name == "reduce")
      expected = readOption(value, rule.reduce);
    else
      return "strategy, shard, reshard, reshard-after-backward, storage or "
             "reduce in place of '" +
             name.str() + "'";
    if (!expected.empty())
      return name.str() + " to be " + expected + " in '" + text.str() + "'";
  }
  return "";
}

std::string readOption(StringRef text, UnitRules &value) {
  value = {};
  std::string content = text.str();
  if (text.consume_front("file:")) {
    constexpr uint64_t mostBytes = 1 << 20;
    auto file = archive::InputFile::open(text.str());
    if (!file)
      return "a file of rules: " + file.error().message;
    if (file->size() > mostBytes)
      return "a file of rules of at most 1 MiB";
    auto bytes = file->read();
    if (!bytes)
      return "a file of rules: " + bytes.error().message;
    content = std::move(*bytes);
  }
  llvm::SmallVector<StringRef> lines, rules;
  llvm::SplitString(content, lines, "\n");
  for (StringRef line : lines)
    llvm::SplitString(line.split('#').first, rules, ";");
  for (StringRef rule : rules) {
    rule = rule.trim();
    if (rule.empty())
      continue;
    if (std::string error = readRule(rule, value.rules.emplace_back());
        !error.empty())
      return error;
  }
  return value.rules.empty() ? "at least one rule" : "";
}

std::string readOption(StringRef text, Accumulation &value) {
  auto [number, rest] = text.split(':');
  value.isMean = rest == "mean";
  bool isKnown = value.isMean || number.size() == text.size();
  return isKnown && readOption(number, value.microBatches, 1).empty()
             ? ""
             : "a number of micro-batches of at least 1, alone or with :mean";
}

std::string readOption(StringRef text, Remat &value) {
  value = {};
  auto [policy, rest] = text.split(':');
  if (text == "none")
    return "";
  value.isCheap = policy == "cheap";
  if ((policy == "scope" || value.isCheap) && !rest.empty()) {
    value.scope = rest.str();
    return "";
  }
  if (policy == "budget" && readOption(rest, value.budget).empty())
    return "";
  return "none, scope:REGEX, cheap:REGEX or budget:SIZE, which is " +
         std::string(sizeForm);
}

std::string readOption(StringRef text, Offload &value) {
  value = {};
  value.parameters = text == "params" || text == "all";
  value.states = text == "optimizer" || text == "all";
  value.isAuto = text == "auto";
  if (value || value.isAuto || text == "none" ||
      (text.consume_front("bytes=") && readOption(text, value.bytes).empty()))
    return "";
  return "none, params, optimizer, all, auto or bytes=SIZE, which is " +
         std::string(sizeForm);
}

std::string readOption(StringRef text, NoDecay &value) {
  value = {};
  StringRef regex = text;
  bool isKnown = true;
  if (regex.consume_front("dims<")) {
    isKnown = !regex.consumeInteger(10, value.dims) && value.dims > 0 &&
              (regex.empty() || regex.consume_front("|"));
    isKnown &= text.back() != '|';
  }
  value.regex = regex.str();
  return isKnown && value ? ""
                          : "a regular expression of names of parameters, "
                            "dims<N with N of at least 1, or both as "
                            "dims<N|REGEX";
}

std::string readOption(StringRef text, LRGroups &value) {
  value = {};
  llvm::SmallVector<StringRef> parts;
  text.split(parts, ';');
  for (StringRef part : parts)
    if (!readOption(part.trim(), value.rules.emplace_back()).empty())
      return "groups of parameters, separated by semicolons, each a regular "
             "expression, dims<N with N of at least 1, or both as dims<N|REGEX";
  return "";
}

/// The orders of norms that are measured, as they are written.
static constexpr std::pair<const char *, MeasureKind> normOrders[] = {
    {"2", MeasureKind::SquaredNorm},
    {"1", MeasureKind::AbsSum},
    {"inf", MeasureKind::AbsMax}};

std::string readOption(StringRef text, ClipGradNorm &value) {
  value = {};
  auto [norm, order] = text.split(':');
  if (norm.getAsDouble(value.maxNorm) || !std::isfinite(value.maxNorm) ||
      value.maxNorm <= 0)
    return "a largest norm that is finite and above 0, and after a colon its "
           "order";
  if (norm.size() == text.size())
    return "";
  for (auto [name, kind] : normOrders)
    if (order == name) {
      value.kind = kind;
      return "";
    }
  return "1, 2 or inf as the order of the norm";
}

std::string readOption(StringRef text, GradScaler &value) {
  static const char *const form =
      "default, or some of init_scale=S above 0, growth_factor=G above 1, "
      "backoff_factor=B between 0 and 1, growth_interval=N of at least 1";
  value = {65536};
  if (text == "default")
    return "";
  llvm::SmallVector<StringRef> parts;
  text.split(parts, ',');
  for (StringRef part : parts) {
    auto [name, number] = part.trim().split('=');
    auto read = [number = number](double &field, double least, double most) {
      return !number.getAsDouble(field) && field > least && field < most;
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    constexpr double largest = std::numeric_limits<float>::max();
    bool isRight =
        name == "init_scale"       ? read(value.initScale, 0, largest)
        : name == "growth_factor"  ? read(value.growthFactor, 1, infinity)
        : name == "backoff_factor" ? read(value.backoffFactor, 0, 1)
        : name == "growth_interval"
            ? readOption(number, value.growthInterval, 1).empty() &&
                  value.growthInterval <= std::numeric_limits<int32_t>::max()
            : false;
    if (!isRight)
      return form;
  }
  return "";
}

std::string readOption(StringRef text, Bucket &value) {
  value = {};
  if (text == "none")
    return "";
  StringRef rest = text;
  if (rest.consume_front("merge:"))
    value.mode = BucketMode::Merge;
  else if (rest.consume_front("copy:"))
    value.mode = BucketMode::Copy;
  if (rest.consume_front("units:") && readOption(rest, value.units, 1).empty())
    return "";
  if (rest.consume_front("bytes:") && readOption(rest, value.bytes).empty())
    return "";
  return "none, units:N or bytes:SIZE, with merge: in front to join units, or "
         "copy: to copy them into one buffer; SIZE is " +
         std::string(sizeForm);
}

std::string readOption(StringRef text, GatherLimit &value) {
  value.isDefault = false;
  return readOption(text, value.units);
}

std::string spellOption(bool value) { return value ? "true" : "false"; }
std::string spellOption(int64_t value) { return std::to_string(value); }
std::string spellOption(const std::string &value) { return value; }
std::string spellOption(const ByteSize &value) {
  return value.bytes ? std::to_string(value.bytes) : "";
}
std::string spellOption(const ReshardAfterForward &value) {
  return value.isAuto        ? "auto"
         : !value.group      ? "true"
         : *value.group == 1 ? "false"
                             : std::to_string(*value.group);
}
std::string spellOption(const MeshSizes &value) {
  if (value.isAuto)
    return "auto";
  std::string list, sizes;
  for (const auto &[name, size] : value.axes) {
    list += (list.empty() ? "" : ",") + name + "=" + std::to_string(size);
    sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
  }
  bool isUsual = value.axes.size() == 2 &&
                 value.axes[0].first == MeshSizes::replicate &&
                 value.axes[1].first == "shard";
  return isUsual ? sizes : list;
}
std::string spellOption(const ChunkLoss &value) {
  return value.isAuto ? "auto" : std::to_string(value.chunks);
}
static std::string spellRule(const UnitRule &rule) {
  std::string text;
  if (rule.strategy)
    text += " strategy=" + spellOption(*rule.strategy);
  if (!rule.shard.empty() || rule.isShardAuto)
    text +=
        " shard=" + (rule.isShardAuto ? "auto" : llvm::join(rule.shard, "+"));
  if (rule.reshard)
    text += " reshard=" + spellOption(*rule.reshard);
  if (rule.reshardAfterBackward)
    text +=
        " reshard-after-backward=" + spellOption(*rule.reshardAfterBackward);
  if (rule.storage != ElementType::Unchanged)
    text += " storage=" + spellOption(rule.storage);
  if (rule.reduce != ElementType::Unchanged)
    text += " reduce=" + spellOption(rule.reduce);
  return text;
}
/// Without rules that say nothing, as those of which `auto` was dropped.
std::string spellOption(const UnitRules &value) {
  std::string text;
  for (const UnitRule &rule : value.rules)
    if (std::string said = spellRule(rule); !said.empty())
      text += (text.empty() ? "" : "; ") + rule.regex + ":" + said;
  return text;
}
std::string spellOption(const Accumulation &value) {
  return std::to_string(value.microBatches) + (value.isMean ? ":mean" : "");
}
std::string spellOption(const Remat &value) {
  return !value.scope.empty()
             ? (value.isCheap ? "cheap:" : "scope:") + value.scope
         : value.budget ? "budget:" + spellOption(value.budget)
                        : "none";
}
std::string spellOption(const Offload &value) {
  return value.isAuto  ? "auto"
         : value.bytes ? "bytes=" + spellOption(value.bytes)
         : value.parameters && value.states ? "all"
         : value.parameters                 ? "params"
         : value.states                     ? "optimizer"
                                            : "none";
}
std::string spellOption(const NoDecay &value) {
  std::string dims = value.dims ? "dims<" + std::to_string(value.dims) : "";
  return dims + (value.dims && !value.regex.empty() ? "|" : "") + value.regex;
}
std::string spellOption(const LRGroups &value) {
  return llvm::join(
      llvm::map_range(value.rules,
                      [](const NoDecay &rule) { return spellOption(rule); }),
      "; ");
}
std::string spellOption(const GradScaler &value) {
  if (!value)
    return "";
  return "init_scale=" + archive::spellNumber(value.initScale) +
         ",growth_factor=" + archive::spellNumber(value.growthFactor) +
         ",backoff_factor=" + archive::spellNumber(value.backoffFactor) +
         ",growth_interval=" + std::to_string(value.growthInterval);
}
std::string spellOption(const ClipGradNorm &value) {
  if (!value)
    return "";
  std::string text = archive::spellNumber(value.maxNorm);
  for (auto [name, kind] : normOrders)
    if (value.kind == kind)
      text.append(":").append(name);
  return text;
}
std::string spellOption(const Bucket &value) {
  std::string mode = value.mode == BucketMode::Group
                         ? ""
                         : stringifyEnum(value.mode).str() + ":";
  return value.units   ? mode + "units:" + std::to_string(value.units)
         : value.bytes ? mode + "bytes:" + spellOption(value.bytes)
                       : "none";
}
static constexpr std::pair<const char *, std::string PassesAt::*> levels[] = {
    {"aten", &PassesAt::aten},
    {"logical", &PassesAt::logical},
    {"scheduled", &PassesAt::scheduled},
    {"plan", &PassesAt::plan}};

std::string readOption(StringRef text, PassesAt &value) {
  value = {};
  llvm::SmallVector<StringRef> parts;
  text.split(parts, ';');
  for (StringRef part : parts) {
    auto [name, pipeline] = part.trim().split('=');
    const auto *level = llvm::find_if(
        levels, [name = name](const auto &each) { return each.first == name; });
    if (level == std::end(levels) || pipeline.empty() ||
        !(value.*level->second).empty())
      return "LEVEL=PIPELINE, separated by semicolons, each level once: aten, "
             "logical, scheduled, plan";
    value.*level->second = pipeline.str();
  }
  return "";
}
std::string spellOption(const PassesAt &value) {
  std::string text;
  for (auto [name, pipeline] : levels)
    if (!(value.*pipeline).empty())
      text +=
          (text.empty() ? "" : ";") + std::string(name) + "=" + value.*pipeline;
  return text;
}

std::string spellOption(const GatherLimit &value) {
  return std::to_string(value.units);
}

} // namespace fsdp
