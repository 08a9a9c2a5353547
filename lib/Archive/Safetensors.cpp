//===- Safetensors.cpp - The safetensors file format ----------------------===//

#include "fsdp/Archive/Safetensors.h"

#include "TensorJSON.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Archive/WriteFile.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

using namespace fsdp::archive;

// The limit of the reference implementation.
static constexpr uint64_t maxHeaderBytes = 100'000'000;

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

static Expected<SafetensorsMetadata> readMetadata(const JSONCursor &value) {
  auto members = value.members();
  if (!members)
    return members.error();
  SafetensorsMetadata result;
  for (const JSONCursor::Member &member : *members) {
    auto text = member.value.asString();
    if (!text)
      return text.error();
    result.emplace(member.key, *text);
  }
  return result;
}

Expected<TensorSpec>
fsdp::archive::readTensorSpec(const JSONCursor::Member &member) {
  TensorSpec tensor{std::string(member.key), DType::F32, {}};
  auto dtypeField = member.value.at("dtype");
  if (!dtypeField)
    return dtypeField.error();
  auto spelling = dtypeField->asString();
  if (!spelling)
    return spelling.error();
  auto dtype = getDTypeFromSafetensorsName(*spelling);
  if (!dtype)
    return dtypeField->expected("a known element type");
  tensor.dtype = *dtype;

  auto shapeField = member.value.at("shape");
  if (!shapeField)
    return shapeField.error();
  auto sizes = shapeField->elements();
  if (!sizes)
    return sizes.error();
  for (const JSONCursor &sizeField : *sizes) {
    auto extent = sizeField.asInteger();
    if (!extent || *extent < 0)
      return sizeField.expected("a size of at least 0");
    tensor.shape.push_back(*extent);
  }
  if (!getDenseBytes(tensor.shape, tensor.dtype))
    return Error{shapeField->where() +
                 ": expected less than 2^63 bytes, found more"};
  return tensor;
}

/// Reads one tensor of the header; `start` and `size` are those of what follows
/// the header, in bytes.
static Expected<TensorInfo> readTensor(const JSONCursor::Member &member,
                                       uint64_t start, uint64_t size) {
  const JSONCursor &value = member.value;
  auto fields = value.members();
  if (!fields)
    return fields.error();
  for (const JSONCursor::Member &field : *fields)
    if (field.key != "dtype" && field.key != "shape" &&
        field.key != "data_offsets")
      return Error{field.value.where() +
                   ": expected dtype, shape and data_offsets only, found '" +
                   std::string(field.key) + "'"};

  auto spec = readTensorSpec(member);
  if (!spec)
    return spec.error();
  TensorInfo tensor{std::move(spec->name), spec->dtype, std::move(spec->shape),
                    0, 0};
  auto offsetsField = value.at("data_offsets");
  if (!offsetsField)
    return offsetsField.error();
  auto offsets = offsetsField->elements();
  if (!offsets)
    return offsets.error();
  if (offsets->size() != 2)
    return Error{offsetsField->where() + ": expected two offsets, found " +
                 std::to_string(offsets->size())};
  int64_t bounds[2] = {0, 0};
  for (size_t i = 0; i != 2; ++i) {
    auto bound = (*offsets)[i].asInteger();
    if (!bound || *bound < 0 || static_cast<uint64_t>(*bound) > size)
      return (*offsets)[i].expected("an offset from 0 to " +
                                    std::to_string(size));
    bounds[i] = *bound;
  }
  if (bounds[1] < bounds[0])
    return (*offsets)[1].expected("at least " + std::to_string(bounds[0]));

  auto bytes = getDenseBytes(tensor.shape, tensor.dtype);
  if (*bytes != bounds[1] - bounds[0])
    return Error{offsetsField->where() + ": expected " +
                 std::to_string(*bytes) + " bytes, found " +
                 std::to_string(bounds[1] - bounds[0])};
  tensor.offset = start + static_cast<uint64_t>(bounds[0]);
  tensor.bytes = static_cast<uint64_t>(*bytes);
  return tensor;
}

/// The tensors, put in the order of their bytes, must cover all of the `size`
/// bytes from `start` on.
static Expected<uint64_t> checkCoverage(std::vector<TensorInfo> &tensors,
                                        uint64_t start, uint64_t size) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo &a, const TensorInfo &b) {
              return std::tie(a.offset, a.bytes, a.name) <
                     std::tie(b.offset, b.bytes, b.name);
            });
  uint64_t end = 0;
  for (const TensorInfo &tensor : tensors) {
    uint64_t begin = tensor.offset - start;
    if (begin != end)
      return Error{"header." + tensor.name + ": expected to begin at byte " +
                   std::to_string(end) + ", where the one before ends, found " +
                   std::to_string(begin)};
    end += tensor.bytes;
  }
  if (end != size)
    return Error{"data: expected " + std::to_string(end) + " bytes, found " +
                 std::to_string(size)};
  return end;
}

Expected<Safetensors> Safetensors::open(const std::string &path) {
  return read(InputFile::open(path));
}

Expected<Safetensors> Safetensors::open(const std::string &path,
                                        BlockSums sums) {
  return read(InputFile::open(path, std::move(sums)));
}

Expected<Safetensors> Safetensors::read(Expected<InputFile> file) {
  if (!file)
    return file.error();
  const std::string path = file->path();
  auto reject = [&](const std::string &why) {
    return Error::damage(path + ": " + why);
  };

  if (file->size() < 8)
    return reject("header length: expected 8 bytes, found " +
                  std::to_string(file->size()));
  Expected<std::string> length = file->read(0, 8);
  if (!length)
    return length.error();
  uint64_t headerBytes = 0;
  for (size_t i = 0; i != 8; ++i)
    headerBytes |= uint64_t(static_cast<unsigned char>((*length)[i]))
                   << (8 * i);
  uint64_t limit = std::min<uint64_t>(file->size() - 8, maxHeaderBytes);
  if (headerBytes > limit)
    return reject("header length: expected at most " + std::to_string(limit) +
                  ", found " + std::to_string(headerBytes));
  uint64_t start = 8 + headerBytes, size = file->size() - start;
  Expected<std::string> text = file->read(8, headerBytes);
  if (!text)
    return text.error();

  simdjson::dom::parser parser;
  auto header = JSONCursor::parse(parser, *text, "header");
  if (!header)
    return reject(header.error().message);
  auto members = header->members();
  if (!members)
    return reject(members.error().message);

  Safetensors result(std::move(*file));
  for (const JSONCursor::Member &member : *members) {
    if (member.key == "__metadata__") {
      auto metadata = readMetadata(member.value);
      if (!metadata)
        return reject(metadata.error().message);
      result.texts = std::move(*metadata);
      continue;
    }
    auto tensor = readTensor(member, start, size);
    if (!tensor)
      return reject(tensor.error().message);
    result.table.push_back(std::move(*tensor));
  }
  if (auto end = checkCoverage(result.table, start, size); !end)
    return reject(end.error().message);
  for (size_t i = 0; i != result.table.size(); ++i)
    result.indices.emplace(result.table[i].name, i);
  return result;
}

const TensorInfo *Safetensors::find(std::string_view name) const {
  auto it = indices.find(name);
  return it == indices.end() ? nullptr : &table[it->second];
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static constexpr auto dense = JSONWriter::Layout::Dense;

/// Members of a header, one after the other; `offset` becomes their bytes.
template <typename Tensor>
static std::optional<Error>
addTensors(const std::vector<const Tensor *> &tensors, JSONWriter &json,
           uint64_t &offset) {
  offset = 0;
  std::set<std::string_view> names;
  for (const Tensor *tensor : tensors) {
    auto reject = [&](const std::string &why) {
      return Error{"tensor '" + tensor->name + "': " + why};
    };
    std::string_view spelling = getSafetensorsName(tensor->dtype);
    if (spelling.empty())
      return reject("expected an element type that the format has, found " +
                    std::string(getMLIRName(tensor->dtype)));
    auto bytes = getDenseBytes(tensor->shape, tensor->dtype);
    if (!bytes)
      return reject("expected less than 2^63 bytes, found more");
    if (tensor->name == "__metadata__" || !names.insert(tensor->name).second)
      return reject("expected a name of its own, found one that is taken");

    uint64_t begin = offset;
    offset += static_cast<uint64_t>(*bytes);
    json.attributeObject(
        tensor->name,
        [&] {
          json.attribute("dtype", spelling);
          json.attributeValues("shape", tensor->shape, dense);
          json.attributeValues("data_offsets", std::array{begin, offset},
                               dense);
        },
        dense);
  }
  return std::nullopt;
}

/// The length and the header, padded so that the data starts at a multiple of
/// 8 bytes.
template <typename Tensor>
static Expected<std::string>
makeHeader(const std::vector<const Tensor *> &tensors,
           const SafetensorsMetadata &metadata, uint64_t &offset) {
  JSONWriter json;
  auto addMetadata = [&] {
    for (const auto &[key, value] : metadata)
      json.attribute(key, value);
  };
  std::optional<Error> rejected;
  json.object(
      [&] {
        if (!metadata.empty())
          json.attributeObject("__metadata__", addMetadata, dense);
        rejected = addTensors(tensors, json, offset);
      },
      dense);
  if (rejected)
    return *rejected;
  std::string text = json.take();
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > maxHeaderBytes)
    return Error{"header: expected at most " + std::to_string(maxHeaderBytes) +
                 " bytes, found " + std::to_string(text.size())};

  std::string length;
  for (size_t i = 0; i != 8; ++i)
    length += static_cast<char>(uint64_t(text.size()) >> (8 * i));
  return length + text;
}

/// Large elements first, so that every tensor is aligned to its item size.
template <typename Tensor>
static std::vector<const Tensor *> sort(const std::vector<Tensor> &tensors) {
  std::vector<const Tensor *> ordered;
  for (const Tensor &tensor : tensors)
    ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(),
            [](const Tensor *a, const Tensor *b) {
              return std::pair(getItemSize(b->dtype), a) <
                     std::pair(getItemSize(a->dtype), b);
            });
  return ordered;
}

static std::optional<Error> checkBytes(const std::string &name, DType dtype,
                                       const std::vector<int64_t> &shape,
                                       uint64_t found) {
  auto bytes = getDenseBytes(shape, dtype);
  if (!bytes || static_cast<uint64_t>(*bytes) != found)
    return Error{"tensor '" + name +
                 "': expected as many bytes as the shape has, found " +
                 std::to_string(found)};
  return std::nullopt;
}

Expected<uint64_t> fsdp::archive::writeSafetensors(
    const std::string &path, const std::vector<TensorRef> &tensors,
    const SafetensorsMetadata &metadata, BlockSums *sums) {
  for (const TensorRef &each : tensors)
    if (auto error =
            checkBytes(each.name, each.dtype, each.shape, each.bytes.size()))
      return Error{path + ": " + error->message};
  std::vector<const TensorRef *> ordered = sort(tensors);
  uint64_t bytes = 0;
  Expected<std::string> header = makeHeader(ordered, metadata, bytes);
  if (!header)
    return Error{path + ": " + header.error().message};

  std::vector<std::string_view> pieces = {*header};
  for (const TensorRef *tensor : ordered)
    pieces.push_back(tensor->bytes);
  if (sums)
    *sums = BlockSums::of(pieces);
  return writeFile(path, pieces);
}

std::vector<size_t>
fsdp::archive::getFileOrder(const std::vector<TensorSpec> &tensors) {
  std::vector<size_t> order;
  for (const TensorSpec *each : sort(tensors))
    order.push_back(static_cast<size_t>(each - tensors.data()));
  return order;
}

Expected<uint64_t> fsdp::archive::writeSafetensors(
    const std::string &path, const std::vector<TensorSpec> &tensors,
    const SafetensorsMetadata &metadata,
    const std::function<Expected<std::string>(size_t)> &read) {
  uint64_t bytes = 0;
  Expected<std::string> header = makeHeader(sort(tensors), metadata, bytes);
  if (!header)
    return Error{path + ": " + header.error().message};
  std::vector<size_t> order = getFileOrder(tensors);
  std::string content = std::move(*header);
  auto next = order.begin();
  bool isBegun = false;
  return writeFile(
      path, content.size() + bytes, [&]() -> Expected<std::string_view> {
        if (!std::exchange(isBegun, true))
          return std::string_view(content);
        // An empty piece would be the end.
        for (content.clear(); content.empty() && next != order.end(); ++next) {
          Expected<std::string> found = read(*next);
          if (!found)
            return found.error();
          const TensorSpec &tensor = tensors[*next];
          if (auto error = checkBytes(tensor.name, tensor.dtype, tensor.shape,
                                      found->size()))
            return Error{path + ": " + error->message};
          content = std::move(*found);
        }
        return std::string_view(content);
      });
}
