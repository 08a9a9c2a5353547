//===- SessionTensors.cpp - Tensors into a session, and out of it ---------===//
#include "DTypes.h"
#include "SessionImpl.h"
#include "Text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

using namespace fsdp;
using planfile::BufferRole;

static std::vector<std::int64_t> shape(const planfile::Plan &plan,
                                       std::uint32_t index) {
  if (index == none)
    return {};
  const auto *values = plan.shapes()->Get(index)->values();
  return {values->begin(), values->end()};
}

static std::string toText(at::IntArrayRef sizes) {
  std::string text;
  for (std::int64_t size : sizes)
    text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

/// A tensor over the caller's memory, which is only read.
static at::Tensor borrow(const TensorView &view) {
  at::Tensor tensor =
      at::from_blob(const_cast<std::byte *>(view.bytes.data()),
                    at::IntArrayRef(view.sizes.data(), view.sizes.size()),
                    at::dtype(scalarType(view.type)));
  if (tensor.nbytes() != view.bytes.size())
    throw Error("a tensor of " + toText(tensor.sizes()) + " has " +
                std::to_string(tensor.nbytes()) + " bytes, not " +
                std::to_string(view.bytes.size()));
  return tensor;
}

static HostTensor toHost(const at::Tensor &tensor, planfile::DType type) {
  at::Tensor dense = tensor.cpu().contiguous();
  HostTensor host{type, tensor.sizes().vec(), {}};
  host.bytes.resize(dense.nbytes());
  if (!host.bytes.empty())
    std::memcpy(host.bytes.data(), dense.const_data_ptr(), host.bytes.size());
  return host;
}

const Session::Impl::Place &Session::Impl::find(std::string_view name) const {
  auto place = places.find(name);
  if (place == places.end())
    throw Error("the plan has no parameter " + std::string(name));
  return place->second;
}

std::uint32_t Session::Impl::findNamed(BufferRole role,
                                       std::uint32_t index) const {
  auto found = named.find({role, index});
  if (found == named.end())
    throw Error(role == BufferRole::Loss
                    ? "the plan has no loss"
                    : "the plan has no " +
                          std::string(role == BufferRole::Input ? "input "
                                                                : "output ") +
                          std::to_string(index));
  return found->second;
}

std::uint32_t Session::Impl::findModelBuffer(std::string_view name) const {
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.role() == BufferRole::ModelBuffer &&
        (buffer.root() == i || buffer.root() == none) &&
        stringOf(plan, buffer.name()) == name)
      return i;
  }
  throw Error("the plan has no model buffer " + std::string(name));
}

std::uint32_t Session::Impl::findState(std::uint32_t unit,
                                       std::string_view state) const {
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.role() == BufferRole::OptimizerState && buffer.owner() == unit &&
        stringOf(plan, buffer.name()) == state)
      return i;
  }
  throw Error("unit " +
              std::string(stringOf(plan, plan.units()->Get(unit)->name())) +
              " has no optimizer state " + std::string(state));
}

void Session::Impl::write(const RankData &data, std::uint32_t buffer,
                          const TensorView &value) const {
  onRank(data, [&] {
    at::Tensor source = borrow(value);
    const at::Tensor &target = data.rank.memory->tensor(buffer);
    if (source.sizes() != target.sizes())
      throw Error("the plan has sizes " + toText(target.sizes()) + ", given " +
                  toText(source.sizes()));
    target.copy_(source);
  });
}

HostTensor Session::Impl::read(const RankData &data,
                               std::uint32_t buffer) const {
  HostTensor host;
  onRank(data, [&] {
    Memory &memory = *data.rank.memory;
    host = toHost(memory.tensor(buffer), memory.type(buffer));
  });
  return host;
}

namespace {

/// What a range of a flat parameter and one shard of it have in common, in
/// elements.
struct Overlap {
  std::uint64_t inShard, inRange, count;
};

Overlap overlap(const planfile::Unit &unit, std::uint64_t offset,
                std::uint64_t numel, unsigned shard) {
  std::uint64_t length = unit.numel() / unit.shards(), low = shard * length;
  std::uint64_t begin = std::max(offset, low);
  std::uint64_t end = std::min(offset + numel, low + length);
  if (begin >= end)
    return {0, 0, 0};
  return {begin - low, begin - offset, end - begin};
}

/// What no parameter covers: offset and number of elements, in order.
std::vector<std::pair<std::uint64_t, std::uint64_t>>
paddingOf(const planfile::Plan &plan, const planfile::Unit &unit) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> covered, padding;
  for (const planfile::Parameter *parameter : *unit.parameters()) {
    std::uint64_t numel = 1;
    for (std::int64_t size : shape(plan, parameter->sizes()))
      numel *= static_cast<std::uint64_t>(size);
    covered.emplace_back(parameter->offset(), numel);
  }
  std::ranges::sort(covered);
  covered.emplace_back(unit.numel(), 0);
  std::uint64_t end = 0;
  for (auto [offset, numel] : covered) {
    if (offset > end)
      padding.emplace_back(end, offset - end);
    end = offset + numel;
  }
  return padding;
}

/// A parameter as it lies in the flat parameter, and the same as one row.
struct Stored {
  at::Tensor tensor, row;
};

Stored makeStored(const planfile::Plan &plan,
                  const planfile::Parameter &parameter, c10::ScalarType type) {
  at::Tensor tensor =
      at::empty_strided(shape(plan, parameter.sizes()),
                        shape(plan, parameter.strides()), at::dtype(type));
  return {tensor, tensor.as_strided({tensor.numel()}, {1})};
}

} // namespace

void Session::Impl::scatter(std::string_view name, const Place &place,
                            std::uint32_t buffer, const TensorView &value) {
  const planfile::Unit &unit = *plan.units()->Get(place.unit);
  std::vector<std::int64_t> sizes = shape(plan, place.parameter->sizes());
  if (!std::ranges::equal(sizes, value.sizes))
    throw Error(std::string(name) + ": the plan has sizes " + toText(sizes) +
                ", given " + toText({value.sizes.data(), value.sizes.size()}));
  at::Tensor source = borrow(value);
  Stored stored = makeStored(plan, *place.parameter, source.scalar_type());
  stored.tensor.copy_(source);
  for (const RankData &data : ranks)
    onRank(data, [&] {
      Overlap part = overlap(unit, place.parameter->offset(),
                             static_cast<std::uint64_t>(stored.row.numel()),
                             data.rank.shards[place.unit]);
      if (part.count)
        data.rank.memory->slice(buffer, part.inShard, part.inShard + part.count)
            .copy_(stored.row.narrow(0, static_cast<std::int64_t>(part.inRange),
                                     static_cast<std::int64_t>(part.count)));
    });
}

HostTensor Session::Impl::gather(const Place &place,
                                 std::uint32_t buffer) const {
  const planfile::Unit &unit = *plan.units()->Get(place.unit);
  planfile::DType type = ranks[0].rank.memory->type(buffer);
  Stored stored = makeStored(plan, *place.parameter, scalarType(type));
  std::vector<bool> seen(unit.shards());
  for (const RankData &data : ranks) {
    unsigned shard = data.rank.shards[place.unit];
    if (seen[shard])
      continue; // a replica
    seen[shard] = true;
    onRank(data, [&] {
      Overlap part =
          overlap(unit, place.parameter->offset(),
                  static_cast<std::uint64_t>(stored.row.numel()), shard);
      if (part.count)
        stored.row
            .narrow(0, static_cast<std::int64_t>(part.inRange),
                    static_cast<std::int64_t>(part.count))
            .copy_(data.rank.memory->slice(buffer, part.inShard,
                                           part.inShard + part.count));
    });
  }
  return toHost(stored.tensor, type);
}

std::optional<std::string>
Session::Impl::findDirtyPad(std::uint32_t unitIndex, std::uint32_t buffer,
                            std::string_view what) const {
  const planfile::Unit &unit = *plan.units()->Get(unitIndex);
  std::optional<std::string> problem;
  for (auto [offset, numel] : paddingOf(plan, unit))
    for (const RankData &data : ranks) {
      Overlap part = overlap(unit, offset, numel, data.rank.shards[unitIndex]);
      if (part.count == 0)
        continue;
      onRank(data, [&] {
        at::Tensor padding =
            data.rank.memory
                ->slice(buffer, part.inShard, part.inShard + part.count)
                .to(at::kDouble)
                .cpu();
        const double *values =
            static_cast<const double *>(padding.const_data_ptr());
        const double *dirty =
            std::find_if(values, values + part.count,
                         [](double value) { return value != 0; });
        if (dirty == values + part.count)
          return;
        std::uint64_t element =
            offset + part.inRange + static_cast<std::uint64_t>(dirty - values);
        problem = "unit " + std::string(stringOf(plan, unit.name())) +
                  ": expected 0 in element " + std::to_string(element) +
                  " of its " + std::string(what) +
                  ", which is padding, found " + spellNumber(*dirty) +
                  " on rank " + std::to_string(data.rank.rank);
      });
      if (problem)
        return problem;
    }
  return problem;
}

std::vector<std::string> Session::findDirtyPadding(bool withGradients) const {
  std::vector<std::string> problems;
  for (std::uint32_t u = 0; u != impl->plan.units()->size(); ++u) {
    const planfile::Unit &unit = *impl->plan.units()->Get(u);
    if (auto problem = impl->findDirtyPad(u, unit.shard(), "flat parameter"))
      problems.push_back(std::move(*problem));
    if (!withGradients || unit.gradient() == none)
      continue;
    if (auto problem =
            impl->findDirtyPad(u, unit.gradient(), "reduced gradient"))
      problems.push_back(std::move(*problem));
  }
  return problems;
}

std::vector<std::string> Session::parameterNames() const {
  std::vector<std::string> names;
  for (const planfile::Unit *unit : *impl->plan.units())
    for (const planfile::Parameter *parameter : *unit->parameters())
      names.emplace_back(stringOf(impl->plan, parameter->name()));
  return names;
}

std::vector<std::string> Session::gradientNames() const {
  std::vector<std::string> names;
  for (const planfile::Unit *unit : *impl->plan.units())
    for (const planfile::Parameter *parameter : *unit->parameters())
      if (parameter->trainable() && unit->gradient() != none)
        names.emplace_back(stringOf(impl->plan, parameter->name()));
  return names;
}

std::vector<std::string> Session::bufferNames() const {
  std::vector<std::string> names;
  for (const planfile::Buffer *buffer : *impl->plan.buffers())
    if (buffer->role() == BufferRole::ModelBuffer && buffer->name() != none &&
        !(buffer->bytes() && buffer->bytes()->size()))
      names.emplace_back(stringOf(impl->plan, buffer->name()));
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void Session::setParameter(std::string_view name, const TensorView &value) {
  const Impl::Place &place = impl->find(name);
  impl->scatter(name, place, impl->plan.units()->Get(place.unit)->shard(),
                value);
}

HostTensor Session::parameter(std::string_view name) const {
  const Impl::Place &place = impl->find(name);
  return impl->gather(place, impl->plan.units()->Get(place.unit)->shard());
}

HostTensor Session::gradient(std::string_view name) const {
  const Impl::Place &place = impl->find(name);
  std::uint32_t buffer = impl->plan.units()->Get(place.unit)->gradient();
  if (buffer == none || !place.parameter->trainable())
    throw Error("parameter " + std::string(name) + " has no gradient");
  return impl->gather(place, buffer);
}

void Session::setOptimizerState(std::string_view name, std::string_view state,
                                const TensorView &value) {
  const Impl::Place &place = impl->find(name);
  impl->scatter(name, place, impl->findState(place.unit, state), value);
}

HostTensor Session::optimizerState(std::string_view name,
                                   std::string_view state) const {
  const Impl::Place &place = impl->find(name);
  return impl->gather(place, impl->findState(place.unit, state));
}

void Session::setBuffer(std::string_view name, const TensorView &value) {
  std::uint32_t buffer = impl->findModelBuffer(name);
  for (const Impl::RankData &data : impl->ranks)
    impl->write(data, buffer, value);
  impl->buffersChanged = true;
}

HostTensor Session::buffer(std::string_view name) const {
  return impl->read(impl->ranks[0], impl->findModelBuffer(name));
}

unsigned Session::inputCount() const {
  unsigned count = 0;
  for (const planfile::Buffer *buffer : *impl->plan.buffers())
    if (buffer->role() == BufferRole::Input && buffer->index() != none)
      count = std::max(count, buffer->index() + 1);
  return count;
}

planfile::DType Session::inputType(unsigned index) const {
  return impl->ranks[0].rank.memory->type(
      impl->findNamed(BufferRole::Input, index));
}

std::vector<std::int64_t> Session::inputSizes(unsigned index) const {
  return impl->ranks[0]
      .rank.memory->sizes(impl->findNamed(BufferRole::Input, index))
      .vec();
}

void Session::setInput(unsigned rank, unsigned index, const TensorView &value) {
  std::uint32_t buffer = impl->findNamed(BufferRole::Input, index);
  if (value.type != inputType(index))
    throw Error("input " + std::to_string(index) + " is " +
                EnumNameDType(inputType(index)) + " in the plan, given " +
                EnumNameDType(value.type));
  impl->write(impl->ranks.at(rank), buffer, value);
}

double Session::loss() const {
  std::uint32_t buffer = impl->findNamed(BufferRole::Loss, none);
  double value = 0;
  impl->onRank(impl->ranks[0], [&] {
    value = impl->ranks[0].rank.memory->tensor(buffer).item().toDouble();
  });
  return value;
}

HostTensor Session::output(unsigned rank, unsigned index) const {
  return impl->read(impl->ranks.at(rank),
                    impl->findNamed(BufferRole::Output, index));
}
