//===- SessionChecks.cpp - What all sessions of a run find together -------===//
#include "../Support/Text.h"
#include "SessionImpl.h"
#include "fsdp/Archive/BlockSums.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;

//===----------------------------------------------------------------------===//
// Digests
//===----------------------------------------------------------------------===//

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
      Location location = locate(TensorName::parameter(name));
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

//===----------------------------------------------------------------------===//
// Padding
//===----------------------------------------------------------------------===//

/// What no parameter covers: offset and number of elements, in order.
static std::vector<std::pair<std::uint64_t, std::uint64_t>>
paddingOf(const planfile::Plan &plan, const planfile::Unit &unit) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> covered, padding;
  for (const planfile::Parameter *parameter : *unit.parameters()) {
    std::uint64_t numel = 1;
    if (parameter->sizes() != none)
      for (std::int64_t size :
           *plan.shapes()->Get(parameter->sizes())->values())
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
