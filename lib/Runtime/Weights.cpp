//===- Weights.cpp - Parameters and buffers out of a file -----------------===//

#include "fsdp/Runtime/Weights.h"

#include "Text.h"

#include <algorithm>
#include <cstring>
#include <set>

using namespace fsdp;
using archive::DType;

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

/// The elements of a strided tensor in row-major order.
static std::string makeRowMajor(std::string_view bytes,
                                const std::vector<std::int64_t> &sizes,
                                const std::vector<std::int64_t> &strides,
                                std::size_t itemSize, std::int64_t numel) {
  std::string copy;
  copy.reserve(static_cast<std::size_t>(numel) * itemSize);
  std::vector<std::int64_t> index(sizes.size());
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i != numel; ++i) {
    copy.append(
        bytes.substr(static_cast<std::size_t>(offset) * itemSize, itemSize));
    for (std::size_t d = sizes.size(); d-- != 0;) {
      offset += strides[d];
      if (++index[d] != sizes[d])
        break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
  return copy;
}

static bool isRowMajor(const std::vector<std::int64_t> &sizes,
                       const std::vector<std::int64_t> &strides) {
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- != 0; stride *= sizes[d])
    if (sizes[d] > 1 && strides[d] != stride)
      return false;
  return true;
}

void Weights::readArchive(const archive::PT2Archive &archive) {
  for (const auto *table : {&archive.weights(), &archive.constants()})
    for (const archive::Payload &payload : *table) {
      std::int64_t numel = 1;
      for (std::int64_t size : payload.sizes)
        numel *= size;
      if (!payload.hasBytes() && numel != 0)
        continue; // an archive without weights
      std::size_t itemSize = getItemSize(payload.dtype);
      Value &value = values[payload.name];
      value.dtype = payload.dtype;
      value.sizes = payload.sizes;
      if (numel != 0) {
        std::string_view record = take(archive.readRecord(payload));
        record.remove_prefix(static_cast<std::size_t>(payload.storageOffset) *
                             itemSize);
        if (!isRowMajor(payload.sizes, payload.strides)) {
          value.copy = makeRowMajor(record, payload.sizes, payload.strides,
                                    itemSize, numel);
          record = value.copy;
        }
        value.bytes =
            record.substr(0, static_cast<std::size_t>(numel) * itemSize);
      }
    }
}

void Weights::readSafetensors(const archive::Safetensors &safetensors) {
  for (const archive::TensorRef &tensor : safetensors.tensors())
    values.emplace(tensor.name,
                   Value{tensor.dtype, tensor.shape, tensor.bytes, {}});
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
  bool isZip =
      take(archive::MappedFile::open(path)).bytes().substr(0, 2) == "PK";
  Weights weights(path, isZip ? File(take(archive::PT2Archive::open(path)))
                              : File(take(archive::Safetensors::open(path))));
  if (isZip)
    weights.readArchive(std::get<archive::PT2Archive>(weights.file));
  else
    weights.readSafetensors(std::get<archive::Safetensors>(weights.file));
  std::vector<std::string> names;
  for (auto &[name, value] : weights.values)
    names.push_back(name);
  weights.prefix = findPrefix(names);
  return weights;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

const Weights::Value *Weights::find(const std::vector<std::string> &names,
                                    std::string_view planPrefix) const {
  const Value *found = nullptr;
  const std::string *foundName = nullptr;
  for (const std::string &name : names)
    for (const std::string &spelling :
         {name, name.substr(planPrefix.size()), prefix + name}) {
      auto it = values.find(spelling);
      if (it == values.end() || &it->second == found)
        continue;
      const Value &value = it->second;
      if (found && (value.dtype != found->dtype ||
                    value.sizes != found->sizes || value.bytes != found->bytes))
        throw Error(path + ": expected " + *foundName + " and " + it->first +
                    ", which are one parameter, to be equal, found different "
                    "values");
      found = &value;
      foundName = &it->first;
    }
  return found;
}

static bool isFloat(DType type) {
  return type == DType::F16 || type == DType::BF16 || type == DType::F32 ||
         type == DType::F64;
}

bool Weights::Match::isRounded() const {
  bool isHalf =
      value.type == planfile::DType::F16 || value.type == planfile::DType::BF16;
  bool isWidened = wanted == planfile::DType::F64 ||
                   (wanted == planfile::DType::F32 && isHalf);
  return value.type != wanted && !isWidened;
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
  return path + ": rounded from " + spell(first->value.type) + " to " +
         spell(first->wanted) + ", as the plan stores them: " + listSome(names);
}

TensorView
Weights::check(std::string_view name, const Value &value, planfile::DType dtype,
               const flatbuffers::Vector<std::int64_t> &sizes) const {
  DType wanted = static_cast<DType>(dtype);
  if (!std::ranges::equal(value.sizes, sizes) ||
      (value.dtype != wanted && !(isFloat(value.dtype) && isFloat(wanted))))
    throw Error(path + ": " + std::string(name) + ": expected " +
                spellTensor(sizes, wanted) + ", found " +
                spellTensor(value.sizes, value.dtype));
  return {static_cast<planfile::DType>(value.dtype), value.sizes,
          std::as_bytes(std::span(value.bytes))};
}

std::vector<Weights::Match>
Weights::match(const planfile::PlanFile &plan) const {
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
      const Value *value = find(names, planPrefix);
      if (!value)
        missing.push_back(names[0]);
      else
        matches.push_back({names[0], false,
                           check(names[0], *value, unit->storage(),
                                 plan.shape(parameter->sizes())),
                           unit->storage()});
    }
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    std::string name(plan.string(buffer->name()));
    if (buffer->role() != planfile::BufferRole::ModelBuffer || name.empty())
      continue;
    bool hasPrefix = name.starts_with(planPrefix);
    const Value *value = find({name}, hasPrefix ? planPrefix : "");
    if (value)
      matches.push_back(
          {name, true,
           check(name, *value, buffer->dtype(), plan.shape(buffer->sizes())),
           buffer->dtype()});
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

void Weights::load(const planfile::PlanFile &plan, Session &session) const {
  for (const Match &match : this->match(plan))
    if (match.isBuffer)
      session.setBuffer(match.name, match.value);
    else
      session.setParameter(match.name, match.value);
}
