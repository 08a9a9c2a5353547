//===- RankFiles.cpp - What each rank has written of a checkpoint ---------===//

#include "fsdp/Archive/RankFiles.h"

#include "CheckpointJSON.h"
#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/Archive/Escape.h"

#include <algorithm>
#include <filesystem>

using namespace fsdp::archive;
namespace fs = std::filesystem;

//===----------------------------------------------------------------------===//
// Who holds what
//===----------------------------------------------------------------------===//

void HeldTensor::add(uint32_t rank, uint64_t elements) {
  if (elements == 0)
    return;
  if (!runs.empty()) {
    RankRun &last = runs.back();
    if (last.each == elements && last.count == 1 && rank > last.rank)
      last.stride = rank - last.rank;
    if (last.each == elements &&
        rank == uint64_t{last.rank} + uint64_t{last.stride} * last.count) {
      ++last.count;
      return;
    }
  }
  runs.push_back({rank, 1, 1, elements});
}

std::optional<Error> HeldTensor::check(uint32_t ranks) const {
  // The sizes of a tensor are checked before.
  uint64_t numel = Box::whole(shape).numel(), left = numel;
  for (const RankRun &run : runs) {
    if (run.count == 0 || run.each == 0 ||
        uint64_t{run.rank} + uint64_t{run.stride} * (run.count - 1) >= ranks)
      return Error::damage("expected runs of " + std::to_string(ranks) +
                           " ranks, found one of " + std::to_string(run.count) +
                           " from rank " + std::to_string(run.rank) +
                           " on, in steps of " + std::to_string(run.stride));
    if (run.each > left / run.count)
      return Error::damage("expected the " + std::to_string(numel) +
                           " elements of the tensor, found runs of more");
    left -= run.each * run.count;
  }
  if (left != 0)
    return Error::damage("expected the " + std::to_string(numel) +
                         " elements of the tensor, found runs of " +
                         std::to_string(numel - left));
  return std::nullopt;
}

void HeldTensor::forEachRank(
    uint64_t first,
    const std::function<bool(uint32_t, uint64_t, uint64_t)> &visit) const {
  uint64_t begin = 0;
  for (const RankRun &run : runs) {
    uint64_t end = begin + run.each * run.count;
    uint64_t i = first > begin ? (first - begin) / run.each : 0;
    for (uint64_t at = begin + i * run.each; at < end; ++i, at += run.each)
      if (!visit(static_cast<uint32_t>(run.rank + i * run.stride), at,
                 at + run.each))
        return;
    begin = end;
  }
}

std::vector<Box> HeldTensor::boxesBetween(uint64_t begin, uint64_t end) const {
  return cut(shape, order, static_cast<int64_t>(begin),
             static_cast<int64_t>(end));
}

std::vector<Box> HeldTensor::boxesOf(uint32_t rank) const {
  if (runs.empty())
    return rank == 0 ? std::vector<Box>{Box::whole(shape)} : std::vector<Box>();
  std::vector<Box> boxes;
  uint64_t begin = 0;
  for (const RankRun &run : runs) {
    uint64_t i = rank < run.rank   ? run.count
                 : run.stride == 0 ? 0
                                   : (rank - run.rank) / run.stride;
    if (i < run.count && run.rank + i * run.stride == rank) {
      uint64_t at = begin + i * run.each;
      for (Box &box : boxesBetween(at, at + run.each))
        boxes.push_back(std::move(box));
    }
    begin += run.each * run.count;
  }
  return boxes;
}

/// The first and the last element of a box, which has some.
static std::pair<uint64_t, uint64_t> findEnds(const HeldTensor &tensor,
                                              const Box &box) {
  uint64_t first = 0, last = 0;
  for (int64_t each : tensor.order) {
    auto axis = static_cast<size_t>(each);
    auto size = static_cast<uint64_t>(tensor.shape[axis]);
    auto offset = static_cast<uint64_t>(box.offsets[axis]);
    first = first * size + offset;
    last = last * size + offset + static_cast<uint64_t>(box.sizes[axis]) - 1;
  }
  return {first, last};
}

//===----------------------------------------------------------------------===//
// Lists
//===----------------------------------------------------------------------===//

RankFiles::RankFiles(std::string folder, bool hasParts,
                     std::vector<uint64_t> lists)
    : folder(std::move(folder)), hasParts(hasParts), lists(std::move(lists)) {}

std::string RankFiles::pathOf(uint32_t rank, const std::string &file) const {
  return (fs::path(folder) / (hasParts ? getPart(rank, ranks()) : "") / file)
      .string();
}

Expected<std::vector<CheckedFile>> RankFiles::readList(uint32_t rank) const {
  std::string path = pathOf(rank, getRankList(rank));
  auto text = readText(path);
  if (!text)
    return text.error();
  if (uint64_t found = checksum(*text); found != lists[rank])
    return Error::damage(path + ": expected a file with checksum " +
                         spellChecksum(lists[rank]) + ", found " +
                         spellChecksum(found) + ": the file is damaged");
  simdjson::dom::parser parser;
  auto reject = [&](const Error &error) {
    return Error::damage(path + ": " + error.message);
  };
  auto list = JSONCursor::parse(parser, *text, "files");
  if (!list)
    return reject(list.error());
  auto members = list->members();
  if (!members)
    return reject(members.error());
  std::vector<CheckedFile> files;
  for (const JSONCursor::Member &member : *members) {
    CheckedFile file{std::string(member.key), {}};
    if (!isPlainName(file.name) && file.name != getRankFile(rank))
      return reject({"expected the name of a file in the same folder, found " +
                     quoteJSON(file.name)});
    auto bytes = readCount(member.value, "bytes", 1, INT64_MAX);
    if (!bytes)
      return reject(bytes.error());
    file.sums.bytes = static_cast<uint64_t>(*bytes);
    auto blocksField = member.value.at("blocks");
    if (!blocksField)
      return reject(blocksField.error());
    auto blocks = blocksField->elements();
    if (!blocks)
      return reject(blocks.error());
    uint64_t count = (file.sums.bytes - 1) / BlockSums::blockBytes + 1;
    if (blocks->size() != count)
      return reject({blocksField->where() + ": expected " +
                     std::to_string(count) + " checksums, found " +
                     std::to_string(blocks->size())});
    for (const JSONCursor &block : *blocks) {
      auto sum = readChecksum(block);
      if (!sum)
        return reject(sum.error());
      file.sums.sums.push_back(*sum);
    }
    files.push_back(std::move(file));
  }
  auto own =
      std::find_if(files.begin(), files.end(), [&](const CheckedFile &file) {
        return file.name == getRankFile(rank);
      });
  if (own != files.end())
    std::rotate(own, std::next(own), files.end());
  return files;
}

Expected<Safetensors> RankFiles::openOwn(uint32_t rank) const {
  auto files = readList(rank);
  if (!files)
    return files.error();
  std::string name = getRankFile(rank);
  if (files->empty() || files->back().name != name)
    return Error::damage(pathOf(rank, getRankList(rank)) + ": expected " +
                         name + ", found none");
  return Safetensors::open(pathOf(rank, name), std::move(files->back().sums));
}

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

Expected<RankFiles::Rank *> RankFiles::open(uint32_t rank) {
  if (auto it = opened.find(rank); it != opened.end())
    return &it->second;
  auto files = readList(rank);
  if (!files)
    return files.error();
  if (!files->empty() && files->back().name == getRankFile(rank))
    files->pop_back();
  for (size_t i = 0; i != files->size(); ++i) {
    std::string expected = getShardFile(rank, static_cast<unsigned>(i),
                                        static_cast<unsigned>(files->size()));
    if ((*files)[i].name != expected)
      return Error::damage(pathOf(rank, getRankList(rank)) + ": expected " +
                           expected + ", found " + (*files)[i].name);
  }
  Rank &result = opened[rank];
  result.shards.resize(files->size());
  result.files = std::move(*files);
  for (CheckedFile &file : result.files)
    file.name = pathOf(rank, file.name);
  return &result;
}

Expected<RankFiles::Shard> RankFiles::openShard(const CheckedFile &listed) {
  auto file = Safetensors::open(listed.name, listed.sums);
  if (!file)
    return file.error();
  auto boxes = readBoxes(*file);
  if (!boxes)
    return boxes.error();
  return Shard{std::move(*file), std::move(*boxes)};
}

Expected<TensorPieces::Piece> RankFiles::find(uint32_t number, size_t file,
                                              const std::string &name,
                                              const HeldTensor &tensor,
                                              const Box &box) {
  auto rank = open(number);
  if (!rank)
    return rank.error();
  if (file >= (*rank)->shards.size())
    return Error::damage(
        pathOf(number, getRankList(number)) + ": expected a file with box " +
        std::to_string(file + 1) + " of " + name + ", found none");
  std::optional<Shard> &shard = (*rank)->shards[file];
  if (!shard) {
    auto opened = openShard((*rank)->files[file]);
    if (!opened)
      return opened.error();
    shard.emplace(std::move(*opened));
  }
  const TensorInfo *info = shard->file.find(name);
  auto isRight = [&] {
    auto number = static_cast<size_t>(info - shard->file.tensors().data());
    return info->dtype == tensor.dtype && shard->boxes[number] == box;
  };
  if (!info || !isRight())
    return Error::damage(shard->file.path() + ": " + name +
                         ": expected the box that the manifest says, found " +
                         (info ? "another one" : "none"));
  return TensorPieces::Piece{box, &shard->file, info};
}

std::optional<Error> RankFiles::forEachPiece(const std::string &name,
                                             const HeldTensor &tensor,
                                             const Box &box,
                                             const TensorPieces::Visit &visit) {
  std::optional<Error> error;
  if (box.numel() == 0)
    return error;
  auto [first, last] = findEnds(tensor, box);
  tensor.forEachRank(
      first, [&, last = last](uint32_t rank, uint64_t begin, uint64_t end) {
        if (begin > last)
          return false;
        std::vector<Box> boxes = tensor.boxesBetween(begin, end);
        for (size_t i = 0; i != boxes.size() && !error; ++i) {
          if (!intersect(boxes[i], box))
            continue;
          auto piece = find(rank, i, name, tensor, boxes[i]);
          error = piece ? visit(*piece) : piece.error();
        }
        return !error;
      });
  return error;
}

std::optional<Error>
RankFiles::verify(uint32_t rank,
                  const std::map<std::string, HeldTensor> *tensors) {
  auto files = readList(rank);
  if (!files)
    return files.error();
  std::string block;
  for (CheckedFile &each : *files) {
    auto file = InputFile::open(pathOf(rank, each.name), std::move(each.sums));
    if (!file)
      return file.error();
    for (uint64_t at = 0; at < file->size(); at += BlockSums::blockBytes) {
      block.resize(std::min(BlockSums::blockBytes, file->size() - at));
      if (auto error = file->read(at, block.data(), block.size()))
        return error;
    }
  }
  if (!tensors)
    return std::nullopt;
  size_t expected = 0, found = 0;
  for (const auto &[name, tensor] : *tensors) {
    std::vector<Box> boxes = tensor.boxesOf(rank);
    expected += boxes.size();
    for (size_t i = 0; i != boxes.size(); ++i)
      if (auto piece = find(rank, i, name, tensor, boxes[i]); !piece)
        return piece.error();
  }
  auto all = open(rank);
  if (!all)
    return all.error();
  for (const std::optional<Shard> &shard : (*all)->shards)
    found += shard ? shard->file.tensors().size() : 1;
  opened.erase(rank);
  if (found != expected)
    return Error::damage(pathOf(rank, getRankList(rank)) +
                         ": expected files with the " +
                         std::to_string(expected) +
                         " boxes that the manifest says, found others");
  return std::nullopt;
}
