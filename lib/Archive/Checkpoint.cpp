//===- Checkpoint.cpp - A training that goes on later ---------------------===//

#include "fsdp/Archive/Checkpoint.h"

#include "JSONCursor.h"
#include "fsdp/Archive/Escape.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <set>

using namespace fsdp::archive;
namespace fs = std::filesystem;

static constexpr int64_t version = 1;
static constexpr const char *ranksFolder = "ranks/";
/// What the manifest ends with is a checksum of all before it.
static constexpr std::string_view ending = "  \"checksum\": ";
static constexpr uint64_t maxListBytes = uint64_t{1} << 30;
static constexpr int64_t maxRanks = 1 << 20;

static std::string spell(const char *format, unsigned first, unsigned second,
                         unsigned third) {
  char name[96];
  std::snprintf(name, sizeof name, format, first, second, third);
  return name;
}

std::string fsdp::archive::getShardFile(unsigned rank, unsigned file,
                                        unsigned files) {
  return spell("shard-%05u-model-%05u-of-%05u.safetensors", rank + 1, file + 1,
               files);
}

std::string fsdp::archive::getRankFile(unsigned rank) {
  return ranksFolder + spell("rank-%05u.safetensors", rank + 1, 0, 0);
}

std::string fsdp::archive::getRankList(unsigned rank) {
  return ranksFolder + spell("rank-%05u.json", rank + 1, 0, 0);
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

std::string
fsdp::archive::spellRankList(const std::vector<CheckedFile> &files) {
  std::string text = "{\n";
  for (size_t i = 0; i != files.size(); ++i) {
    text += (i ? ",\n  " : "  ") + quoteJSON(files[i].name) +
            ": {\"bytes\": " + std::to_string(files[i].sums.bytes) +
            ", \"blocks\": [";
    for (size_t k = 0; k != files[i].sums.sums.size(); ++k)
      text += (k ? ",\"" : "\"") + spellChecksum(files[i].sums.sums[k]) + "\"";
    text += "]}";
  }
  return text + "\n}\n";
}

std::string
fsdp::archive::spellManifest(const TrainingState &state,
                             const std::map<std::string, TensorShape> &tensors,
                             const std::vector<uint64_t> &lists) {
  std::string text = "{\n";
  auto add = [&](const char *name, const std::string &value) {
    text += std::string("  \"") + name + "\": " + value + ",\n";
  };
  auto addTexts = [&](const char *name, const auto &pairs) {
    std::string members;
    for (const auto &[key, value] : pairs)
      members += (members.empty() ? "\n    " : ",\n    ") + quoteJSON(key) +
                 ": " + quoteJSON(value);
    add(name, "{" + members + "}");
  };
  add("version", std::to_string(version));
  add("step", std::to_string(state.step));
  add("position", std::to_string(state.position));
  add("updates", std::to_string(state.updates));
  add("ranks", std::to_string(state.ranks));
  add("mesh", quoteJSON(state.mesh));
  addTexts("facts", state.facts);
  addTexts("names", state.names);
  std::string members;
  for (const auto &[name, tensor] : tensors) {
    members += (members.empty() ? "\n    " : ",\n    ") + quoteJSON(name) +
               ": {\"dtype\": " + quoteJSON(getSafetensorsName(tensor.dtype)) +
               ", \"shape\": [";
    for (size_t i = 0; i != tensor.sizes.size(); ++i)
      members += (i ? ", " : "") + std::to_string(tensor.sizes[i]);
    members += "]}";
  }
  add("tensors", "{" + members + "}");
  members.clear();
  for (uint64_t sum : lists)
    members += (members.empty() ? "\"" : ", \"") + spellChecksum(sum) + "\"";
  add("lists", "[" + members + "]");
  uint64_t sum = checksum(text);
  return text.append(ending) + '"' + spellChecksum(sum) + "\"\n}\n";
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

static Expected<std::string> readText(const std::string &path) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.error();
  if (file->size() > maxListBytes)
    return Error::damage(path + ": expected at most 1 GiB, found " +
                         std::to_string(file->size()) + " bytes");
  return file->read();
}

static Expected<uint64_t> readChecksum(const JSONCursor &value) {
  auto text = value.asString();
  uint64_t sum = 0;
  if (text && text->size() == 16) {
    const char *end = text->data() + text->size();
    auto [last, error] = std::from_chars(text->data(), end, sum, 16);
    if (error == std::errc() && last == end)
      return sum;
  }
  return value.expected("a checksum of 16 digits");
}

static Expected<int64_t> readCount(const JSONCursor &object, const char *name,
                                   int64_t least, int64_t most) {
  auto field = object.at(name);
  if (!field)
    return field.error();
  auto number = field->asInteger();
  if (!number || *number < least || *number > most)
    return field->expected("a number from " + std::to_string(least) + " to " +
                           std::to_string(most));
  return number;
}

static Expected<std::vector<std::pair<std::string, std::string>>>
readTexts(const JSONCursor &object, const char *name) {
  auto field = object.at(name);
  if (!field)
    return field.error();
  auto members = field->members();
  if (!members)
    return members.error();
  std::vector<std::pair<std::string, std::string>> texts;
  for (const JSONCursor::Member &member : *members) {
    auto text = member.value.asString();
    if (!text)
      return text.error();
    texts.emplace_back(member.key, *text);
  }
  return texts;
}

static Expected<TrainingState> readState(const JSONCursor &manifest) {
  TrainingState state;
  Expected<int64_t> step = readCount(manifest, "step", 0, INT64_MAX),
                    position = readCount(manifest, "position", 0, INT64_MAX),
                    updates = readCount(manifest, "updates", 0, INT64_MAX),
                    ranks = readCount(manifest, "ranks", 1, maxRanks);
  for (const Expected<int64_t> *number : {&step, &position, &updates, &ranks})
    if (!*number)
      return number->error();
  state.step = *step;
  state.position = static_cast<uint64_t>(*position);
  state.updates = static_cast<uint64_t>(*updates);
  state.ranks = static_cast<uint32_t>(*ranks);
  auto mesh = manifest.at("mesh");
  if (!mesh)
    return mesh.error();
  auto meshText = mesh->asString();
  if (!meshText)
    return meshText.error();
  state.mesh = *meshText;
  auto facts = readTexts(manifest, "facts");
  if (!facts)
    return facts.error();
  state.facts = std::move(*facts);
  auto names = readTexts(manifest, "names");
  if (!names)
    return names.error();
  state.names = {names->begin(), names->end()};
  return state;
}

static Expected<std::map<std::string, TensorShape>>
readShapes(const JSONCursor &manifest) {
  auto field = manifest.at("tensors");
  if (!field)
    return field.error();
  auto members = field->members();
  if (!members)
    return members.error();
  std::map<std::string, TensorShape> shapes;
  for (const JSONCursor::Member &member : *members) {
    auto dtypeField = member.value.at("dtype");
    if (!dtypeField)
      return dtypeField.error();
    auto name = dtypeField->asString();
    auto dtype = name ? getDTypeFromSafetensorsName(*name) : std::nullopt;
    if (!dtype)
      return dtypeField->expected("a known element type");
    auto shapeField = member.value.at("shape");
    if (!shapeField)
      return shapeField.error();
    auto sizes = shapeField->elements();
    if (!sizes)
      return sizes.error();
    TensorShape &shape = shapes[std::string(member.key)];
    shape.dtype = *dtype;
    for (const JSONCursor &each : *sizes) {
      auto size = each.asInteger();
      if (!size || *size < 0)
        return each.expected("a size of at least 0");
      shape.sizes.push_back(*size);
    }
  }
  return shapes;
}

/// What a rank wrote, the file of its own last if there is one.
static Expected<std::vector<CheckedFile>>
readRankList(const std::string &path, unsigned rank, uint64_t expected) {
  auto text = readText(path);
  if (!text)
    return text.error();
  if (uint64_t found = checksum(*text); found != expected)
    return Error::damage(path + ": expected a file with checksum " +
                         spellChecksum(expected) + ", found " +
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
      return reject(
          Error::damage("expected the name of a file in the same folder, "
                        "found " +
                        quoteJSON(file.name)));
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
      return reject(Error::damage(blocksField->where() + ": expected " +
                                  std::to_string(count) + " checksums, found " +
                                  std::to_string(blocks->size())));
    for (const JSONCursor &block : *blocks) {
      auto sum = readChecksum(block);
      if (!sum)
        return reject(sum.error());
      file.sums.sums.push_back(*sum);
    }
    files.push_back(std::move(file));
  }
  return files;
}

/// A text without its last lines, of which one has its checksum.
static std::optional<Error> checkManifest(const std::string &path,
                                          const std::string &text) {
  size_t end = text.rfind(ending);
  if (end == std::string::npos)
    return Error::damage(path + ": expected a checksum at its end, found none");
  std::string_view rest = std::string_view(text).substr(end + ending.size());
  std::string expected =
      '"' + spellChecksum(checksum(std::string_view(text).substr(0, end))) +
      "\"\n}\n";
  if (rest != expected)
    return Error::damage(path +
                         ": expected what its checksum says, found other "
                         "content: the file is damaged");
  return std::nullopt;
}

bool Checkpoint::isOne(const std::string &folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / manifestName, ignored);
}

/// That axes, "replicate=2 shard=4", have so many ranks; what was not written
/// by ranks of a mesh says so by a word, "PyTorch".
static std::optional<Error> checkMesh(const std::string &mesh, uint32_t ranks) {
  if (mesh.find('=') == std::string::npos)
    return std::nullopt;
  auto reject = [&] {
    return Error::damage("manifest.mesh: expected the axes of " +
                         std::to_string(ranks) + " ranks, as in shard=" +
                         std::to_string(ranks) + ", found " + quoteJSON(mesh));
  };
  uint64_t product = 1;
  for (std::string_view rest = mesh; !rest.empty();) {
    size_t end = std::min(rest.find(' '), rest.size());
    std::string_view axis = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    size_t equals = axis.find('=');
    uint32_t size = 0;
    if (equals == std::string_view::npos)
      return reject();
    const char *last = axis.data() + axis.size();
    auto [parsed, error] =
        std::from_chars(axis.data() + equals + 1, last, size);
    product *= size;
    if (error != std::errc() || parsed != last || product > maxRanks)
      return reject();
  }
  return product == ranks ? std::nullopt : std::optional(reject());
}

/// That the files have the tensors of the manifest.
static std::optional<Error>
checkTensors(const std::string &folder, const TensorFiles::Tensors &found,
             const std::map<std::string, TensorShape> &expected) {
  for (const auto &[name, shape] : expected) {
    auto tensor = found.find(name);
    if (tensor == found.end())
      return Error::damage(folder + ": expected tensor " + name +
                           ", as its manifest says, found none");
    if (tensor->second.dtype != shape.dtype ||
        tensor->second.shape != shape.sizes)
      return Error::damage(folder + ": " + name +
                           ": expected the element type and the sizes that its "
                           "manifest says, found others");
  }
  for (const auto &[name, tensor] : found)
    if (!expected.count(name))
      return Error::damage(
          folder + ": expected the tensors of its manifest, found " + name);
  return std::nullopt;
}

Expected<Checkpoint> Checkpoint::open(const std::string &folder) {
  std::string path = (fs::path(folder) / manifestName).string();
  auto text = readText(path);
  if (!text)
    return text.error();
  if (auto error = checkManifest(path, *text))
    return *error;
  auto reject = [&](const Error &error) {
    return Error::damage(path + ": " + error.message);
  };
  simdjson::dom::parser parser;
  auto manifest = JSONCursor::parse(parser, *text, "manifest");
  if (!manifest)
    return reject(manifest.error());
  // Not damage: one of a later version is of use to that.
  if (auto found = readCount(*manifest, "version", version, version); !found)
    return Error{path + ": " + found.error().message};
  auto state = readState(*manifest);
  if (!state)
    return reject(state.error());
  auto shapes = readShapes(*manifest);
  if (!shapes)
    return reject(shapes.error());
  auto listsField = manifest->at("lists");
  if (!listsField)
    return reject(listsField.error());
  auto lists = listsField->elements();
  if (!lists)
    return reject(lists.error());
  if (lists->size() != state->ranks)
    return reject(
        Error::damage(listsField->where() + ": expected one for each of " +
                      std::to_string(state->ranks) + " ranks, found " +
                      std::to_string(lists->size())));

  if (auto error = checkMesh(state->mesh, state->ranks))
    return reject(*error);

  Checkpoint result;
  result.folder = folder;
  result.state = std::move(*state);
  result.rankFiles.resize(result.state.ranks);
  std::vector<CheckedFile> shards;
  std::set<std::string> names;
  for (unsigned rank = 0; rank != result.state.ranks; ++rank) {
    auto sum = readChecksum((*lists)[rank]);
    if (!sum)
      return reject(sum.error());
    auto files = readRankList((fs::path(folder) / getRankList(rank)).string(),
                              rank, *sum);
    if (!files)
      return files.error();
    for (CheckedFile &file : *files) {
      if (!names.insert(file.name).second)
        return Error::damage((fs::path(folder) / getRankList(rank)).string() +
                             ": expected files of the rank alone, found " +
                             file.name + ", which another one has, too");
      result.lists.push_back(file);
      if (file.name != getRankFile(rank)) {
        shards.push_back(std::move(file));
        continue;
      }
      auto own = Safetensors::open((fs::path(folder) / file.name).string(),
                                   std::move(file.sums));
      if (!own)
        return own.error();
      result.rankFiles[rank].emplace(std::move(*own));
    }
  }
  auto opened = TensorFiles::open(folder, std::move(shards));
  if (!opened)
    return opened.error();
  result.files = std::move(*opened);
  if (auto error = checkTensors(folder, result.files.tensors(), *shapes))
    return *error;
  return result;
}

std::optional<Error> Checkpoint::verify() const {
  std::string block;
  for (const CheckedFile &each : lists) {
    auto file =
        InputFile::open((fs::path(folder) / each.name).string(), each.sums);
    if (!file)
      return file.error();
    for (uint64_t at = 0; at < file->size(); at += BlockSums::blockBytes) {
      block.resize(std::min(BlockSums::blockBytes, file->size() - at));
      if (auto error = file->read(at, block.data(), block.size()))
        return error;
    }
  }
  return std::nullopt;
}
