//===- Weights.cpp - Parameters and buffers out of a file -----------------===//

#include "fsdp/Runtime/Weights.h"

#include "Files.h"
#include "Text.h"

#include <algorithm>
#include <cstring>
#include <set>

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
  if (const auto *info =
          std::get_if<const archive::TensorInfo *>(&value.place)) {
    tensor.bytes.resize((*info)->bytes);
    readBytes(std::get<archive::Safetensors>(file), **info, 0, tensor.bytes);
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
                           &tensor};
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

Weights Weights::open(const std::string &path) {
  bool isArchive = archive::PT2Archive::isArchive(path);
  Weights weights(path, isArchive
                            ? File(take(archive::PT2Archive::open(path)))
                            : File(take(archive::Safetensors::open(path))));
  if (isArchive)
    weights.addArchive(std::get<archive::PT2Archive>(weights.file));
  else
    weights.addSafetensors(std::get<archive::Safetensors>(weights.file));
  std::vector<std::string> names;
  for (auto &[name, value] : weights.values)
    names.push_back(name);
  weights.prefix = findPrefix(names);
  return weights;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

const Weights::Value *
Weights::find(const std::vector<std::string> &names,
              std::string_view planPrefix, planfile::DType wanted,
              const flatbuffers::Vector<std::int64_t> &sizes) const {
  const Value *found = nullptr;
  const std::string *foundName = nullptr;
  auto look = [&](const std::string &spelling) {
    auto it = values.find(spelling);
    if (it == values.end() || &it->second == found)
      return;
    const Value &value = it->second;
    check(names[0], value, wanted, sizes);
    if (found &&
        (value.type != found->type || read(value).bytes != read(*found).bytes))
      throw Error(path + ": expected " + *foundName + " and " + it->first +
                  ", which are one parameter, to be equal, found different "
                  "values");
    found = &value;
    foundName = &it->first;
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
  const auto *safetensors = std::get_if<archive::Safetensors>(&file);
  if (!safetensors)
    return false;
  auto found = safetensors->metadata().find("init");
  return found != safetensors->metadata().end() &&
         found->second == "from-module";
}

std::vector<Weights::Match>
Weights::match(const planfile::PlanFile &plan,
               std::vector<std::string> *missingParameters) const {
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
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      std::vector<std::string> names = {
          std::string(plan.string(parameter->name()))};
      if (parameter->aliases())
        for (std::uint32_t alias : *parameter->aliases())
          names.emplace_back(plan.string(alias));
      const Value *value = find(names, planPrefix, unit->storage(),
                                plan.shape(parameter->sizes()));
      if (value)
        matches.push_back({names[0], false, value, unit->storage()});
      else
        (missingParameters ? *missingParameters : missing).push_back(names[0]);
    }
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    std::string name(plan.string(buffer->name()));
    if (buffer->role() != planfile::BufferRole::ModelBuffer || name.empty())
      continue;
    bool hasPrefix = name.starts_with(planPrefix);
    const Value *value = find({name}, hasPrefix ? planPrefix : "",
                              buffer->dtype(), plan.shape(buffer->sizes()));
    if (value)
      matches.push_back({name, true, value, buffer->dtype()});
    else if (!buffer->bytes())
      missing.push_back(name);
  }
  if (!missing.empty())
    throw Error(path + ": expected a value for each of " +
                std::to_string(matches.size() + missing.size()) +
                " parameters and buffers, found none for " +
                std::to_string(missing.size()) + ": " + listSome(missing));
  return matches;
}

void Weights::load(const std::vector<Match> &matches, Session &session) const {
  for (const Match &match : matches)
    if (match.isBuffer)
      session.setBuffer(match.name, read(*match.value));
    else
      session.setParameter(match.name, read(*match.value));
}
