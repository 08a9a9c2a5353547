//===- SessionTensors.cpp - Tensors into a session, and out of it ---------===//
#include "../Device/RankScope.h"
#include "../Support/DTypes.h"
#include "../Support/Text.h"
#include "SessionImpl.h"
#include "fsdp/Archive/BlockSums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <functional>

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

std::uint32_t Session::Impl::findProgram(std::string_view name) const {
  for (std::uint32_t p = 0; p != plan.programs()->size(); ++p)
    if (stringOf(plan, plan.programs()->Get(p)->name()) == name)
      return p;
  throw Error("the plan has no program " + std::string(name));
}

std::uint32_t Session::Impl::findNamed(std::string_view program,
                                       BufferRole role,
                                       std::uint32_t index) const {
  auto found = named.find({findProgram(program), role, index});
  if (found != named.end())
    return found->second;
  std::string what = "loss";
  if (role != BufferRole::Loss)
    what = (role == BufferRole::Input ? "input " : "output ") +
           std::to_string(index);
  throw Error("program " + std::string(program) + " has no " + what);
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
                          const TensorView &value) {
  at::Tensor source = borrow(value);
  Memory &memory = *data.rank.memory;
  if (source.sizes() != memory.sizes(buffer))
    throw Error("the plan has sizes " + toText(memory.sizes(buffer)) +
                ", given " + toText(source.sizes()));
  if (!data.rank.device->runsAhead() || !memory.isContiguous(buffer))
    return onRank(data, [&] { memory.tensor(buffer).copy_(source); });
  checkFailure();
  RankScope scope(data.rank.device.get());
  data.rank.device->upload(memory.data(buffer), value.bytes);
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
  if (tensor.kind == TensorName::Kind::Buffer) {
    location.buffer = findModelBuffer(tensor.name);
    location.sizes = shape(plan, plan.buffers()->Get(location.buffer)->sizes());
    return location;
  }
  const Place &place = find(tensor.name);
  const planfile::Unit &unit = *plan.units()->Get(place.unit);
  location.place = &place;
  location.sizes = shape(plan, place.parameter->sizes());
  if (tensor.kind == TensorName::Kind::Parameter)
    location.buffer = unit.shard();
  else if (tensor.kind == TensorName::Kind::OptimizerState)
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

void Session::Impl::setBox(const TensorName &tensor, const Box &box,
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
  if (tensor.kind == TensorName::Kind::Buffer)
    buffersChanged = true;
}

void Session::Impl::setWhole(const TensorName &tensor,
                             const TensorView &value) {
  std::vector<std::int64_t> sizes = locate(tensor).sizes;
  if (!std::ranges::equal(sizes, value.sizes))
    throw Error(std::string(tensor.name) + ": the plan has sizes " +
                toText(sizes) + ", given " + toText(toArray(value.sizes)));
  setBox(tensor, {std::vector<std::int64_t>(sizes.size()), sizes}, value);
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

HostTensor Session::gather(const TensorName &tensor) const {
  return impl->whole(tensor, /*toFirst=*/true);
}

/// All bits of some elements and where they are, as one number: that of two
/// parts is the sum of theirs. The elements are those from number `first` on.
template <typename Element>
static std::uint64_t digest(std::uint64_t seed, std::uint64_t first,
                            const std::byte *bytes, std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i != count; ++i) {
    Element element;
    std::memcpy(&element, bytes + i * sizeof element, sizeof element);
    // The finalizer of SplitMix64.
    std::uint64_t mixed = (element + seed) ^ ((first + i) * 0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    sum += mixed ^ (mixed >> 31);
  }
  return sum;
}

static std::uint64_t digest(std::size_t item, std::uint64_t seed,
                            std::uint64_t first, const std::byte *bytes,
                            std::uint64_t count) {
  switch (item) {
  case 1:
    return digest<std::uint8_t>(seed, first, bytes, count);
  case 2:
    return digest<std::uint16_t>(seed, first, bytes, count);
  case 4:
    return digest<std::uint32_t>(seed, first, bytes, count);
  case 16: // A complex number is two.
    return digest<std::uint64_t>(seed, 2 * first, bytes, 2 * count);
  default:
    return digest<std::uint64_t>(seed, first, bytes, count);
  }
}

/// The same of a box of a tensor, whose elements are numbered row by row.
static std::uint64_t digest(std::uint64_t seed,
                            const std::vector<std::int64_t> &sizes,
                            const Box &box, const at::Tensor &values) {
  std::uint64_t row = sizes.empty() ? 1 : box.sizes.back(), sum = 0;
  std::size_t item = values.element_size();
  const auto *bytes = static_cast<const std::byte *>(values.const_data_ptr());
  std::vector<std::int64_t> index = box.offsets;
  for (std::uint64_t left = box.numel() / row; left != 0; --left) {
    std::uint64_t first = 0;
    for (std::size_t axis = 0; axis != sizes.size(); ++axis)
      first = first * static_cast<std::uint64_t>(sizes[axis]) +
              static_cast<std::uint64_t>(index[axis]);
    sum += digest(item, seed, first, bytes, row);
    bytes += row * item;
    for (std::size_t axis = sizes.empty() ? 0 : sizes.size() - 1; axis-- > 0;) {
      if (++index[axis] < box.offsets[axis] + box.sizes[axis])
        break;
      index[axis] = box.offsets[axis];
    }
  }
  return sum;
}

std::uint64_t Session::Impl::digestParameters(const RankData &data) const {
  std::uint64_t sum = 0;
  for (std::uint32_t u = 0; u != plan.units()->size(); ++u) {
    const planfile::Unit &unit = *plan.units()->Get(u);
    // Of replicas, the first one counts.
    if (firstHolders(plan, unit)[data.rank.shards[u]] != data.rank.rank)
      continue;
    for (const planfile::Parameter *parameter : *unit.parameters()) {
      std::string_view name = stringOf(plan, parameter->name());
      Location location = locate({TensorName::Kind::Parameter, name});
      for (const HeldBox &part : held(data, location))
        sum += digest(archive::checksum(name), location.sizes, part.box,
                      part.values.cpu().contiguous());
    }
  }
  return sum;
}

std::uint64_t Session::digestParameters() const {
  std::vector<std::uint64_t> own(impl->ranks.size());
  for (std::size_t r = 0; r != own.size(); ++r)
    impl->onRank(impl->ranks[r],
                 [&] { own[r] = impl->digestParameters(impl->ranks[r]); });
  std::uint64_t sum = 0;
  impl->exchange(
      "adding digests", sizeof sum,
      [&](const Impl::RankData &data) {
        return std::as_bytes(
            std::span(&own[data.rank.rank - impl->here.first], 1));
      },
      [&](unsigned, std::uint64_t, Impl::Piece shown) {
        std::uint64_t other;
        std::memcpy(&other, shown.data(), sizeof other);
        sum += other;
      });
  return sum;
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
  if (tensor.kind == TensorName::Kind::Buffer)
    impl->buffersChanged = true;
}

void Session::setBox(const TensorName &tensor, const Box &box,
                     const TensorView &value) {
  impl->setBox(tensor, box, value);
}

//===----------------------------------------------------------------------===//
// Padding
//===----------------------------------------------------------------------===//

/// What no parameter covers: offset and number of elements, in order.
static std::vector<std::pair<std::uint64_t, std::uint64_t>>
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

Session::Impl::DirtyPad
Session::Impl::findDirtyPad(const RankData &data, std::uint32_t unitIndex,
                            std::uint32_t buffer) const {
  const planfile::Unit &unit = *plan.units()->Get(unitIndex);
  for (auto [offset, numel] : paddingOf(plan, unit)) {
    ShardPart part =
        intersect(unit, data.rank.shards[unitIndex], offset, offset + numel);
    if (part.count == 0)
      continue;
    at::Tensor padding =
        data.rank.memory->slice(buffer, part.inShard, part.inShard + part.count)
            .to(at::kDouble)
            .cpu();
    const double *values =
        static_cast<const double *>(padding.const_data_ptr());
    const double *dirty = std::find_if(values, values + part.count,
                                       [](double value) { return value != 0; });
    if (dirty != values + part.count)
      return {offset + part.inRange +
                  static_cast<std::uint64_t>(dirty - values),
              *dirty};
  }
  return {};
}

std::vector<std::string> Session::findDirtyPadding(bool withGradients) const {
  struct Padding {
    std::uint32_t unit, buffer;
    const char *what;
  };
  std::vector<Padding> all;
  for (std::uint32_t u = 0; u != impl->plan.units()->size(); ++u) {
    const planfile::Unit &unit = *impl->plan.units()->Get(u);
    all.push_back({u, unit.shard(), "flat parameter"});
    if (withGradients && unit.gradient() != none)
      all.push_back({u, unit.gradient(), "reduced gradient"});
  }
  // Of each, what the first rank has that has something.
  std::vector<Impl::DirtyPad> own(impl->ranks.size() * all.size());
  for (std::size_t r = 0; r != impl->ranks.size(); ++r)
    impl->onRank(impl->ranks[r], [&] {
      for (std::size_t i = 0; i != all.size(); ++i)
        own[r * all.size() + i] =
            impl->findDirtyPad(impl->ranks[r], all[i].unit, all[i].buffer);
    });
  std::size_t bytes = all.size() * sizeof(Impl::DirtyPad);
  std::vector<Impl::DirtyPad> found(impl->worldSize() * all.size());
  impl->exchange(
      "reading padding", bytes,
      [&](const Impl::RankData &data) {
        std::size_t r = data.rank.rank - impl->here.first;
        return std::as_bytes(
            std::span(own).subspan(r * all.size(), all.size()));
      },
      [&](unsigned rank, std::uint64_t offset, Impl::Piece piece) {
        std::memcpy(reinterpret_cast<std::byte *>(found.data()) + rank * bytes +
                        offset,
                    piece.data(), piece.size());
      });
  std::vector<std::string> problems;
  for (std::size_t i = 0; i != all.size(); ++i)
    for (std::size_t rank = 0; rank != impl->worldSize(); ++rank) {
      auto [element, value] = found[rank * all.size() + i];
      if (element == UINT64_MAX)
        continue;
      const planfile::Unit &unit = *impl->plan.units()->Get(all[i].unit);
      problems.push_back(
          "unit " + std::string(stringOf(impl->plan, unit.name())) +
          ": expected 0 in element " + std::to_string(element) + " of its " +
          all[i].what + ", which is padding, found " + spellNumber(value) +
          " on rank " + std::to_string(rank));
      break;
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

using Kind = TensorName::Kind;

void Session::setParameter(std::string_view name, const TensorView &value) {
  impl->setWhole({Kind::Parameter, name}, value);
}

HostTensor Session::parameter(std::string_view name) const {
  return impl->whole({Kind::Parameter, name});
}

HostTensor Session::gradient(std::string_view name) const {
  return impl->whole({Kind::Gradient, name});
}

void Session::setOptimizerState(std::string_view name, std::string_view state,
                                const TensorView &value) {
  impl->setWhole({Kind::OptimizerState, name, state}, value);
}

HostTensor Session::optimizerState(std::string_view name,
                                   std::string_view state) const {
  return impl->whole({Kind::OptimizerState, name, state});
}

void Session::setBuffer(std::string_view name, const TensorView &value) {
  impl->setWhole({Kind::Buffer, name}, value);
}

HostTensor Session::buffer(std::string_view name) const {
  return impl->whole({Kind::Buffer, name});
}

unsigned Session::inputCount(std::string_view program) const {
  std::uint32_t owner = impl->findProgram(program);
  unsigned count = 0;
  for (const planfile::Buffer *buffer : *impl->plan.buffers())
    if (buffer->role() == BufferRole::Input && buffer->owner() == owner &&
        buffer->index() != none)
      count = std::max(count, buffer->index() + 1);
  return count;
}

planfile::DType Session::inputType(unsigned index,
                                   std::string_view program) const {
  return impl->ranks[0].rank.memory->type(
      impl->findNamed(program, BufferRole::Input, index));
}

std::vector<std::int64_t> Session::inputSizes(unsigned index,
                                              std::string_view program) const {
  return impl->ranks[0]
      .rank.memory->sizes(impl->findNamed(program, BufferRole::Input, index))
      .vec();
}

void Session::setInput(unsigned rank, unsigned index, const TensorView &value,
                       std::string_view program) {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Input, index);
  planfile::DType type = impl->ranks[0].rank.memory->type(buffer);
  if (value.type != type)
    throw Error("input " + std::to_string(index) + " is " +
                EnumNameDType(type) + " in the plan, given " +
                EnumNameDType(value.type));
  impl->write(impl->local(rank), buffer, value);
}

double Session::loss(std::string_view program) const {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Loss, none);
  double value = 0;
  impl->onRank(impl->ranks[0], [&] {
    value = impl->ranks[0].rank.memory->tensor(buffer).item().toDouble();
  });
  return value;
}

HostTensor Session::output(unsigned rank, unsigned index,
                           std::string_view program) const {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Output, index);
  if (impl->rendezvous.isAlone())
    return impl->read(impl->local(rank), buffer);
  std::vector<HostTensor> own;
  for (const Impl::RankData &data : impl->ranks)
    own.push_back(impl->read(data, buffer));
  HostTensor result = own.front();
  impl->exchange(
      "reading output " + std::to_string(index), result.bytes.size(),
      [&](const Impl::RankData &data) {
        return Impl::Piece(own[data.rank.rank - impl->here.first].bytes);
      },
      [&](unsigned from, std::uint64_t offset, Impl::Piece piece) {
        if (from == rank)
          std::memcpy(result.bytes.data() + offset, piece.data(), piece.size());
      });
  return result;
}

std::uint64_t Session::largest(std::uint64_t number) {
  std::uint64_t result = number;
  if (impl->rendezvous.isAlone())
    return result;
  impl->exchange(
      "agreeing", sizeof number,
      [&](const Impl::RankData &) {
        return std::as_bytes(std::span(&number, 1));
      },
      [&](unsigned, std::uint64_t, Impl::Piece shown) {
        std::uint64_t other;
        std::memcpy(&other, shown.data(), sizeof other);
        result = std::max(result, other);
      });
  return result;
}
