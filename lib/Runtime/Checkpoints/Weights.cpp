//===- Weights.cpp - Parameters and buffers out of a file -----------------===//

#include "fsdp/Runtime/Checkpoints/Weights.h"

#include "../Support/Text.h"
#include "States.h"
#include "SuggestNames.h"
#include "fsdp/Runtime/Checkpoints/NameRegex.h"

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

/// The elements of a box, one after the other.
static HostTensor readBox(const Weights::Value &value, const Box &box) {
  const auto &pieces = *std::get<const archive::TensorPieces *>(value.place);
  HostTensor tensor{value.type, box.sizes, {}};
  tensor.bytes.resize(box.numel() * planfile::getItemSize(value.type));
  if (auto error = archive::readBox(
          pieces, box, reinterpret_cast<char *>(tensor.bytes.data())))
    throw Error(*error);
  return tensor;
}

// What is read is bounded by the plan, whose sizes it has: elements of a small
// archive may overlap, and be many.
HostTensor Weights::read(const Value &value) const {
  std::size_t itemSize = planfile::getItemSize(value.type), numel = 1;
  for (std::int64_t size : value.sizes)
    numel *= static_cast<std::size_t>(size);
  HostTensor tensor{value.type, value.sizes, {}};
  if (std::holds_alternative<const archive::TensorPieces *>(value.place))
    return readBox(value, Box::whole(value.sizes));
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

/// Whether two tensors of the same sizes have the same bytes.
bool Weights::areEqual(const Value &left, const Value &right) const {
  if (left.type != right.type)
    return false;
  if (std::holds_alternative<const archive::Payload *>(left.place))
    return read(left).bytes == read(right).bytes;
  for (const Box &part :
       archive::split(Box::whole(left.sizes),
                      maxPartBytes / planfile::getItemSize(left.type)))
    if (readBox(left, part).bytes != readBox(right, part).bytes)
      return false;
  return true;
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

void Weights::addTensors(const archive::TensorFiles &files) {
  for (const auto &[name, pieces] : files.tensors()) {
    Value value{planfile::DType(pieces.dtype), pieces.shape, &pieces};
    (name.starts_with(archive::Checkpoint::statePrefix) ? states
                                                        : values)[name] = value;
  }
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

void Weights::findPrefix() {
  std::vector<std::string> names;
  for (auto &[name, value] : values)
    names.push_back(name);
  prefix = ::findPrefix(names);
}

Weights Weights::open(const std::string &path,
                      const std::vector<std::string> &renames) {
  bool isArchive = archive::PT2Archive::isArchive(path);
  Weights weights(path, isArchive
                            ? File(take(archive::PT2Archive::open(path)))
                            : File(take(archive::TensorFiles::open(path))));
  if (isArchive)
    weights.addArchive(std::get<archive::PT2Archive>(weights.file));
  else
    weights.addTensors(std::get<archive::TensorFiles>(weights.file));
  weights.rename(renames);
  weights.findPrefix();
  return weights;
}

Weights Weights::of(std::string path, archive::TensorFiles files) {
  Weights weights(std::move(path), std::move(files));
  weights.addTensors(std::get<archive::TensorFiles>(weights.file));
  weights.findPrefix();
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
  const auto *files = std::get_if<archive::TensorFiles>(&file);
  if (!files || files->files().empty())
    return false;
  const archive::SafetensorsMetadata &texts = files->files()[0].metadata();
  auto found = texts.find("init");
  return found != texts.end() && found->second == "from-module";
}

void Weights::rejectMissing(const std::vector<NamedTensor> &missing,
                            const std::vector<Match> &matches,
                            const Names &used) const {
  std::vector<std::string> names, usedNames;
  for (const NamedTensor &each : missing)
    names.push_back(each.name);
  std::vector<NamedTensor> unused;
  for (const auto &[name, value] : values)
    if (used.contains(&value))
      usedNames.push_back(name);
    else
      unused.push_back({name, spellTensor(value.sizes, DType(value.type))});
  throw Error(path + ": expected a value for each of " +
              std::to_string(matches.size() + missing.size()) +
              " parameters and buffers, found none for " +
              std::to_string(missing.size()) + ": " + listAll(names) +
              suggestNames(missing, unused, usedNames));
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
  std::string planPrefix = ::findPrefix(allNames);

  std::vector<Match> matches;
  std::vector<NamedTensor> missing;
  Names used;
  auto addMissing = [&](const std::string &name, planfile::DType type,
                        const auto &sizes) {
    missing.push_back({name, spellTensor(sizes, DType(type))});
  };
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
      else if (missingParameters)
        missingParameters->push_back(names[0]);
      else
        addMissing(names[0], unit->storage(), plan.shape(parameter->sizes()));
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
      addMissing(name, buffer->dtype(), plan.shape(buffer->sizes()));
  }
  if (!missing.empty())
    rejectMissing(missing, matches, used);
  if (unused && std::holds_alternative<archive::TensorFiles>(file))
    for (const auto &[name, value] : values)
      if (!used.contains(&value))
        unused->push_back(name);
  return matches;
}

/// Of a tensor, what the session's ranks hold, once where several hold it.
static void loadParts(const TensorName &tensor, const Weights::Value &value,
                      Session &session) {
  std::set<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>
      done;
  for (unsigned rank = session.ranks().first; rank != session.ranks().end();
       ++rank)
    for (const Box &box : session.heldBoxes(tensor, rank))
      if (done.emplace(box.offsets, box.sizes).second)
        for (const Box &part : archive::split(
                 box, maxPartBytes / planfile::getItemSize(value.type)))
          session.writeBox(tensor, part, readBox(value, part));
}

void Weights::load(const std::vector<Match> &matches, Session &session) const {
  for (const Match &match : matches)
    if (match.isBuffer)
      session.write(TensorName::buffer(match.name), read(*match.value));
    else if (std::holds_alternative<const archive::TensorPieces *>(
                 match.value->place))
      loadParts(TensorName::parameter(match.name), *match.value, session);
    else
      session.write(TensorName::parameter(match.name), read(*match.value));
}

void Weights::loadStates(const planfile::PlanFile &plan,
                         const std::vector<Match> &matches,
                         Session &session) const {
  std::map<std::string_view, const Match *> found;
  for (const Match &match : matches)
    found[match.name] = &match;
  std::vector<std::string> missing;
  forEachState(plan.plan(), [&](std::uint32_t,
                                const planfile::Parameter &parameter,
                                const planfile::Buffer &buffer) {
    std::string_view name = plan.string(parameter.name());
    std::string_view state = plan.string(buffer.name());
    auto match = found.find(name);
    if (match == found.end())
      return;
    std::string key = spellState(match->second->source, state);
    auto it = states.find(key);
    if (it == states.end()) {
      missing.push_back(std::move(key));
      return;
    }
    check(it->first, it->second, buffer.dtype(), plan.shape(parameter.sizes()));
    loadParts(TensorName::optimizerState(name, state), it->second, session);
  });
  if (!missing.empty())
    throw Error(path +
                ": expected the optimizer states of all parameters, "
                "found none for " +
                std::to_string(missing.size()) + ": " + listAll(missing));
}
