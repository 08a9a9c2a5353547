//===- InitialValues.cpp - Parameters without a file ----------------------===//

#include "fsdp/Runtime/Checkpoints/InitialValues.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <xxhash.h>

#include <charconv>
#include <cmath>

using namespace fsdp;

InitialValues InitialValues::parse(std::string_view text) {
  constexpr std::string_view normal = "normal:";
  if (text == "zeros")
    return InitialValues(0);
  double deviation = -1;
  if (text.starts_with(normal)) {
    const char *begin = text.data() + normal.size(),
               *end = text.data() + text.size();
    auto [last, error] = std::from_chars(begin, end, deviation);
    if (error != std::errc() || last != end)
      deviation = -1;
  }
  if (!(deviation >= 0) || std::isinf(deviation))
    throw Error("expected from-module, zeros, or normal:STD with a standard "
                "deviation of at least 0, found " +
                std::string(text));
  return InitialValues(deviation);
}

/// Elements [first, first + values.size()) of a tensor in row-major order.
static void draw(std::uint64_t key, std::uint64_t first, double deviation,
                 std::span<float> values) {
  // Each number is made of a counter of its own.
  constexpr std::uint32_t rounds = 10;
  at::Philox4_32 engine(key, /*subsequence=*/0, /*offset=*/first);
  for (float &value : values)
    value = static_cast<float>(deviation * engine.randn(rounds));
}

void InitialValues::set(Session &session, const std::string &parameter,
                        std::uint64_t seed) const {
  const TensorName tensor = TensorName::parameter(parameter);
  std::uint64_t key =
      XXH3_64bits_withSeed(parameter.data(), parameter.size(), seed);
  std::vector<std::int64_t> sizes = session.sizes(tensor);
  for (unsigned rank = session.ranks().first; rank != session.ranks().end();
       ++rank)
    for (const Box &box : session.heldBoxes(tensor, rank)) {
      std::size_t rows = 1, columns = box.sizes.empty() ? 1 : box.sizes.back();
      for (std::size_t axis = 0; axis + 1 < box.sizes.size(); ++axis)
        rows *= static_cast<std::size_t>(box.sizes[axis]);
      std::vector<float> values(rows * columns);
      for (std::size_t row = 0; deviation != 0 && row != rows; ++row) {
        std::uint64_t first = 0, scale = 1;
        std::size_t rest = row;
        for (std::size_t axis = sizes.size(); axis-- != 0;) {
          bool isLast = axis + 1 == sizes.size();
          auto extent = static_cast<std::size_t>(box.sizes[axis]);
          first += scale * (static_cast<std::uint64_t>(box.offsets[axis]) +
                            (isLast ? 0 : rest % extent));
          rest /= isLast ? 1 : extent;
          scale *= static_cast<std::uint64_t>(sizes[axis]);
        }
        draw(key, first, deviation,
             std::span(values).subspan(row * columns, columns));
      }
      session.writeBox(
          tensor, box,
          {planfile::DType::F32, box.sizes, std::as_bytes(std::span(values))});
    }
}
