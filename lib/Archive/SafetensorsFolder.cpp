//===- SafetensorsFolder.cpp - One model in several files -----------------===//

#include "fsdp/Archive/SafetensorsFolder.h"

#include "JSONCursor.h"

#include <filesystem>
#include <set>

using namespace fsdp::archive;

static constexpr const char *indexName = "model.safetensors.index.json";
static constexpr const char *wholeName = "model.safetensors";
static constexpr uint64_t maxIndexBytes = 100'000'000;

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
    if (name->empty() || *name == "." || *name == ".." ||
        name->find('/') != std::string_view::npos ||
        name->find('\0') != std::string_view::npos)
      return reject(
          member.value.expected("the name of a file in the same folder"));
    files[std::string(*name)].emplace_back(member.key);
  }
  if (files.empty())
    return reject(table->expected("at least one tensor"));
  return files;
}

Expected<std::vector<Safetensors>>
fsdp::archive::openSafetensorsFolder(const std::string &path) {
  namespace fs = std::filesystem;
  fs::path folder(path);
  std::error_code ignored;
  WeightMap files;
  if (fs::exists(folder / indexName, ignored)) {
    auto index = readIndex((folder / indexName).string());
    if (!index)
      return index.error();
    files = std::move(*index);
  } else if (fs::exists(folder / wholeName, ignored)) {
    files[wholeName];
  } else {
    return Error{path + ": expected " + wholeName + " or " + indexName +
                 " in the folder, found neither"};
  }

  std::vector<Safetensors> opened;
  std::map<std::string, std::string> owners; // of each tensor, a file
  for (const auto &[name, tensors] : files) {
    Expected<Safetensors> file = Safetensors::open((folder / name).string());
    if (!file)
      return file.error();
    for (const std::string &tensor : tensors)
      if (!file->find(tensor))
        return Error{file->path() + ": expected tensor " + tensor + ", as " +
                     indexName + " says, found none"};
    for (const TensorInfo &tensor : file->tensors())
      if (auto [other, isNew] = owners.emplace(tensor.name, name); !isNew)
        return Error{file->path() + ": expected tensors of its own, found " +
                     tensor.name + ", which is also in " + other->second};
    opened.push_back(std::move(*file));
  }
  return opened;
}
