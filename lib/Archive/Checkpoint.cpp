//===- Checkpoint.cpp - A training that goes on later ---------------------===//

#include "fsdp/Archive/Checkpoint.h"

#include "CheckpointJSON.h"
#include "TensorJSON.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/JSONWriter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <set>

using namespace fsdp::archive;
namespace fs = std::filesystem;

/// The first version says nothing of who holds what: all files are opened.
static constexpr int64_t firstVersion = 1, version = 2;
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

std::string fsdp::archive::getPart(unsigned rank, unsigned ranks) {
  return ranks <= ranksInPart
             ? std::string()
             : spell("part-%05u", rank / ranksInPart + 1, 0, 0);
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

using Layout = JSONWriter::Layout;

static std::vector<std::string>
spellChecksums(const std::vector<uint64_t> &sums) {
  std::vector<std::string> texts;
  for (uint64_t sum : sums)
    texts.push_back(spellChecksum(sum));
  return texts;
}

std::string
fsdp::archive::spellRankList(const std::vector<CheckedFile> &files) {
  JSONWriter json;
  json.object(
      [&] {
        for (const CheckedFile &file : files)
          json.attributeObject(file.name, [&] {
            json.attribute("bytes", file.sums.bytes);
            json.attributeValues("blocks", spellChecksums(file.sums.sums),
                                 Layout::Dense);
          });
      },
      Layout::Lines);
  return json.take() + '\n';
}

std::string
fsdp::archive::spellManifest(const TrainingState &state,
                             const std::map<std::string, HeldTensor> &tensors,
                             const std::vector<uint64_t> &lists) {
  JSONWriter json;
  auto addTexts = [&](const char *name, const auto &pairs) {
    json.attributeObject(
        name,
        [&] {
          for (const auto &[key, value] : pairs)
            json.attribute(key, value);
        },
        Layout::Lines);
  };
  auto addTensor = [&](const HeldTensor &tensor) {
    json.attribute("dtype", getSafetensorsName(tensor.dtype));
    json.attributeValues("shape", tensor.shape);
    if (tensor.order != rowMajor(tensor.shape.size()))
      json.attributeValues("order", tensor.order);
    json.attributeArray("ranks", [&] {
      for (const RankRun &run : tensor.runs)
        json.values(
            std::array<uint64_t, 4>{run.rank, run.stride, run.count, run.each});
    });
  };
  json.object(
      [&] {
        json.attribute("version", version);
        json.attribute("step", state.step);
        json.attribute("position", state.position);
        json.attribute("updates", state.updates);
        json.attribute("ranks", state.ranks);
        json.attribute("mesh", state.mesh);
        addTexts("facts", state.facts);
        addTexts("names", state.names);
        json.attributeObject(
            "tensors",
            [&] {
              for (const auto &[name, tensor] : tensors)
                json.attributeObject(
                    name, [&, &tensor = tensor] { addTensor(tensor); });
            },
            Layout::Lines);
        json.attributeValues("lists", spellChecksums(lists));
        json.attribute("checksum", spellChecksum(0));
      },
      Layout::Lines);
  std::string text = json.take() + '\n';
  size_t end = text.rfind(ending);
  std::string sum =
      spellChecksum(checksum(std::string_view(text).substr(0, end)));
  return text.replace(end + ending.size() + 1, sum.size(), sum);
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

Expected<std::string> fsdp::archive::readText(const std::string &path) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.error();
  if (file->size() > maxListBytes)
    return Error::damage(path + ": expected at most 1 GiB, found " +
                         std::to_string(file->size()) + " bytes");
  return file->read();
}

Expected<uint64_t> fsdp::archive::readChecksum(const JSONCursor &value) {
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

static Expected<int64_t> readNumber(const JSONCursor &value, int64_t least,
                                    int64_t most) {
  auto number = value.asInteger();
  if (!number || *number < least || *number > most)
    return value.expected("a number from " + std::to_string(least) + " to " +
                          std::to_string(most));
  return number;
}

Expected<int64_t> fsdp::archive::readCount(const JSONCursor &object,
                                           const char *name, int64_t least,
                                           int64_t most) {
  auto field = object.at(name);
  return field ? readNumber(*field, least, most) : field.error();
}

static Expected<std::vector<int64_t>> readNumbers(const JSONCursor &value,
                                                  int64_t least, int64_t most) {
  auto elements = value.elements();
  if (!elements)
    return elements.error();
  std::vector<int64_t> numbers;
  for (const JSONCursor &element : *elements) {
    auto number = readNumber(element, least, most);
    if (!number)
      return number.error();
    numbers.push_back(*number);
  }
  return numbers;
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

static std::optional<Error> readHolders(const JSONCursor &value, uint32_t ranks,
                                        HeldTensor &tensor) {
  auto members = value.members();
  if (!members)
    return members.error();
  for (const JSONCursor::Member &member : *members)
    if (member.key == "order") {
      auto order = readNumbers(member.value, 0, INT64_MAX);
      if (!order)
        return order.error();
      std::vector<int64_t> sorted = *order;
      std::sort(sorted.begin(), sorted.end());
      if (sorted != tensor.order)
        return member.value.expected("each of the " +
                                     std::to_string(tensor.order.size()) +
                                     " axes once");
      tensor.order = std::move(*order);
    }
  auto field = value.at("ranks");
  if (!field)
    return field.error();
  auto runs = field->elements();
  if (!runs)
    return runs.error();
  for (const JSONCursor &each : *runs) {
    auto run = readNumbers(each, 0, INT64_MAX);
    if (!run)
      return run.error();
    if (run->size() != 4 || (*run)[0] > maxRanks || (*run)[1] > maxRanks ||
        (*run)[2] > maxRanks)
      return each.expected("a rank, a step to the next one, how many, and how "
                           "many elements each has");
    tensor.runs.push_back(
        {static_cast<uint32_t>((*run)[0]), static_cast<uint32_t>((*run)[1]),
         static_cast<uint32_t>((*run)[2]), static_cast<uint64_t>((*run)[3])});
  }
  if (auto error = tensor.check(ranks))
    return Error{field->where() + ": " + error->message};
  return std::nullopt;
}

/// `withHolders`: as from version 2 on.
static Expected<std::map<std::string, HeldTensor>>
readTensors(const JSONCursor &manifest, uint32_t ranks, bool withHolders) {
  auto field = manifest.at("tensors");
  if (!field)
    return field.error();
  auto members = field->members();
  if (!members)
    return members.error();
  std::map<std::string, HeldTensor> tensors;
  for (const JSONCursor::Member &member : *members) {
    auto spec = readTensorSpec(member);
    if (!spec)
      return spec.error();
    HeldTensor tensor{
        spec->dtype, spec->shape, rowMajor(spec->shape.size()), {}};
    if (withHolders)
      if (auto error = readHolders(member.value, ranks, tensor))
        return *error;
    tensors.emplace(member.key, std::move(tensor));
  }
  return tensors;
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
             const std::map<std::string, HeldTensor> &expected) {
  for (const auto &[name, shape] : expected) {
    auto tensor = found.find(name);
    if (tensor == found.end())
      return Error::damage(folder + ": expected tensor " + name +
                           ", as its manifest says, found none");
    if (tensor->second.dtype != shape.dtype ||
        tensor->second.shape != shape.shape)
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

/// All files of all ranks: nothing says which of them have what.
static Expected<TensorFiles>
openAll(const std::string &folder, const RankFiles &ranks,
        const std::map<std::string, HeldTensor> &tensors) {
  std::vector<CheckedFile> shards;
  std::set<std::string> names;
  for (uint32_t rank = 0; rank != ranks.ranks(); ++rank) {
    auto files = ranks.readList(rank);
    if (!files)
      return files.error();
    for (CheckedFile &file : *files) {
      if (!names.insert(file.name).second)
        return Error::damage(ranks.pathOf(rank, getRankList(rank)) +
                             ": expected files of the rank alone, found " +
                             file.name + ", which another one has, too");
      if (file.name != getRankFile(rank))
        shards.push_back(std::move(file));
      else if (auto own = Safetensors::open(ranks.pathOf(rank, file.name),
                                            std::move(file.sums));
               !own)
        return own.error();
    }
  }
  auto opened = TensorFiles::open(folder, std::move(shards));
  if (!opened)
    return opened.error();
  if (auto error = checkTensors(folder, opened->tensors(), tensors))
    return *error;
  return opened;
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
  auto found = readCount(*manifest, "version", firstVersion, version);
  if (!found)
    return Error{path + ": " + found.error().message};
  bool hasHolders = *found != firstVersion;
  auto state = readState(*manifest);
  if (!state)
    return reject(state.error());
  if (auto error = checkMesh(state->mesh, state->ranks))
    return reject(*error);
  auto tensors = readTensors(*manifest, state->ranks, hasHolders);
  if (!tensors)
    return reject(tensors.error());
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
  std::vector<uint64_t> sums;
  for (const JSONCursor &list : *lists) {
    auto sum = readChecksum(list);
    if (!sum)
      return reject(sum.error());
    sums.push_back(*sum);
  }

  Checkpoint result;
  result.state = std::move(*state);
  result.ranks =
      std::make_shared<RankFiles>(folder, hasHolders, std::move(sums));
  if (!hasHolders) {
    auto files = openAll(folder, *result.ranks, *tensors);
    if (!files)
      return files.error();
    result.files = std::move(*files);
    return result;
  }
  result.held = std::make_shared<Held>(std::move(*tensors));
  TensorFiles::Tensors table;
  for (const auto &[name, tensor] : *result.held)
    table.emplace(
        name,
        TensorPieces{tensor.dtype,
                     tensor.shape,
                     {},
                     [ranks = result.ranks, held = result.held, &name = name,
                      &tensor = tensor](const Box &box,
                                        const TensorPieces::Visit &visit) {
                       return ranks->forEachPiece(name, tensor, box, visit);
                     }});
  result.files = TensorFiles::of(std::move(table));
  return result;
}

std::optional<Error> Checkpoint::verify() const {
  for (uint32_t rank = 0; rank != ranks->ranks(); ++rank)
    if (auto error = ranks->verify(rank, held.get()))
      return error;
  return std::nullopt;
}
