//===- PlanCheck.cpp - What a plan must mean ------------------------------===//

#include "PlanCheck.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace fsdp::planfile {

/// Of a buffer: more than an operator could look at in an hour.
static constexpr uint64_t maxElements = uint64_t(1) << 40;

std::string Place::text() const {
  std::string result = parent ? parent->text() + "." : "";
  result.append(list).append("[").append(std::to_string(index)).append("]");
  if (!name.empty())
    result.append(" (").append(name).append(")");
  return result;
}

std::string_view spell(DType dtype) {
  return archive::getMLIRName(static_cast<archive::DType>(dtype));
}

bool isOfProgram(BufferRole role) {
  return role == BufferRole::Input || role == BufferRole::Loss ||
         role == BufferRole::Output;
}

bool isPersistent(BufferRole role) {
  return role == BufferRole::Shard || role == BufferRole::OptimizerState ||
         role == BufferRole::ModelBuffer || role == BufferRole::Constant ||
         role == BufferRole::Result || role == BufferRole::Hyper ||
         role == BufferRole::Accumulator || role == BufferRole::Unsharded;
}

bool PlanChecker::reject(std::string where, std::string_view expected,
                         std::string_view found) {
  message = std::move(where);
  message.append(": expected ").append(expected);
  message.append(", found ").append(found);
  return false;
}

bool PlanChecker::spend(const Place &place, size_t count) {
  if (count <= budget) {
    budget -= count;
    return true;
  }
  return reject(place.text(), "vectors that are used once",
                "more elements than the file has bytes");
}

bool PlanChecker::checkIndex(const Place &place, const char *what,
                             uint32_t index, size_t count) {
  if (index < count)
    return true;
  return reject(place.text(),
                std::string(what) + " index below " + std::to_string(count),
                index == none ? "none" : std::to_string(index));
}

std::string_view PlanChecker::nameOf(uint32_t index) const {
  if (index >= plan.strings()->size())
    return {};
  return plan.strings()->Get(index)->string_view();
}

//===----------------------------------------------------------------------===//
// The plan as a whole, and its small tables
//===----------------------------------------------------------------------===//

bool PlanChecker::checkHeader() {
  if (plan.version() != planVersion)
    return reject("version", std::to_string(planVersion),
                  std::to_string(plan.version()));
  std::string_view device = plan.device()->string_view();
  if (device != "cpu" && device != "cuda")
    return reject("device", "cpu or cuda", device);

  // Sets of axes are bits of one word.
  if (plan.mesh()->size() > 63)
    return reject("mesh", "at most 63 axes",
                  std::to_string(plan.mesh()->size()));
  for (uint32_t i = 0; i != plan.mesh()->size(); ++i) {
    const MeshAxis &axis = *plan.mesh()->Get(i);
    Place place("mesh", i, nameOf(axis.name()));
    if (!checkString(place, axis.name()))
      return false;
    if (axis.size() == 0)
      return reject(place.text(), "a size of at least 1", "0");
    numRanks *= axis.size();
    if (numRanks > std::numeric_limits<int32_t>::max())
      return reject("mesh", "less than 2^31 ranks", "more");
  }

  constexpr uint64_t largest = std::numeric_limits<int64_t>::max();
  if (plan.device_bytes() > largest || plan.host_bytes() > largest ||
      plan.pinned_bytes() > largest)
    return reject("memory", "arenas of less than 2^63 bytes", "more");
  if (plan.persistent_bytes() > plan.device_bytes())
    return reject("memory",
                  "a persistent region inside the device arena of " +
                      std::to_string(plan.device_bytes()) + " bytes",
                  std::to_string(plan.persistent_bytes()) + " bytes");
  return true;
}

bool PlanChecker::checkShapes() {
  for (uint32_t i = 0; i != plan.shapes()->size(); ++i) {
    Place place("shapes", i);
    const auto &values = *plan.shapes()->Get(i)->values();
    if (!checkVector(place, values))
      return false;
    for (int64_t value : values)
      if (value < 0)
        return reject(place.text(), "sizes and strides of at least 0",
                      std::to_string(value));
  }
  return true;
}

bool PlanChecker::checkConstants() {
  for (uint32_t i = 0; i != plan.constants()->size(); ++i) {
    Place place("constants", i);
    const Constant &constant = *plan.constants()->Get(i);
    if (constant.value_type() == Value::NONE ||
        constant.value_type() > Value::MAX)
      return reject(place.text(), "a known kind of value",
                    std::to_string(int(constant.value_type())));
    if (const Ints *ints = constant.value_as_Ints();
        ints && !checkVector(place, *ints->values()))
      return false;
    if (const Floats *floats = constant.value_as_Floats();
        floats && !checkVector(place, *floats->values()))
      return false;
    if (const Type *type = constant.value_as_Type();
        type && !checkEnum(place, "an element type", type->value()))
      return false;
    if (const MemoryFormat *format = constant.value_as_MemoryFormat();
        format && format->value() > 3)
      return reject(place.text(), "a memory format below 4",
                    std::to_string(format->value()));
    const Refs *refs = constant.value_as_Refs();
    if (!refs)
      continue;
    if (!checkVector(place, *refs->values()))
      return false;
    for (int32_t ref : *refs->values())
      if (ref != -1 && !checkIndex(place, "buffer", static_cast<uint32_t>(ref),
                                   plan.buffers()->size()))
        return false;
  }
  return true;
}

bool PlanChecker::checkCommunicators() {
  std::set<std::pair<std::vector<uint32_t>, Stream>> known;
  for (uint32_t i = 0; i != plan.communicators()->size(); ++i) {
    const Communicator &communicator = *plan.communicators()->Get(i);
    Place place("communicators", i, nameOf(communicator.name()));
    if (!checkString(place, communicator.name()) ||
        !checkEnum(place, "a stream", communicator.stream()))
      return false;
    uint64_t size = 1;
    int64_t last = -1;
    for (uint32_t axis : *communicator.axes()) {
      if (!checkIndex(place, "mesh axis", axis, plan.mesh()->size()))
        return false;
      if (axis <= last)
        return reject(place.text(), "ascending axes",
                      std::to_string(axis) + " after " + std::to_string(last));
      last = axis;
      size *= plan.mesh()->Get(axis)->size();
    }
    groupSizes.push_back(size);
    const auto &axes = *communicator.axes();
    if (!known.insert({{axes.begin(), axes.end()}, communicator.stream()})
             .second)
      return reject(place.text(),
                    "other axes or another stream than earlier ones have",
                    EnumNameStream(communicator.stream()));
  }
  return true;
}

bool PlanChecker::checkReuse() {
  if (!plan.reuse())
    return true;
  for (uint32_t i = 0; i != plan.reuse()->size(); ++i) {
    const Reuse &reuse = *plan.reuse()->Get(i);
    Place place("reuse", i);
    for (uint32_t index : {reuse.before(), reuse.after()}) {
      if (!checkIndex(place, "buffer", index, plan.buffers()->size()))
        return false;
      if (plan.buffers()->Get(index)->root() != index)
        return reject(place.text(), "buffers that own their bytes",
                      "the view " + describeBuffer(index));
    }
  }
  return true;
}

bool PlanChecker::checkDigests() {
  const auto *digests = plan.digest();
  size_t count = digests ? digests->size() : 0;
  std::vector<std::vector<std::string>> collectives = getCollectives(plan);
  if (count != groupSizes.size())
    return reject("digest",
                  "one entry for each of " + std::to_string(groupSizes.size()) +
                      " communicators",
                  std::to_string(count));
  for (uint32_t i = 0; i != count; ++i) {
    std::string expected = digestCollectives(collectives[i]);
    if (digests->Get(i)->string_view() != expected)
      return reject(Place("digest", i).text(), expected,
                    digests->Get(i)->string_view());
  }
  return true;
}

bool PlanChecker::checkMeanings(
    const Place *owner, const flatbuffers::Vector<const Meaning *> *meanings) {
  if (!meanings)
    return true;
  std::set<std::string_view> seen;
  for (uint32_t i = 0; i != meanings->size(); ++i) {
    Place place("meaning", i, {}, owner);
    if (i == 0 && reinterpret_cast<uintptr_t>(meanings->Data()) % 8 != 0)
      return reject(place.text(), "aligned elements", "misaligned ones");
    uint32_t what = meanings->Get(i)->what();
    if (!checkString(place, what))
      return false;
    if (!seen.insert(nameOf(what)).second)
      return reject(place.text(), "another meaning",
                    "a second meaning " + std::string(nameOf(what)));
  }
  return true;
}

bool PlanChecker::checkMeaning() {
  if (!checkMeanings(nullptr, plan.meaning()))
    return false;
  for (uint32_t i = 0; i != plan.programs()->size(); ++i) {
    const Program &program = *plan.programs()->Get(i);
    Place place("programs", i, nameOf(program.name()));
    uint32_t count = program.meaning() ? program.meaning()->size() : 0;
    const auto *texts = program.meaning_texts();
    if (!checkMeanings(&place, program.meaning()) || !spend(place, count))
      return false;
    if (texts && texts->size() != count)
      return reject(place.text(), std::to_string(count) + " meaning texts",
                    std::to_string(texts->size()));
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

std::string PlanChecker::describeBuffer(uint32_t index) const {
  return Place("buffers", index, nameOf(plan.buffers()->Get(index)->name()))
      .text();
}

/// True if each stride leads past all that the smaller ones reach.
static bool isInjective(const flatbuffers::Vector<int64_t> &sizes,
                        const flatbuffers::Vector<int64_t> &strides) {
  std::vector<std::pair<uint64_t, uint64_t>> dimensions; // stride, size
  for (uint32_t i = 0; i != sizes.size(); ++i)
    if (sizes.Get(i) > 1)
      dimensions.emplace_back(strides.Get(i), sizes.Get(i));
  std::sort(dimensions.begin(), dimensions.end());
  uint64_t last = 0; // what the smaller strides reach
  for (auto [stride, size] : dimensions) {
    if (stride <= last)
      return false;
    last += stride * (size - 1);
  }
  return true;
}

/// Strides of single elements do not count.
static bool isRowMajor(const flatbuffers::Vector<int64_t> &sizes,
                       const flatbuffers::Vector<int64_t> &strides) {
  int64_t dense = 1;
  for (uint32_t i = sizes.size(); i-- != 0;) {
    if (sizes.Get(i) != 1 && strides.Get(i) != dense)
      return false;
    dense *= sizes.Get(i);
  }
  return true;
}

/// Finds the bytes of a buffer, counted from the start of its arena.
bool PlanChecker::checkWindow(uint32_t index) {
  const Buffer &buffer = *plan.buffers()->Get(index);
  Place place("buffers", index, nameOf(buffer.name()));
  if (!checkEnum(place, "a space", buffer.space()) ||
      !checkEnum(place, "an element type", buffer.dtype()) ||
      !checkEnum(place, "a role", buffer.role()) ||
      !checkIndex(place, "shape", buffer.sizes(), plan.shapes()->size()) ||
      !checkIndex(place, "shape", buffer.strides(), plan.shapes()->size()) ||
      (buffer.name() != none && !checkString(place, buffer.name())))
    return false;

  const auto &sizes = *plan.shapes()->Get(buffer.sizes())->values();
  const auto &strides = *plan.shapes()->Get(buffer.strides())->values();
  if (sizes.size() != strides.size())
    return reject(place.text(), std::to_string(sizes.size()) + " strides",
                  std::to_string(strides.size()));
  constexpr size_t mostDimensions = 64; // PyTorch runs no kernel with more
  if (sizes.size() > mostDimensions)
    return reject(place.text(),
                  "at most " + std::to_string(mostDimensions) + " dimensions",
                  std::to_string(sizes.size()));
  Window window;
  window.numel = 1;
  uint64_t last = 0; // the last element, counted in elements
  bool overflow = false, empty = false;
  for (uint32_t i = 0; i != sizes.size(); ++i) {
    uint64_t size = static_cast<uint64_t>(sizes.Get(i)), reach = 0;
    empty |= size == 0;
    // Whoever multiplies sizes may meet the 0 last.
    size = std::max<uint64_t>(size, 1);
    overflow |= __builtin_mul_overflow(window.numel, size, &window.numel);
    overflow |= __builtin_mul_overflow(
        size - 1, static_cast<uint64_t>(strides.Get(i)), &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  uint64_t itemSize = getItemSize(buffer.dtype()), bytes = 0, end = 0;
  overflow |= __builtin_add_overflow(last, 1, &bytes);
  overflow |= __builtin_mul_overflow(bytes, itemSize, &bytes);
  // Through strides of 0 a few bytes are any number of elements.
  if (!overflow && window.numel > maxElements)
    return reject(place.text(),
                  "at most " + std::to_string(maxElements) + " elements",
                  std::to_string(window.numel));
  if (empty)
    window.numel = bytes = 0;
  overflow |= __builtin_add_overflow(buffer.offset(), bytes, &end);

  uint64_t capacity = buffer.space() == Space::Device ? plan.device_bytes()
                      : buffer.space() == Space::Host ? plan.host_bytes()
                                                      : plan.pinned_bytes();
  if (overflow || end > capacity)
    return reject(place.text(),
                  "bytes inside the arena of " + std::to_string(capacity),
                  overflow ? "more than 2^63"
                           : "[" + std::to_string(buffer.offset()) + ", " +
                                 std::to_string(end) + ")");
  window.begin = buffer.offset();
  window.end = end;
  window.isInjective = empty || isInjective(sizes, strides);
  window.isDense = window.isInjective && bytes == window.numel * itemSize;
  window.isRowMajor = empty || isRowMajor(sizes, strides);

  bool ownsBytes = buffer.root() == index;
  uint64_t alignment = !ownsBytes ? itemSize
                       : buffer.space() == Space::Device &&
                               plan.device()->string_view() == "cuda"
                           ? 512
                           : 64;
  if (buffer.offset() % alignment != 0)
    return reject(place.text(),
                  "an offset that is a multiple of " +
                      std::to_string(alignment),
                  std::to_string(buffer.offset()));
  windows.push_back(window);
  return true;
}

bool PlanChecker::checkRoot(uint32_t index) {
  const Buffer &buffer = *plan.buffers()->Get(index);
  const Window &window = windows[index];
  Place place("buffers", index, nameOf(buffer.name()));
  if (!checkIndex(place, "buffer", buffer.root(), windows.size()))
    return false;

  if (buffer.root() != index) {
    const Buffer &root = *plan.buffers()->Get(buffer.root());
    const Window &outer = windows[buffer.root()];
    if (root.root() != buffer.root())
      return reject(place.text(), "a view of a buffer that owns its bytes",
                    "one of the view " + describeBuffer(buffer.root()));
    if (buffer.space() != root.space() || window.begin < outer.begin ||
        window.end > outer.end)
      return reject(place.text(),
                    "a view inside of " + describeBuffer(buffer.root()) +
                        " at [" + std::to_string(outer.begin) + ", " +
                        std::to_string(outer.end) + ")",
                    "[" + std::to_string(window.begin) + ", " +
                        std::to_string(window.end) + ")");
    if (isPersistent(buffer.role()) || buffer.bytes())
      return reject(place.text(), "a role that a view can have",
                    EnumNameBufferRole(buffer.role()));
    return true;
  }

  if (buffer.space() != Space::Device)
    return true;
  uint64_t border = plan.persistent_bytes();
  bool isInside = window.end <= border, isOutside = window.begin >= border;
  if ((!isInside && !isOutside) || (isPersistent(buffer.role()) && !isInside) ||
      (buffer.role() == BufferRole::Transient && !isOutside))
    return reject(place.text(),
                  std::string("bytes ") +
                      (isPersistent(buffer.role()) ? "inside" : "outside") +
                      " of the persistent region of " + std::to_string(border),
                  "[" + std::to_string(window.begin) + ", " +
                      std::to_string(window.end) + ")");
  return true;
}

bool PlanChecker::checkRole(uint32_t index) {
  const Buffer &buffer = *plan.buffers()->Get(index);
  const Window &window = windows[index];
  Place place("buffers", index, nameOf(buffer.name()));

  size_t embedded = buffer.bytes() ? buffer.bytes()->size() : 0;
  bool mayEmbed = buffer.role() == BufferRole::Constant ||
                  buffer.role() == BufferRole::ModelBuffer;
  bool mustEmbed =
      buffer.role() == BufferRole::Constant ||
      (mayEmbed && (buffer.bytes() || nameOf(buffer.name()).empty()));
  uint64_t bytes = mustEmbed ? window.end - window.begin : 0;
  if (embedded != bytes)
    return reject(place.text(), std::to_string(bytes) + " embedded bytes",
                  std::to_string(embedded));

  switch (buffer.role()) {
  case BufferRole::Shard:
  case BufferRole::Gradient: {
    if (!checkIndex(place, "unit", buffer.owner(), plan.units()->size()))
      return false;
    const Unit &unit = *plan.units()->Get(buffer.owner());
    bool isShard = buffer.role() == BufferRole::Shard;
    if ((isShard ? unit.shard() : unit.gradient()) != index)
      return reject(
          place.text(),
          std::string("to be the ") + (isShard ? "shard" : "gradient") +
              " of " +
              Place("units", buffer.owner(), nameOf(unit.name())).text(),
          "another");
    return true;
  }
  case BufferRole::OptimizerState: {
    if (!checkIndex(place, "unit", buffer.owner(), plan.units()->size()) ||
        !checkString(place, buffer.name()))
      return false;
    return checkPiece(place, buffer.owner(), index) &&
           checkUnique(place, "optimizer state",
                       std::to_string(buffer.owner()) + " " +
                           std::string(nameOf(buffer.name())));
  }
  case BufferRole::Accumulator: {
    if (!checkIndex(place, "unit", buffer.owner(), plan.units()->size()) ||
        !checkString(place, buffer.name()))
      return false;
    const Unit &unit = *plan.units()->Get(buffer.owner());
    bool isWhole = nameOf(buffer.name()) == unshardedGradient;
    bool isReduced = nameOf(buffer.name()) == shardedGradient;
    if (!isWhole && !isReduced && nameOf(buffer.name()) != partialGradient)
      return reject(place.text(),
                    "unsharded_gradient, partial_gradient or sharded_gradient",
                    nameOf(buffer.name()));
    DType dtype = isReduced ? unit.storage() : unit.reduce();
    if (buffer.dtype() != dtype ||
        (!isReduced && buffer.space() != Space::Device))
      return reject(place.text(),
                    std::string(spell(dtype)) +
                        (isReduced ? "" : " in Device memory"),
                    std::string(spell(buffer.dtype())) + " in " +
                        EnumNameSpace(buffer.space()) + " memory");
    if (isWhole && (window.numel != unit.numel() || !window.isRowMajor))
      return reject(place.text(),
                    "a dense buffer of " + std::to_string(unit.numel()) +
                        " elements",
                    std::to_string(window.numel));
    return (isWhole || checkPiece(place, buffer.owner(), index)) &&
           checkUnique(place, "accumulator", std::to_string(buffer.owner()));
  }
  case BufferRole::Unsharded: {
    if (!checkIndex(place, "unit", buffer.owner(), plan.units()->size()))
      return false;
    uint64_t numel = plan.units()->Get(buffer.owner())->numel();
    if (window.numel != numel || !window.isRowMajor ||
        !isFloat(buffer.dtype()) || buffer.space() != Space::Device)
      return reject(place.text(),
                    "a dense buffer of " + std::to_string(numel) +
                        " floats in Device memory",
                    describeBuffer(index));
    return checkUnique(place, "gathered parameter",
                       std::to_string(buffer.owner()));
  }
  case BufferRole::ModelBuffer:
    return nameOf(buffer.name()).empty() ||
           checkUnique(place, "name", nameOf(buffer.name()));
  case BufferRole::Input:
    return checkUnique(place, "input",
                       ofProgram(buffer, std::to_string(buffer.index()))) &&
           (nameOf(buffer.name()).empty() ||
            checkUnique(place, "input name",
                        ofProgram(buffer, nameOf(buffer.name()))));
  case BufferRole::Output:
    return checkUnique(place, "output",
                       ofProgram(buffer, std::to_string(buffer.index())));
  case BufferRole::Loss:
    if (window.numel != 1)
      return reject(place.text(), "a loss of one element",
                    std::to_string(window.numel));
    return checkUnique(place, "loss", ofProgram(buffer, ""));
  case BufferRole::Hyper:
    // The caller writes it there as so many numbers.
    if (buffer.space() != Space::Host || buffer.dtype() != DType::F64 ||
        window.numel != numHypers || !window.isRowMajor)
      return reject(place.text(),
                    std::to_string(numHypers) + " dense f64 on the host",
                    std::to_string(window.numel) + " " +
                        std::string(spell(buffer.dtype())) + " in " +
                        EnumNameSpace(buffer.space()) + " memory");
    if (std::string_view name = nameOf(buffer.name());
        !name.empty() && name != noDecay)
      return reject(
          place.text(),
          "a decay group without name or called " + std::string(noDecay), name);
    return checkIndex(place, "decay group", buffer.index(),
                      plan.buffers()->size()) &&
           checkUnique(place, "decay group", std::to_string(buffer.index()));
  case BufferRole::Transient:
  case BufferRole::Constant:
  case BufferRole::Result:
    return true;
  }
  return true;
}

/// What lives longer than one program shares its bytes with nothing.
bool PlanChecker::checkOverlaps() {
  struct Range {
    Space space;
    uint64_t begin, end;
    uint32_t index;
    bool isPersistent;
  };
  std::vector<Range> ranges;
  for (uint32_t i = 0; i != windows.size(); ++i) {
    const Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.root() != i || windows[i].begin == windows[i].end)
      continue;
    bool keeps = isPersistent(buffer.role()) ||
                 (buffer.space() == Space::Device &&
                  windows[i].begin < plan.persistent_bytes());
    ranges.push_back(
        {buffer.space(), windows[i].begin, windows[i].end, i, keeps});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) {
    return std::tie(a.space, a.begin, a.index) <
           std::tie(b.space, b.begin, b.index);
  });
  // Of all before the current one: who reaches farthest.
  const Range *farthest = nullptr, *farthestPersistent = nullptr;
  for (const Range &range : ranges) {
    const Range *other = range.isPersistent ? farthest : farthestPersistent;
    if (other && other->space == range.space && other->end > range.begin)
      return reject(describeBuffer(range.index), "bytes that nothing else uses",
                    "bytes of " + describeBuffer(other->index));
    auto extend = [&](const Range *&current) {
      if (!current || current->space != range.space || current->end < range.end)
        current = &range;
    };
    extend(farthest);
    if (range.isPersistent)
      extend(farthestPersistent);
  }
  return true;
}

std::string PlanChecker::ofProgram(const Buffer &buffer,
                                   std::string_view name) const {
  return std::string(name)
      .append(" of program ")
      .append(nameOf(plan.programs()->Get(buffer.owner())->name()));
}

bool PlanChecker::checkBuffers() {
  uint32_t count = plan.buffers()->size(),
           numPrograms = plan.programs()->size();
  std::map<uint32_t, uint64_t> numInputs; // by program
  for (uint32_t i = 0; i != count; ++i) {
    if (!checkWindow(i))
      return false;
    const Buffer &buffer = *plan.buffers()->Get(i);
    Place place("buffers", i, nameOf(buffer.name()));
    if (isOfProgram(buffer.role()) &&
        !checkIndex(place, "program", buffer.owner(), numPrograms))
      return false;
    if (buffer.role() == BufferRole::Input)
      ++numInputs[buffer.owner()];
  }
  for (uint32_t i = 0; i != count; ++i) {
    if (!checkRoot(i))
      return false;
    const Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.role() == BufferRole::Input &&
        !checkIndex(Place("buffers", i, nameOf(buffer.name())), "input",
                    buffer.index(), numInputs[buffer.owner()]))
      return false;
    if (buffer.role() == BufferRole::Input && buffer.index() == 0 &&
        plan.token_rows() != 0 && buffer.dtype() != DType::I32 &&
        buffer.dtype() != DType::I64)
      return reject(describeBuffer(i), "tokens of i32 or i64",
                    spell(buffer.dtype()));
  }
  if (plan.token_rows() != 0 && numInputs.empty())
    return reject("token_rows", "0 for a plan without inputs",
                  std::to_string(plan.token_rows()));
  return checkOverlaps();
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

bool PlanChecker::checkUnique(const Place &place, const char *what,
                              std::string_view name) {
  if (names.emplace(std::string(what) + " " + std::string(name)).second)
    return true;
  return reject(place.text(), std::string("another ") + what,
                std::string("a second ") + what + (name.empty() ? "" : " ") +
                    std::string(name));
}

bool PlanChecker::checkPiece(const Place &place, uint32_t unitIndex,
                             uint32_t index) {
  const Unit &unit = *plan.units()->Get(unitIndex);
  uint64_t expected = unit.numel() / unit.shards();
  const Window &window = windows[index];
  if (window.numel == expected && window.isDense)
    return true;
  return reject(place.text(),
                "a dense buffer of " + std::to_string(expected) + " elements",
                (window.isDense ? "" : "a sparse one of ") +
                    std::to_string(window.numel));
}

bool PlanChecker::checkParameter(const Place &place, const Unit &unit,
                                 const Parameter &parameter, uint64_t &end) {
  size_t shapes = plan.shapes()->size();
  if (!checkString(place, parameter.name()) ||
      !checkIndex(place, "shape", parameter.sizes(), shapes) ||
      !checkIndex(place, "shape", parameter.strides(), shapes) ||
      !checkUnique(place, "name", nameOf(parameter.name())))
    return false;
  if (const auto *aliases = parameter.aliases())
    for (uint32_t alias : *aliases)
      if (!checkString(place, alias) ||
          !checkUnique(place, "name", nameOf(alias)))
        return false;

  const auto &sizes = *plan.shapes()->Get(parameter.sizes())->values();
  const auto &strides = *plan.shapes()->Get(parameter.strides())->values();
  if (sizes.size() != strides.size())
    return reject(place.text(), std::to_string(sizes.size()) + " strides",
                  std::to_string(strides.size()));
  // Dense in some order of the dimensions: each stride is the number of
  // elements below it.
  std::vector<std::pair<uint64_t, uint64_t>> dimensions; // stride, size
  uint64_t numel = 1;
  bool empty = false, dense = true;
  for (uint32_t i = 0; i != sizes.size(); ++i) {
    empty |= sizes.Get(i) == 0;
    if (sizes.Get(i) > 1)
      dimensions.emplace_back(strides.Get(i), sizes.Get(i));
  }
  std::sort(dimensions.begin(), dimensions.end());
  if (empty)
    numel = 0;
  else
    for (auto [stride, size] : dimensions)
      dense = dense && stride == numel &&
              !__builtin_mul_overflow(numel, size, &numel);
  if (!dense)
    return reject(place.text(), "dense strides", "others");

  if (parameter.offset() < end || parameter.offset() > unit.numel() ||
      numel > unit.numel() - parameter.offset())
    return reject(place.text(),
                  std::to_string(numel) + " elements inside [" +
                      std::to_string(end) + ", " +
                      std::to_string(unit.numel()) + ")",
                  "them at " + std::to_string(parameter.offset()));
  end = parameter.offset() + numel;
  return true;
}

/// Each axis is there once, and there is a shard for each coordinate along
/// those over which the unit is sharded.
bool PlanChecker::checkAxes(const Place &place, const Unit &unit) {
  uint64_t seen = 0, shards = 1;
  for (const auto *axes : {unit.shard_axes(), unit.replicate_axes()})
    for (uint32_t i = 0; axes && i != axes->size(); ++i) {
      uint32_t axis = axes->Get(i);
      if (!checkIndex(place, "mesh axis", axis, plan.mesh()->size()))
        return false;
      if (seen >> axis & 1 || (i && axis < axes->Get(i - 1)))
        return reject(place.text(), "ascending axes, each of them once",
                      std::to_string(axis));
      seen |= uint64_t(1) << axis;
      if (axes == unit.shard_axes())
        shards *= plan.mesh()->Get(axis)->size();
    }
  if (unit.shards() == shards)
    return true;
  return reject(place.text(),
                "as many shards as there are ranks along its axes, " +
                    std::to_string(shards),
                std::to_string(unit.shards()));
}

bool PlanChecker::checkUnit(uint32_t index) {
  const Unit &unit = *plan.units()->Get(index);
  Place place("units", index, nameOf(unit.name()));
  if (!checkString(place, unit.name()) ||
      !checkUnique(place, "unit", nameOf(unit.name())))
    return false;
  for (DType dtype : {unit.storage(), unit.reduce()})
    if (!checkEnum(place, "an element type", dtype))
      return false;
  if (!checkAxes(place, unit))
    return false;
  if (unit.numel() % unit.shards() != 0)
    return reject(place.text(),
                  "a multiple of " + std::to_string(unit.shards()) +
                      " elements",
                  std::to_string(unit.numel()));
  if (unit.numel() > std::numeric_limits<int64_t>::max() / 16)
    return reject(place.text(), "less than 2^59 elements",
                  std::to_string(unit.numel()));

  if (!checkIndex(place, "shard buffer", unit.shard(), windows.size()))
    return false;
  const Buffer &shard = *plan.buffers()->Get(unit.shard());
  if (shard.role() != BufferRole::Shard || shard.owner() != index ||
      shard.dtype() != unit.storage())
    return reject(place.text(),
                  "a shard of " + std::string(spell(unit.storage())) +
                      " that names the unit as its owner",
                  describeBuffer(unit.shard()));
  if (!checkPiece(place, index, unit.shard()))
    return false;
  if (unit.gradient() != none) {
    if (!checkIndex(place, "gradient buffer", unit.gradient(), windows.size()))
      return false;
    const Buffer &gradient = *plan.buffers()->Get(unit.gradient());
    if (gradient.role() != BufferRole::Gradient || gradient.owner() != index)
      return reject(place.text(), "a gradient that names the unit as its owner",
                    describeBuffer(unit.gradient()));
    if (!checkPiece(place, index, unit.gradient()))
      return false;
  }

  if (!spend(place, unit.parameters()->size()))
    return false;
  uint64_t end = 0;
  for (uint32_t i = 0; i != unit.parameters()->size(); ++i) {
    const Parameter &parameter = *unit.parameters()->Get(i);
    Place inner("parameters", i, nameOf(parameter.name()), &place);
    if (!checkParameter(inner, unit, parameter, end))
      return false;
  }
  return true;
}

bool PlanChecker::checkUnits() {
  for (uint32_t i = 0; i != plan.units()->size(); ++i)
    if (!checkUnit(i))
      return false;
  for (uint32_t i = 0; i != windows.size(); ++i)
    if (!checkRole(i))
      return false;
  return true;
}

std::string PlanChecker::run() {
  if (checkHeader() && checkShapes() && checkConstants() && checkOperators() &&
      checkCommunicators() && checkBuffers() && checkUnits() &&
      checkPrograms() && checkReuse() && checkDigests() && checkMeaning())
    return {};
  return message;
}

} // namespace fsdp::planfile
