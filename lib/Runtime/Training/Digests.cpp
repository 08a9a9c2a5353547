//===- Digests.cpp - Numbers for what is in files -------------------------===//

#include "Digests.h"

#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sys/stat.h>
#include <xxhash.h>

using namespace fsdp;
namespace fs = std::filesystem;

namespace {

/// Bytes, one after the other, as one number.
class Digest {
public:
  Digest() { XXH3_64bits_reset(state.get()); }

  void add(std::string_view bytes) {
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
  }
  void add(const archive::InputFile &file, std::uint64_t begin,
           std::uint64_t end) {
    constexpr std::uint64_t most = std::uint64_t{1} << 20;
    for (std::uint64_t at = begin; at < end; at += part.size()) {
      part.resize(std::min(most, end - at));
      check(file.read(at, part.data(), part.size()));
      add(part);
    }
  }
  void add(const archive::Safetensors &file, const archive::TensorInfo &tensor,
           std::uint64_t begin, std::uint64_t end) {
    part.resize(end - begin);
    check(file.read(tensor, begin, part.data(), part.size()));
    add(part);
  }

  std::string spell() const {
    return archive::spellChecksum(XXH3_64bits_digest(state.get()));
  }

private:
  static void check(const std::optional<archive::Error> &error) {
    if (error)
      throw Error(error->message);
  }

  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t *)> state{
      XXH3_createState(), XXH3_freeState};
  std::string part;
};

} // namespace

template <typename T> static T take(archive::Expected<T> expected) {
  if (!expected)
    throw Error(expected.error().message);
  return std::move(*expected);
}

std::string fsdp::digestFile(const std::string &path) {
  auto file = take(archive::InputFile::open(path));
  Digest digest;
  digest.add(file, 0, file.size());
  return digest.spell();
}

/// Of a checkpoint, the one file that has the checksums of all others.
static std::string findManifest(const std::string &path) {
  fs::path manifest = fs::path(path) / archive::Checkpoint::manifestName;
  return archive::Checkpoint::isOne(path) ? manifest.string() : std::string();
}

std::string fsdp::digestTables(const std::string &path) {
  if (std::string manifest = findManifest(path); !manifest.empty())
    return digestFile(manifest);
  auto files = take(archive::TensorFiles::open(path));
  Digest digest;
  for (const archive::Safetensors &file : files.files())
    for (const archive::TensorInfo &tensor : file.tensors()) {
      std::string text = tensor.name;
      for (std::uint64_t number :
           {std::uint64_t(tensor.dtype), tensor.offset, tensor.bytes})
        text += " " + std::to_string(number);
      for (std::int64_t size : tensor.shape)
        text += " " + std::to_string(size);
      digest.add(text + '\n');
    }
  return digest.spell();
}

std::string fsdp::digestContents(const std::string &path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    return digestFile(path);
  if (std::string manifest = findManifest(path); !manifest.empty())
    return digestFile(manifest);
  auto files = take(archive::TensorFiles::open(path));
  Digest digest;
  constexpr std::uint64_t most = std::uint64_t{1} << 16;
  for (const archive::Safetensors &file : files.files())
    for (const archive::TensorInfo &tensor : file.tensors()) {
      // At its beginning, in its middle and at its end.
      std::uint64_t bytes = std::min(most, tensor.bytes);
      for (std::uint64_t place : {0, 1, 2}) {
        std::uint64_t begin = (tensor.bytes - bytes) * place / 2;
        digest.add(file, tensor, begin, begin + bytes);
      }
    }
  return digest.spell();
}

static std::string identify(const fs::path &file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0)
    throw Error(file.string() + ": cannot read: " + std::strerror(errno));
  return std::to_string(status.st_ino) + ' ' + std::to_string(status.st_size) +
         ' ' + std::to_string(status.st_mtim.tv_sec) + ' ' +
         std::to_string(status.st_mtim.tv_nsec);
}

std::string fsdp::identifyFiles(const std::string &path) {
  std::error_code failed;
  if (path.empty())
    return path;
  if (std::string manifest = findManifest(path); !manifest.empty())
    return identify(manifest);
  if (!fs::is_directory(path, failed))
    return identify(path);
  std::vector<std::string> files;
  for (fs::directory_iterator it(path, failed), end; !failed && it != end;
       it.increment(failed))
    if (it->path().extension() == ".safetensors")
      files.push_back(it->path().filename().string() + ' ' +
                      identify(it->path()));
  if (failed)
    throw Error(path + ": cannot read: " + failed.message());
  std::ranges::sort(files);
  Digest digest;
  for (const std::string &file : files)
    digest.add(file + '\n');
  return digest.spell();
}
