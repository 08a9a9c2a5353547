//===- CheckpointText.cpp - A folder of a checkpoint as one text ----------===//

#include "CheckpointText.h"

#include "fsdp/Archive/Checkpoint.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>

using namespace fsdp;
namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;

static constexpr std::string_view marker = "=== ";
static constexpr std::string_view ending = "  \"checksum\": ";
static constexpr std::size_t mostData = 1 << 16, mostFiles = 64;

/// The header of a safetensors file, and zeros.
static std::string addData(const std::string &header, std::size_t bytes) {
  std::string file;
  for (unsigned i = 0; i != 8; ++i)
    file += static_cast<char>(header.size() >> (8 * i));
  return file.append(header).append(bytes, '\0');
}

static Files split(std::string_view text) {
  Files files;
  while (text.starts_with(marker) && files.size() != mostFiles) {
    text.remove_prefix(marker.size());
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::size_t end = text.starts_with(marker) ? 0 : text.find("\n=== ");
    std::string content(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + (end != 0));
    std::size_t space = line.find(' '), bytes = 0;
    if (space != line.npos) {
      std::from_chars(line.data() + space + 1, line.data() + line.size(),
                      bytes);
      content = addData(content, std::min(bytes, mostData));
      line = line.substr(0, space);
    }
    files[std::string(line)] = std::move(content);
  }
  return files;
}

/// What stands for a size or a checksum of another file.
static std::string evaluate(std::string_view word, const Files &files) {
  std::size_t space = std::min(word.find(' '), word.size());
  std::string_view what = word.substr(0, space);
  auto file =
      files.find(std::string(word.substr(std::min(space + 1, word.size()))));
  if (file == files.end())
    return "0";
  if (what == "bytes")
    return std::to_string(file->second.size());
  if (what == "sum")
    return '"' + archive::spellChecksum(archive::checksum(file->second)) + '"';
  std::string sums;
  for (std::uint64_t sum : archive::BlockSums::of({file->second}).sums)
    sums += (sums.empty() ? "\"" : ",\"") + archive::spellChecksum(sum) + '"';
  return '[' + sums + ']';
}

static void fillIn(std::string &content, const Files &files) {
  for (std::size_t at = 0; (at = content.find("$(", at)) != content.npos;) {
    std::size_t end = content.find(')', at);
    if (end == content.npos)
      return;
    std::string value =
        evaluate(std::string_view(content).substr(at + 2, end - at - 2), files);
    content.replace(at, end + 1 - at, value);
    at += value.size();
  }
}

/// Lists before the manifest, which has their checksums and its own.
static void sign(Files &files) {
  for (auto &[name, content] : files)
    if (name != archive::Checkpoint::manifestName)
      fillIn(content, files);
  std::string &manifest = files[archive::Checkpoint::manifestName];
  fillIn(manifest, files);
  if (std::size_t end = manifest.rfind(ending); end != manifest.npos) {
    manifest.resize(end);
    std::uint64_t sum = archive::checksum(manifest);
    manifest.append(ending) += '"' + archive::spellChecksum(sum) + "\"\n}\n";
  }
}

void fsdp::fuzz::writeFolder(const std::string &text, const fs::path &folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  fs::create_directories(folder / "ranks");
  Files files = split(text);
  sign(files);
  for (const auto &[name, content] : files) {
    std::string_view plain = name;
    if (plain.starts_with("ranks/"))
      plain.remove_prefix(6);
    if (archive::isPlainName(plain))
      std::ofstream(folder / name, std::ios::binary) << content;
  }
}
