//===- Weights.cpp - Parameters and buffers out of a file -----------------===//

#include "fsdp/Runtime/Weights.h"

#include "Files.h"
#include "Text.h"
#include "fsdp/Archive/SafetensorsFolder.h"
#include "fsdp/Runtime/NameRegex.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

using namespace fsdp;
using archive::DType;

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

/// The elements of a strided tensor of `record`, one after the other.
static std::vector<std::byte> makeRowMajor(std::string_view record,
                                           const archive::Payload &payload,
                                           std::size_t itemSize,
                                           std::size_t numel) {
  std::vector<std::byte> copy(numel * itemSize);
  std::vector<std::int64_t> index(payload.sizes.size());
  std::int64_t offset = payload.storageOffset;
  for (std::size_t i = 0; i != numel; ++i) {
    std::memcpy(copy.data() + i * itemSize,
                record.data() + static_cast<std::size_t>(offset) * itemSize,
                itemSize);
    for (std::size_t d = index.size(); d-- != 0;) {
      if (payload.sizes[d] == 1)
        continue; // its stride may be anything
      offset += payload.strides[d];
      if (++index[d] != payload.sizes[d])
        break;
      offset -= payload.strides[d] * payload.sizes[d];
      index[d] = 0;
    }
  }
  return copy;
}

static bool isRowMajor(const archive::Payload &payload) {
  std::int64_t stride = 1;
  for (std::size_t d = payload.sizes.size(); d-- != 0;
       stride *= payload.sizes[d])
    if (payload.sizes[d] > 1 && payload.strides[d] != stride)
      return false;
  return true;
}

// What is read is bounded by the plan, whose sizes it has: elements of a small
// archive may overlap, and be many.
HostTensor Weights::read(const Value &value) const {
  std::size_t itemSize = planfile::getItemSize(value.type), numel = 1;
  for (std::int64_t size : value.sizes)
    numel *= static_cast<std::size_t>(size);
  HostTensor tensor{value.type, value.sizes, {}};
  if (const auto *slice = std::get_if<Value::Slice>(&value.place)) {
    tensor.bytes.resize(slice->info->bytes);
    readBytes(*slice->file, *slice->info, 0, tensor.bytes);
    return tensor;
  }
  const archive::Payload &payload =
      *std::get<const archive::Payload *>(value.place);
  if (numel == 0)
    return tensor;
  std::string record =
      take(std::get<archive::PT2Archive>(file).readRecord(payload));
  if (!isRowMajor(payload)) {
    tensor.bytes = makeRowMajor(record, payload, itemSize, numel);
    return tensor;
  }
  auto bytes =
      std::as_bytes(std::span(record))
          .subspan(static_cast<std::size_t>(payload.storageOffset) * itemSize,
                   numel * itemSize);
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

/// What is in memory at a time of a tensor that is read in parts.
static constexpr std::size_t maxPartBytes = std::size_t{4} << 20;

static std::size_t countElements(const std::vector<std::int64_t> &sizes) {
  std::size_t count = 1;
  for (std::int64_t size : sizes)
    count *= static_cast<std::size_t>(size);
  return count;
}

/// Calls `function` with parts of a box, each of at most `most` elements.
static void forEachPart(const Box &box, std::size_t most,
                        const std::function<void(const Box &)> &function) {
  std::size_t count = countElements(box.sizes);
  auto axis = std::ranges::find_if(box.sizes,
                                   [](std::int64_t size) { return size > 1; });
  if (count <= most || axis == box.sizes.end())
    return count == 0 ? void() : function(box);
  auto a = static_cast<std::size_t>(axis - box.sizes.begin());
  std::size_t row = count / static_cast<std::size_t>(*axis);
  auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, most / row));
  for (std::int64_t at = 0; at < *axis; at += step) {
    Box part = box;
    part.offsets[a] += at;
    part.sizes[a] = std::min(step, *axis - at);
    forEachPart(part, most, function);
  }
}

/// The elements of a box of a row-major tensor, one after the other.
static HostTensor readBox(const Weights::Value &value, const Box &box) {
  const auto &[file, info] = std::get<Weights::Value::Slice>(value.place);
  std::size_t itemSize = planfile::getItemSize(value.type);
  HostTensor tensor{value.type, box.sizes, {}};
  tensor.bytes.resize(countElements(box.sizes) * itemSize);
  // Rows of the axes from `inner` on follow one another in the file.
  std::size_t inner = box.sizes.size();
  std::uint64_t run = itemSize;
  bool isWhole = true;
  while (inner > 0 && isWhole) {
    --inner;
    run *= static_cast<std::uint64_t>(box.sizes[inner]);
    isWhole = box.sizes[inner] == value.sizes[inner];
  }
  for (std::uint64_t at = 0; at < tensor.bytes.size(); at += run) {
    std::uint64_t rest = at / run, begin = 0, stride = itemSize;
    for (std::size_t a = value.sizes.size(); a-- > 0;) {
      auto extent = static_cast<std::uint64_t>(box.sizes[a]);
      auto index = static_cast<std::uint64_t>(box.offsets[a]);
      if (a < inner) {
        index += rest % extent;
        rest /= extent;
      }
      begin += index * stride;
      stride *= static_cast<std::uint64_t>(value.sizes[a]);
    }
    readBytes(*file, *info, begin, std::span(tensor.bytes).subspan(at, run));
  }
  return tensor;
}

/// Whether two tensors of the same sizes have the same bytes.
bool Weights::areEqual(const Value &left, const Value &right) const {
  if (left.type != right.type)
    return false;
  if (std::holds_alternative<const archive::Payload *>(left.place))
    return read(left).bytes == read(right).bytes;
  bool areEqual = true;
  forEachPart({std::vector<std::int64_t>(left.sizes.size()), left.sizes},
              maxPartBytes / planfile::getItemSize(left.type),
              [&](const Box &part) {
                areEqual = areEqual && readBox(left, part).bytes ==
                                           readBox(right, part).bytes;
              });
  return areEqual;
}

void Weights::addArchive(const archive::PT2Archive &archive) {
  for (const auto *table : {&archive.weights(), &archive.constants()})
    for (const archive::Payload &payload : *table)
      // There are archives without weights.
      if (payload.hasBytes() ||
          std::ranges::find(payload.sizes, 0) != payload.sizes.end())
        values[payload.name] = {planfile::DType(payload.dtype), payload.sizes,
                                &payload};
}

void Weights::addSafetensors(const archive::Safetensors &safetensors) {
  for (const archive::TensorInfo &tensor : safetensors.tensors())
    values[tensor.name] = {planfile::DType(tensor.dtype), tensor.shape,
                           Value::Slice{&safetensors, &tensor}};
}

void Weights::rename(const std::vector<std::string> &renames) {
  for (const std::string &each : renames) {
    std::size_t equals = each.rfind('=');
    if (equals == std::string::npos || equals == 0)
      throw Error("--rename: expected 'regex=text', found '" + each + "'");
    NameRegex regex("--rename", each.substr(0, equals));
    std::string text = each.substr(equals + 1);
    bool matches = false;
    std::map<std::string, Value, std::less<>> renamed;
    for (auto &[name, value] : values) {
      matches |= regex.matches(name);
      if (auto [other, isNew] =
              renamed.emplace(regex.replace(name, text), value);
          !isNew)
        throw Error("--rename '" + each + "': " + path +
                    ": expected names of their own, found two tensors that "
                    "become " +
                    other->first);
    }
    if (!matches)
      throw Error("--rename '" + each + "': expected the name of a tensor of " +
                  path + " to match, found none");
    values = std::move(renamed);
  }
}

/// The component with its dot that all names begin with; empty if there is
/// none.
template <typename Names> static std::string findPrefix(const Names &names) {
  std::string prefix;
  for (const std::string &name : names) {
    std::string first = name.substr(0, name.find('.') + 1);
    if (first.empty() || (!prefix.empty() && first != prefix))
      return {};
    prefix = first;
  }
  return prefix;
}

static std::vector<archive::Safetensors>
openSafetensors(const std::string &path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return take(archive::openSafetensorsFolder(path));
  std::vector<archive::Safetensors> files;
  files.push_back(take(archive::Safetensors::open(path)));
  return files;
}

Weights Weights::open(const std::string &path,
                      const std::vector<std::string> &renames) {
  bool isArchive = archive::PT2Archive::isArchive(path);
  Weights weights(path, isArchive ? File(take(archive::PT2Archive::open(path)))
                                  : File(openSafetensors(path)));
  if (isArchive)
    weights.addArchive(std::get<archive::PT2Archive>(weights.file));
  else
    for (const auto &each :
         std::get<std::vector<archive::Safetensors>>(weights.file))
      weights.addSafetensors(each);
  weights.rename(renames);
  std::vector<std::string> names;
  for (auto &[name, value] : weights.values)
    names.push_back(name);
  weights.prefix = findPrefix(names);
  return weights;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

const Weights::Entry *
Weights::find(const std::vector<std::string> &names,
              std::string_view planPrefix, planfile::DType wanted,
              const flatbuffers::Vector<std::int64_t> &sizes,
              Names &used) const {
  const Entry *found = nullptr;
  auto look = [&](const std::string &spelling) {
    auto it = values.find(spelling);
    if (it == values.end() || &*it == found)
      return;
    const Value &value = it->second;
    used.insert(&value);
    check(names[0], value, wanted, sizes);
    if (found && !areEqual(value, found->second))
      throw Error(path + ": expected " + found->first + " and " + it->first +
                  ", which are one parameter, to be equal, found different "
                  "values");
    found = &*it;
  };
  // The plan's own spelling, or all names with or without a prefix: without
  // one, a name may be that of another tensor.
  for (const std::string &name : names)
    look(name);
  if (!found)
    for (const std::string &name : names)
      look(name.substr(planPrefix.size()));
  if (!found)
    for (const std::string &name : names)
      look(prefix + name);
  return found;
}

static bool isFloat(DType type) {
  return type == DType::F16 || type == DType::BF16 || type == DType::F32 ||
         type == DType::F64;
}

bool Weights::Match::isRounded() const {
  bool isHalf = value->type == planfile::DType::F16 ||
                value->type == planfile::DType::BF16;
  bool isWidened = wanted == planfile::DType::F64 ||
                   (wanted == planfile::DType::F32 && isHalf);
  return value->type != wanted && !isWidened;
}

std::string Weights::describeRounding(const std::vector<Match> &matches) const {
  std::vector<std::string> names;
  const Match *first = nullptr;
  for (const Match &match : matches)
    if (match.isRounded()) {
      first = first ? first : &match;
      names.push_back(match.name);
    }
  if (names.empty())
    return {};
  auto spell = [](planfile::DType type) {
    return std::string(archive::getMLIRName(static_cast<DType>(type)));
  };
  return path + ": rounded from " + spell(first->value->type) + " to " +
         spell(first->wanted) + ", as the plan stores them: " + listSome(names);
}

std::string
Weights::describeUnused(const std::vector<std::string> &unused) const {
  if (unused.empty())
    return {};
  return path + ": " + std::to_string(unused.size()) +
         " tensors are not of the plan: " + listAll(unused);
}

void Weights::check(std::string_view name, const Value &value,
                    planfile::DType wanted,
                    const flatbuffers::Vector<std::int64_t> &sizes) const {
  DType expected = DType(wanted), found = DType(value.type);
  if (!std::ranges::equal(value.sizes, sizes) ||
      (found != expected && !(isFloat(found) && isFloat(expected))))
    throw Error(path + ": " + std::string(name) + ": expected " +
                spellTensor(sizes, expected) + ", found " +
                spellTensor(value.sizes, found));
}

bool Weights::isFromModule() const {
  const auto *files = std::get_if<std::vector<archive::Safetensors>>(&file);
  if (!files)
    return false;
  const archive::SafetensorsMetadata &texts = files->front().metadata();
  auto found = texts.find("init");
  return found != texts.end() && found->second == "from-module";
}

std::vector<Weights::Match>
Weights::match(const planfile::PlanFile &plan,
               std::vector<std::string> *missingParameters,
               std::vector<std::string> *unused) const {
  std::vector<std::string> allNames;
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      allNames.emplace_back(plan.string(parameter->name()));
      if (parameter->aliases())
        for (std::uint32_t alias : *parameter->aliases())
          allNames.emplace_back(plan.string(alias));
    }
  std::string planPrefix = findPrefix(allNames);

  std::vector<Match> matches;
  std::vector<std::string> missing;
  Names used;
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      std::vector<std::string> names = {
          std::string(plan.string(parameter->name()))};
      if (parameter->aliases())
        for (std::uint32_t alias : *parameter->aliases())
          names.emplace_back(plan.string(alias));
      const Entry *found = find(names, planPrefix, unit->storage(),
                                plan.shape(parameter->sizes()), used);
      if (found)
        matches.push_back(
            {names[0], found->first, false, &found->second, unit->storage()});
      else
        (missingParameters ? *missingParameters : missing).push_back(names[0]);
    }
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    std::string name(plan.string(buffer->name()));
    if (buffer->role() != planfile::BufferRole::ModelBuffer || name.empty())
      continue;
    bool hasPrefix = name.starts_with(planPrefix);
    const Entry *found =
        find({name}, hasPrefix ? planPrefix : "", buffer->dtype(),
             plan.shape(buffer->sizes()), used);
    if (found)
      matches.push_back(
          {name, found->first, true, &found->second, buffer->dtype()});
    else if (!buffer->bytes())
      missing.push_back(name);
  }
  if (!missing.empty())
    throw Error(path + ": expected a value for each of " +
                std::to_string(matches.size() + missing.size()) +
                " parameters and buffers, found none for " +
                std::to_string(missing.size()) + ": " + listAll(missing));
  if (unused && std::holds_alternative<std::vector<archive::Safetensors>>(file))
    for (const auto &[name, value] : values)
      if (!used.contains(&value))
        unused->push_back(name);
  return matches;
}

/// Of a parameter, what the session's ranks hold, once where several hold it.
static void loadParts(const Weights::Match &match, Session &session) {
  const TensorName tensor{TensorName::Kind::Parameter, match.name};
  std::set<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>
      done;
  for (unsigned rank = session.ranks().first; rank != session.ranks().end();
       ++rank)
    for (const Box &box : session.heldBoxes(tensor, rank))
      if (done.emplace(box.offsets, box.sizes).second)
        forEachPart(box,
                    maxPartBytes / planfile::getItemSize(match.value->type),
                    [&](const Box &part) {
                      session.setBox(tensor, part, readBox(*match.value, part));
                    });
}

void Weights::load(const std::vector<Match> &matches, Session &session) const {
  for (const Match &match : matches)
    if (match.isBuffer)
      session.setBuffer(match.name, read(*match.value));
    else if (std::holds_alternative<Value::Slice>(match.value->place))
      loadParts(match, session);
    else
      session.setParameter(match.name, read(*match.value));
}
