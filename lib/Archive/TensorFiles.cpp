//===- TensorFiles.cpp - A model in one or several files ------------------===//

#include "fsdp/Archive/TensorFiles.h"

#include "JSONCursor.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/Archive/JSONWriter.h"

#include <cassert>
#include <filesystem>

using namespace fsdp::archive;
namespace fs = std::filesystem;

static constexpr const char *indexName = "model.safetensors.index.json";
static constexpr const char *wholeName = "model.safetensors";
static constexpr const char *boxesPrefix = "shard-";
static constexpr uint64_t maxIndexBytes = 100'000'000;

bool fsdp::archive::isPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

//===----------------------------------------------------------------------===//
// An index
//===----------------------------------------------------------------------===//

/// The tensors of each file, by its name.
using WeightMap = std::map<std::string, std::vector<std::string>>;

static Expected<WeightMap> readIndex(const std::string &path) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.error();
  if (file->size() > maxIndexBytes)
    return Error{path + ": expected at most " + std::to_string(maxIndexBytes) +
                 " bytes, found " + std::to_string(file->size())};
  Expected<std::string> text = file->read(0, file->size());
  if (!text)
    return text.error();
  simdjson::dom::parser parser;
  auto reject = [&](const Error &error) {
    return Error{path + ": " + error.message};
  };
  auto index = JSONCursor::parse(parser, *text, "index");
  if (!index)
    return reject(index.error());
  auto table = index->at("weight_map");
  if (!table)
    return reject(table.error());
  auto members = table->members();
  if (!members)
    return reject(members.error());
  WeightMap files;
  for (const JSONCursor::Member &member : *members) {
    auto name = member.value.asString();
    if (!name)
      return reject(name.error());
    if (!isPlainName(*name))
      return reject(
          member.value.expected("the name of a file in the same folder"));
    files[std::string(*name)].emplace_back(member.key);
  }
  if (files.empty())
    return reject(table->expected("at least one tensor"));
  return files;
}

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

/// What DCP_SHARDING_INFO says: where the box of each tensor begins.
static Expected<std::map<std::string, std::vector<int64_t>>>
readOffsets(const std::string &text) {
  simdjson::dom::parser parser;
  auto info = JSONCursor::parse(parser, text, shardingInfo);
  if (!info)
    return info.error();
  auto members = info->members();
  if (!members)
    return members.error();
  std::map<std::string, std::vector<int64_t>> result;
  for (const JSONCursor::Member &member : *members) {
    auto field = member.value.at("saved_offsets");
    if (!field)
      return field.error();
    auto elements = field->elements();
    if (!elements)
      return elements.error();
    std::vector<int64_t> &offsets = result[std::string(member.key)];
    for (const JSONCursor &element : *elements) {
      auto offset = element.asInteger();
      if (!offset || *offset < 0)
        return element.expected("an offset of at least 0");
      offsets.push_back(*offset);
    }
  }
  return result;
}

Expected<std::vector<Box>> fsdp::archive::readBoxes(const Safetensors &file) {
  auto reject = [&](const std::string &why) {
    return Error::damage(file.path() + ": " + why);
  };
  std::map<std::string, std::vector<int64_t>> offsets;
  if (auto text = file.metadata().find(shardingInfo);
      text != file.metadata().end()) {
    auto found = readOffsets(text->second);
    if (!found)
      return reject(found.error().message);
    offsets = std::move(*found);
  }
  std::vector<Box> boxes;
  for (const TensorInfo &info : file.tensors()) {
    Box &box = boxes.emplace_back(Box::whole(info.shape));
    if (auto found = offsets.find(info.name); found != offsets.end())
      box.offsets = found->second;
    if (box.offsets.size() != box.sizes.size())
      return reject(info.name + ": expected an offset for each of " +
                    std::to_string(box.sizes.size()) + " axes, found " +
                    std::to_string(box.offsets.size()));
    for (size_t axis = 0; axis != box.sizes.size(); ++axis)
      if (box.offsets[axis] > INT64_MAX - box.sizes[axis])
        return reject(info.name + ": expected an offset below 2^63");
  }
  return boxes;
}

std::optional<Error> TensorFiles::addBoxes(const Safetensors &file) {
  auto boxes = readBoxes(file);
  if (!boxes)
    return boxes.error();
  for (size_t i = 0; i != boxes->size(); ++i) {
    const TensorInfo &info = file.tensors()[i];
    Box &box = (*boxes)[i];
    auto [it, isNew] =
        table.try_emplace(info.name, TensorPieces{info.dtype, info.shape, {}});
    TensorPieces &tensor = it->second;
    if (tensor.dtype != info.dtype || tensor.shape.size() != info.shape.size())
      return Error::damage(file.path() + ": " + info.name +
                           ": expected a box of the same element type and "
                           "number of axes as in " +
                           tensor.pieces[0].file->path());
    // Where the last box ends, so does the tensor.
    for (size_t axis = 0; axis != box.sizes.size(); ++axis)
      tensor.shape[axis] = std::max(isNew ? 0 : tensor.shape[axis],
                                    box.offsets[axis] + box.sizes[axis]);
    tensor.pieces.push_back({std::move(box), &file, &info});
  }
  return std::nullopt;
}

std::optional<Error> TensorFiles::checkCoverage(const std::string &path) {
  for (auto &[name, tensor] : table) {
    auto bytes = getDenseBytes(tensor.shape, tensor.dtype);
    uint64_t found = 0;
    std::vector<const Box *> boxes;
    for (const TensorPieces::Piece &piece : tensor.pieces) {
      found += piece.info->bytes;
      boxes.push_back(&piece.box);
    }
    if (!bytes || static_cast<uint64_t>(*bytes) != found ||
        !areDisjoint(std::move(boxes)))
      return Error::damage(
          path + ": " + name +
          ": expected boxes that cover the tensor once, found " +
          std::to_string(tensor.pieces.size()) + " boxes of " +
          std::to_string(found) + " bytes in all for " +
          (bytes ? std::to_string(*bytes) : "2^63 or more"));
  }
  return std::nullopt;
}

SafetensorsMetadata fsdp::archive::makeShardingMetadata(
    const std::vector<std::pair<std::string, Box>> &boxes) {
  JSONWriter json;
  json.object([&] {
    for (const auto &[name, box] : boxes)
      json.attributeObject(name, [&, &box = box] {
        json.attributeValues("saved_offsets", box.offsets);
      });
  });
  return {
      {"format", "pt"}, {"DCP_VERSION", "1.0"}, {shardingInfo, json.take()}};
}

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

std::optional<Error> TensorFiles::addWhole(const Safetensors &file) {
  for (const TensorInfo &info : file.tensors()) {
    TensorPieces tensor{
        info.dtype, info.shape, {{Box::whole(info.shape), &file, &info}}};
    if (auto [other, isNew] = table.emplace(info.name, std::move(tensor));
        !isNew)
      return Error{
          file.path() + ": expected tensors of its own, found " + info.name +
          ", which is also in " +
          fs::path(other->second.pieces[0].file->path()).filename().string()};
  }
  return std::nullopt;
}

/// Those that `torch.distributed.checkpoint` and we write.
static std::vector<std::string> listBoxFiles(const std::string &folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    std::string name = it->path().filename().string();
    if (name.rfind(boxesPrefix, 0) == 0 &&
        it->path().extension() == ".safetensors")
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TensorFiles TensorFiles::of(Tensors tensors) {
  TensorFiles result;
  result.table = std::move(tensors);
  return result;
}

Expected<TensorFiles> TensorFiles::open(const std::string &folder,
                                        std::vector<CheckedFile> files) {
  TensorFiles result;
  for (CheckedFile &each : files) {
    std::string path = (fs::path(folder) / each.name).string();
    Expected<Safetensors> file =
        each.sums.bytes ? Safetensors::open(path, std::move(each.sums))
                        : Safetensors::open(path);
    if (!file)
      return file.error();
    result.opened.push_back(std::move(*file));
  }
  for (const Safetensors &file : result.opened)
    if (auto error = result.addBoxes(file))
      return *error;
  if (auto error = result.checkCoverage(folder))
    return *error;
  return result;
}

Expected<TensorFiles> TensorFiles::open(const std::string &path) {
  fs::path folder(path);
  std::error_code ignored;
  TensorFiles result;
  WeightMap files;
  if (!fs::is_directory(path, ignored)) {
    Expected<Safetensors> file = Safetensors::open(path);
    if (!file)
      return file.error();
    result.opened.push_back(std::move(*file));
  } else if (Checkpoint::isOne(path)) {
    Expected<Checkpoint> checkpoint = Checkpoint::open(path);
    if (!checkpoint)
      return checkpoint.error();
    return std::move(checkpoint->files);
  } else if (fs::exists(folder / indexName, ignored)) {
    auto index = readIndex((folder / indexName).string());
    if (!index)
      return index.error();
    files = std::move(*index);
  } else if (fs::exists(folder / wholeName, ignored)) {
    files[wholeName];
  } else if (std::vector<std::string> names = listBoxFiles(path);
             !names.empty()) {
    std::vector<CheckedFile> unchecked;
    for (std::string &name : names)
      unchecked.push_back({std::move(name), {}});
    return open(path, std::move(unchecked));
  } else {
    return Error{path + ": expected " + wholeName + " or " + indexName +
                 ", or the files of a checkpoint in the folder, found none"};
  }
  for (const auto &[name, tensors] : files) {
    Expected<Safetensors> file = Safetensors::open((folder / name).string());
    if (!file)
      return file.error();
    for (const std::string &tensor : tensors)
      if (!file->find(tensor))
        return Error{file->path() + ": expected tensor " + tensor + ", as " +
                     indexName + " says, found none"};
    result.opened.push_back(std::move(*file));
  }
  for (const Safetensors &file : result.opened)
    if (auto error = result.addWhole(file))
      return *error;
  return result;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

/// The place of an index in a dense, row-major box, in elements.
static uint64_t placeIn(const Box &box, const std::vector<int64_t> &index) {
  uint64_t place = 0;
  for (size_t axis = 0; axis != index.size(); ++axis)
    place = place * static_cast<uint64_t>(box.sizes[axis]) +
            static_cast<uint64_t>(index[axis] - box.offsets[axis]);
  return place;
}

/// Copies what a piece has of a box.
static std::optional<Error> readPart(const TensorPieces::Piece &piece,
                                     const Box &box, uint64_t item, char *to) {
  std::optional<Box> common = intersect(piece.box, box);
  if (!common)
    return std::nullopt;
  // Rows of the axes from `inner` on follow one another in both.
  size_t inner = box.sizes.size();
  uint64_t run = 1;
  bool isWhole = true;
  while (inner > 0 && isWhole) {
    int64_t size = common->sizes[--inner];
    run *= static_cast<uint64_t>(size);
    isWhole = size == box.sizes[inner] && size == piece.box.sizes[inner];
  }
  std::vector<int64_t> index = common->offsets;
  for (uint64_t left = common->numel() / run; left != 0; --left) {
    if (auto error =
            piece.file->read(*piece.info, placeIn(piece.box, index) * item,
                             to + placeIn(box, index) * item, run * item))
      return error;
    for (size_t axis = inner; axis-- > 0;) {
      if (++index[axis] < common->offsets[axis] + common->sizes[axis])
        break;
      index[axis] = common->offsets[axis];
    }
  }
  return std::nullopt;
}

std::optional<Error> fsdp::archive::readBox(const TensorPieces &tensor,
                                            const Box &box, char *to) {
  auto read = [&](const TensorPieces::Piece &piece) {
    return readPart(piece, box, getItemSize(tensor.dtype), to);
  };
  if (tensor.find)
    return tensor.find(box, read);
  for (const TensorPieces::Piece &piece : tensor.pieces)
    if (auto error = read(piece))
      return error;
  return std::nullopt;
}
