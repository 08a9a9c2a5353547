//===- WriteModel.cpp - A whole model for others --------------------------===//

#include "fsdp/Archive/WriteModel.h"

#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Archive/WriteFile.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

using namespace fsdp::archive;
namespace fs = std::filesystem;

static Error cannotWrite(const fs::path &path) {
  return {path.string() + ": cannot be written: " + std::strerror(errno)};
}

static bool isFile(const std::string &path) {
  return fs::path(path).extension() == ".safetensors";
}

static std::string withoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/')
    path.pop_back();
  return path;
}

namespace {

/// A folder with all that is written into it, or none.
class NewFolder {
public:
  explicit NewFolder(std::string path)
      : target(std::move(path)), temporary(target + ".XXXXXX") {}
  ~NewFolder() {
    std::error_code ignored;
    if (isMade)
      fs::remove_all(temporary, ignored);
  }
  NewFolder(const NewFolder &) = delete;
  NewFolder &operator=(const NewFolder &) = delete;

  std::optional<Error> make() {
    if (!::mkdtemp(temporary.data()))
      return cannotWrite(target);
    isMade = true;
    mode_t mask = ::umask(0);
    ::umask(mask);
    ::chmod(temporary.c_str(), 0777 & ~mask);
    return std::nullopt;
  }

  std::string file(const std::string &name) const {
    return temporary + "/" + name;
  }

  /// Takes the place of an empty folder.
  std::optional<Error> finish() {
    fs::path parent = fs::path(target).parent_path();
    if (!synchronize(temporary) ||
        ::rename(temporary.c_str(), target.c_str()) != 0 ||
        !synchronize(parent.empty() ? "." : parent))
      return cannotWrite(target);
    return std::nullopt;
  }

private:
  static bool synchronize(const fs::path &folder) {
    int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (descriptor < 0)
      return false;
    bool isDone = ::fsync(descriptor) == 0 || errno == EINVAL;
    ::close(descriptor);
    return isDone;
  }

  std::string target, temporary;
  bool isMade = false;
};

/// The tensors of one file.
struct Part {
  size_t begin, end;
};

} // namespace

static uint64_t countBytes(const TensorSpec &tensor) {
  return static_cast<uint64_t>(
      getDenseBytes(tensor.shape, tensor.dtype).value_or(INT64_MAX));
}

static std::vector<Part> makeParts(const std::vector<TensorSpec> &tensors,
                                   uint64_t maxBytes) {
  std::vector<Part> parts;
  uint64_t bytes = 0;
  for (size_t i = 0; i != tensors.size(); ++i) {
    uint64_t size = countBytes(tensors[i]);
    if (parts.empty() || bytes + size > maxBytes) {
      parts.push_back({i, i});
      bytes = 0;
    }
    bytes += size;
    parts.back().end = i + 1;
  }
  return parts;
}

std::optional<Error> fsdp::archive::checkModelPath(const std::string &path) {
  std::error_code ignored;
  if (isFile(path))
    return std::nullopt;
  std::string folder = withoutSlashes(path);
  if (fs::exists(folder, ignored) &&
      !(fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored)))
    return Error{"expected a folder that does not exist yet, or is empty, or "
                 "the name of a .safetensors file; found " +
                 folder};
  fs::path parent = fs::path(folder).parent_path();
  if (::access(parent.empty() ? "." : parent.c_str(), W_OK) != 0)
    return Error{folder + ": cannot be made: " + std::strerror(errno)};
  return std::nullopt;
}

std::optional<Error> fsdp::archive::writeModel(
    const std::string &path, uint64_t maxBytes,
    const std::vector<TensorSpec> &tensors, bool writes,
    const std::function<Expected<std::string>(size_t)> &read) {
  auto writePart = [&](const Part &part,
                       const std::string &file) -> std::optional<Error> {
    std::vector<TensorSpec> own(
        tensors.begin() + static_cast<ptrdiff_t>(part.begin),
        tensors.begin() + static_cast<ptrdiff_t>(part.end));
    auto readOwn = [&](size_t index) { return read(part.begin + index); };
    if (!writes) {
      for (size_t index : getFileOrder(own))
        if (Expected<std::string> content = readOwn(index); !content)
          return content.error();
      return std::nullopt;
    }
    auto written = writeSafetensors(file, own, {{"format", "pt"}}, readOwn);
    return written ? std::nullopt : std::optional(written.error());
  };
  if (isFile(path))
    return writePart({0, tensors.size()}, path);

  NewFolder folder(withoutSlashes(path));
  if (writes)
    if (auto error = folder.make())
      return error;
  std::vector<Part> parts = makeParts(tensors, maxBytes);
  std::vector<std::string> names;
  uint64_t bytes = 0;
  for (size_t i = 0; i != parts.size(); ++i) {
    char name[64] = "model.safetensors";
    if (parts.size() != 1)
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors",
                    i + 1, parts.size());
    if (auto error = writePart(parts[i], folder.file(name)))
      return error;
    names.emplace_back(name);
    for (size_t t = parts[i].begin; t != parts[i].end; ++t)
      bytes += countBytes(tensors[t]);
  }
  if (!writes)
    return std::nullopt;
  if (parts.size() != 1) {
    constexpr auto lines = JSONWriter::Layout::Lines;
    JSONWriter json;
    auto addFiles = [&] {
      for (size_t i = 0; i != parts.size(); ++i)
        for (size_t t = parts[i].begin; t != parts[i].end; ++t)
          json.attribute(tensors[t].name, names[i]);
    };
    json.object(
        [&] {
          json.attributeObject("metadata",
                               [&] { json.attribute("total_size", bytes); });
          json.attributeObject("weight_map", addFiles, lines);
        },
        lines);
    if (auto written = writeFile(folder.file("model.safetensors.index.json"),
                                 {json.take() + '\n'});
        !written)
      return written.error();
  }
  return folder.finish();
}
