//===- SessionTensors.cpp - Tensors into a session, and out of it ---------===//
#include "../Device/RankScope.h"
#include "../Support/DTypes.h"
#include "SessionImpl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

using namespace fsdp;
using planfile::BufferRole;
using Kind = TensorName::Kind;

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

at::Tensor fsdp::borrow(const TensorView &view) {
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

const Session::Impl::RankData &Session::Impl::local(unsigned rank) const {
  if (!here.contains(rank))
    throw Error("expected one of the ranks of this process, " +
                std::to_string(here.first) + " to " +
                std::to_string(here.end() - 1) + ", found " +
                std::to_string(rank));
  return ranks[rank - here.first];
}

const Session::Impl::Place &Session::Impl::find(std::string_view name) const {
  auto place = places.find(name);
  if (place == places.end())
    throw Error("the plan has no parameter " + std::string(name));
  return place->second;
}

std::uint32_t Session::Impl::findModelBuffer(std::string_view name) const {
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.role() == BufferRole::ModelBuffer && buffer.root() == i &&
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
                          const at::Tensor &source) {
  Memory &memory = *data.rank.memory;
  if (source.sizes() != memory.sizes(buffer))
    throw Error("the plan has sizes " + toText(memory.sizes(buffer)) +
                ", given " + toText(source.sizes()));
  if (!data.rank.device->runsAhead() || !memory.isContiguous(buffer))
    return onRank(data, [&] { memory.tensor(buffer).copy_(source); });
  checkFailure();
  RankScope scope(data.rank.device.get());
  if (!source.is_cpu()) {
    memory.tensor(buffer).copy_(source);
    return;
  }
  at::Tensor dense = source.resolve_conj().resolve_neg().contiguous();
  data.rank.device->upload(
      memory.data(buffer),
      {static_cast<const std::byte *>(dense.const_data_ptr()), dense.nbytes()});
}

HostTensor Session::Impl::read(const RankData &data, std::uint32_t buffer) {
  HostTensor host;
  onRank(data, [&] {
    Memory &memory = *data.rank.memory;
    host = toHost(memory.tensor(buffer), memory.type(buffer));
  });
  return host;
}

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

static at::IntArrayRef toArray(std::span<const std::int64_t> values) {
  return {values.data(), values.size()};
}

namespace {
/// A tensor of these sizes as it lies in memory without gaps.
struct Storage {
  Storage(const std::vector<std::int64_t> &given,
          std::vector<std::int64_t> axes)
      : order(std::move(axes)), places(given.size()) {
    for (std::size_t i = 0; i != given.size(); ++i) {
      sizes.push_back(given[static_cast<std::size_t>(order[i])]);
      places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    }
  }
  std::vector<std::int64_t> order;  ///< Axes, the slowest first.
  std::vector<std::int64_t> sizes;  ///< Of these.
  std::vector<std::int64_t> places; ///< Of each axis among these.
};
} // namespace

Session::Impl::Location Session::Impl::locate(const TensorName &tensor) const {
  Location location;
  location.name = tensor.name;
  if (tensor.kind == Kind::Buffer) {
    location.buffer = findModelBuffer(tensor.name);
    location.sizes = shape(plan, plan.buffers()->Get(location.buffer)->sizes());
    return location;
  }
  const Place &place = find(tensor.name);
  const planfile::Unit &unit = *plan.units()->Get(place.unit);
  location.place = &place;
  location.sizes = shape(plan, place.parameter->sizes());
  if (tensor.kind == Kind::Parameter)
    location.buffer = unit.shard();
  else if (tensor.kind == Kind::OptimizerState)
    location.buffer = findState(place.unit, tensor.state);
  else if (place.parameter->trainable())
    location.buffer = unit.gradient();
  if (location.buffer == none)
    throw Error("parameter " + location.name + " has no gradient");
  return location;
}

std::vector<Session::Impl::HeldBox>
Session::Impl::held(const RankData &data, const Location &location) const {
  Memory &memory = *data.rank.memory;
  std::size_t axes = location.sizes.size();
  if (!location.place)
    return {{{std::vector<std::int64_t>(axes), location.sizes},
             memory.tensor(location.buffer)}};
  const auto &[unit, parameter] = *location.place;
  Storage storage(location.sizes, storageOrder(plan, *parameter));
  auto numel =
      static_cast<std::uint64_t>(c10::multiply_integers(storage.sizes));
  ShardPart part = intersect(*plan.units()->Get(unit), data.rank.shards[unit],
                             parameter->offset(), parameter->offset() + numel);
  std::vector<HeldBox> result;
  std::uint64_t at = part.inShard;
  auto begin = static_cast<std::int64_t>(part.inRange);
  for (Box &box : archive::cut(location.sizes, storage.order, begin,
                               begin + static_cast<std::int64_t>(part.count))) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t axis : storage.order)
      sizes.push_back(box.sizes[static_cast<std::size_t>(axis)]);
    std::uint64_t count = box.numel();
    result.push_back(
        {std::move(box), memory.slice(location.buffer, at, at + count)
                             .view(sizes)
                             .permute(storage.places)});
    at += count;
  }
  return result;
}

/// The part of `tensor`, which is box `box` of a whole, that lies in `other`;
/// undefined if nothing does.
static at::Tensor narrow(at::Tensor tensor, const Box &box, const Box &other) {
  for (std::size_t axis = 0; axis != box.sizes.size(); ++axis) {
    std::int64_t begin = std::max(box.offsets[axis], other.offsets[axis]);
    std::int64_t end = std::min(box.offsets[axis] + box.sizes[axis],
                                other.offsets[axis] + other.sizes[axis]);
    if (begin >= end)
      return {};
    tensor = tensor.narrow(static_cast<std::int64_t>(axis),
                           begin - box.offsets[axis], end - begin);
  }
  return tensor;
}

void Session::Impl::writeBox(const TensorName &tensor, const Box &box,
                             const TensorView &value) {
  Location location = locate(tensor);
  bool isInside = box.offsets.size() == location.sizes.size() &&
                  box.sizes.size() == location.sizes.size();
  for (std::size_t axis = 0; isInside && axis != box.sizes.size(); ++axis)
    isInside = box.offsets[axis] >= 0 && box.sizes[axis] >= 0 &&
               box.offsets[axis] <= location.sizes[axis] &&
               box.sizes[axis] <= location.sizes[axis] - box.offsets[axis];
  if (!isInside)
    throw Error(location.name + ": expected a box of a tensor of " +
                toText(location.sizes) + ", found one of " + toText(box.sizes) +
                " at " + toText(box.offsets));
  if (!std::ranges::equal(box.sizes, value.sizes))
    throw Error(location.name + ": expected values for a box of " +
                toText(box.sizes) + ", given " + toText(toArray(value.sizes)));
  at::Tensor source = borrow(value);
  for (const RankData &data : ranks)
    onRank(data, [&] {
      for (const HeldBox &mine : held(data, location))
        if (at::Tensor target = narrow(mine.values, mine.box, box);
            target.defined())
          target.copy_(narrow(source, box, mine.box));
    });
  if (tensor.kind == Kind::Buffer)
    buffersChanged = true;
}

HostTensor Session::Impl::whole(const TensorName &tensor, bool toFirst) {
  Location location = locate(tensor);
  planfile::DType type = ranks[0].rank.memory->type(location.buffer);
  bool takes = !toFirst || isFirst();
  if (!location.place)
    return takes ? read(ranks[0], location.buffer)
                 : HostTensor{type, location.sizes, {}};
  // In storage order, the parts of the shards follow one another.
  const planfile::Parameter &parameter = *location.place->parameter;
  const planfile::Unit &unit = *plan.units()->Get(location.place->unit);
  Storage storage(location.sizes, storageOrder(plan, parameter));
  std::uint64_t item = itemSize(type), begin = parameter.offset();
  std::uint64_t numel = Box::whole(location.sizes).numel();
  at::Tensor flat;
  std::byte *bytes = nullptr;
  if (takes) {
    flat = at::empty(storage.sizes, at::dtype(scalarType(type)));
    bytes = static_cast<std::byte *>(flat.data_ptr());
  }
  auto partOf = [&](unsigned rank) {
    return intersect(unit, shardIndex(plan, unit, rank), begin, begin + numel);
  };
  std::uint64_t shardBytes = unit.numel() / unit.shards() * item;
  // Replicas may differ, in what is ignored: the first one is read.
  std::vector<bool> isRead(worldSize()), isKnown(unit.shards());
  for (unsigned rank = 0; rank != worldSize(); ++rank) {
    std::size_t shard = shardIndex(plan, unit, rank);
    isRead[rank] = !isKnown[shard];
    isKnown[shard] = true;
  }
  exchange(
      "reading " + location.name,
      std::min<std::uint64_t>(numel * item, shardBytes),
      [&](const RankData &data) {
        ShardPart part = partOf(data.rank.rank);
        return Piece(data.rank.memory->data(location.buffer) +
                         part.inShard * item,
                     part.count * item);
      },
      [&](unsigned rank, std::uint64_t offset, Piece piece) {
        ShardPart part = partOf(rank);
        std::uint64_t size = part.count * item;
        if (isRead[rank] && offset < size)
          std::memcpy(bytes + part.inRange * item + offset, piece.data(),
                      std::min<std::uint64_t>(size - offset, piece.size()));
      },
      toFirst);
  return takes ? toHost(flat.permute(storage.places), type)
               : HostTensor{type, location.sizes, {}};
}

HostTensor Session::read(const TensorName &tensor) const {
  return impl->whole(tensor);
}

HostTensor Session::gather(const TensorName &tensor) const {
  return impl->whole(tensor, /*toFirst=*/true);
}

std::vector<std::int64_t> Session::sizes(const TensorName &tensor) const {
  return impl->locate(tensor).sizes;
}

std::vector<BoxedTensor> Session::boxes(const TensorName &tensor,
                                        unsigned rank) const {
  const Impl::RankData &data = impl->local(rank);
  Impl::Location location = impl->locate(tensor);
  std::vector<BoxedTensor> result;
  impl->onRank(data, [&] {
    for (Impl::HeldBox &part : impl->held(data, location))
      result.push_back(
          {std::move(part.box),
           toHost(part.values, data.rank.memory->type(location.buffer))});
  });
  return result;
}

std::vector<Box> Session::heldBoxes(const TensorName &tensor,
                                    unsigned rank) const {
  const Impl::RankData &data = impl->local(rank);
  Impl::Location location = impl->locate(tensor);
  std::vector<Box> result;
  impl->onRank(data, [&] {
    for (Impl::HeldBox &part : impl->held(data, location))
      result.push_back(std::move(part.box));
  });
  return result;
}

std::vector<BoxView> Session::views(const TensorName &tensor, unsigned rank) {
  const Impl::RankData &data = impl->local(rank);
  Impl::Location location = impl->locate(tensor);
  if (!location.place)
    throw Error(location.name +
                ": expected a parameter, its gradient or a state, found a "
                "model buffer; write it as a whole");
  std::vector<BoxView> result;
  impl->onRank(data, [&] {
    planfile::DType type = data.rank.memory->type(location.buffer);
    for (Impl::HeldBox &part : impl->held(data, location)) {
      result.push_back({std::move(part.box), type,
                        static_cast<std::byte *>(part.values.data_ptr()),
                        part.values.strides().vec(), part.values.device()});
    }
  });
  return result;
}

void Session::Impl::forEachHeld(
    const TensorName &tensor, unsigned rank, std::size_t bytes,
    const std::function<void(at::Tensor &, std::size_t)> &function) {
  const RankData &data = local(rank);
  Location location = locate(tensor);
  onRank(data, [&] {
    std::vector<HeldBox> boxes = held(data, location);
    std::size_t size = 0;
    for (const HeldBox &each : boxes)
      size += each.values.nbytes();
    if (size != bytes)
      throw Error(location.name + ": rank " + std::to_string(rank) + " holds " +
                  std::to_string(size) + " bytes, given " +
                  std::to_string(bytes));
    std::size_t at = 0;
    for (HeldBox &each : boxes) {
      function(each.values, at);
      at += each.values.nbytes();
    }
  });
}

void Session::readHeld(const TensorName &tensor, unsigned rank,
                       std::span<std::byte> to) const {
  impl->forEachHeld(tensor, rank, to.size(),
                    [&](at::Tensor &values, std::size_t at) {
                      at::from_blob(to.data() + at, values.sizes(),
                                    at::dtype(values.scalar_type()))
                          .copy_(values);
                    });
}

void Session::pin(std::span<std::byte> memory) {
  const Impl::RankData &data = impl->local(ranks().first);
  impl->onRank(data, [&] { data.rank.device->pin(memory); });
}

void Session::writeHeld(const TensorName &tensor, unsigned rank,
                        std::span<const std::byte> from) {
  impl->forEachHeld(
      tensor, rank, from.size(), [&](at::Tensor &values, std::size_t at) {
        values.copy_(at::from_blob(const_cast<std::byte *>(from.data()) + at,
                                   values.sizes(),
                                   at::dtype(values.scalar_type())));
      });
  if (tensor.kind == Kind::Buffer)
    impl->buffersChanged = true;
}

void Session::writeBox(const TensorName &tensor, const Box &box,
                       const TensorView &value) {
  impl->writeBox(tensor, box, value);
}

void Session::write(const TensorName &tensor, const TensorView &value) {
  std::vector<std::int64_t> sizes = impl->locate(tensor).sizes;
  if (!std::ranges::equal(sizes, value.sizes))
    throw Error(std::string(tensor.name) + ": the plan has sizes " +
                toText(sizes) + ", given " + toText(toArray(value.sizes)));
  impl->writeBox(tensor, Box::whole(sizes), value);
}

std::vector<TensorName> Session::tensors(TensorName::Kind kind) const {
  const planfile::Plan &plan = impl->plan;
  if (kind == Kind::Buffer) {
    std::set<std::string_view> names;
    for (const planfile::Buffer *buffer : *plan.buffers())
      if (buffer->role() == BufferRole::ModelBuffer && buffer->name() != none &&
          !(buffer->bytes() && buffer->bytes()->size()))
        names.insert(stringOf(plan, buffer->name()));
    std::vector<TensorName> all;
    for (std::string_view name : names)
      all.push_back(TensorName::buffer(name));
    return all;
  }
  std::vector<std::vector<std::string_view>> states(plan.units()->size());
  for (const planfile::Buffer *buffer : *plan.buffers())
    if (buffer->role() == BufferRole::OptimizerState)
      states[buffer->owner()].push_back(stringOf(plan, buffer->name()));
  std::vector<TensorName> all;
  for (std::uint32_t u = 0; u != plan.units()->size(); ++u)
    for (const planfile::Parameter *parameter :
         *plan.units()->Get(u)->parameters()) {
      std::string_view name = stringOf(plan, parameter->name());
      if (kind == Kind::Parameter)
        all.push_back(TensorName::parameter(name));
      else if (!parameter->trainable())
        continue;
      else if (kind == Kind::OptimizerState)
        for (std::string_view state : states[u])
          all.push_back(TensorName::optimizerState(name, state));
      else if (plan.units()->Get(u)->gradient() != none)
        all.push_back(TensorName::gradient(name));
    }
  return all;
}
