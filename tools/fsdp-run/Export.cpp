//===- Export.cpp - A trained model for others ----------------------------===//

#include "Export.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Archive/WriteFile.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

using namespace fsdp;
namespace fs = std::filesystem;

namespace {

/// A folder with all that is written into it, or none.
class NewFolder {
public:
  explicit NewFolder(const fs::path &target)
      : target(target), temporary(target.string() + ".XXXXXX") {
    if (!::mkdtemp(temporary.data()))
      fail();
    mode_t mask = ::umask(0);
    ::umask(mask);
    ::chmod(temporary.c_str(), 0777 & ~mask);
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  NewFolder(const NewFolder &) = delete;
  NewFolder &operator=(const NewFolder &) = delete;

  std::string file(const std::string &name) const {
    return temporary + "/" + name;
  }

  /// Takes the place of an empty folder.
  void finish() {
    synchronize(temporary);
    if (::rename(temporary.c_str(), target.c_str()) != 0)
      fail();
    synchronize(target.has_parent_path() ? target.parent_path() : ".");
  }

private:
  [[noreturn]] void fail() const {
    throw Error("--export: " + target.string() +
                    ": cannot be written: " + std::strerror(errno),
                Failure::RankFailed);
  }
  void synchronize(const fs::path &folder) const {
    int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (descriptor < 0)
      fail();
    bool isDone = ::fsync(descriptor) == 0 || errno == EINVAL;
    ::close(descriptor);
    if (!isDone)
      fail();
  }

  fs::path target;
  std::string temporary;
};

} // namespace

static std::uint64_t countBytes(const planfile::PlanFile &plan,
                                std::uint32_t shape, planfile::DType type) {
  std::uint64_t bytes = planfile::getItemSize(type);
  for (std::int64_t size : plan.shape(shape))
    bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

Export::Export(const planfile::PlanFile &plan, const Options &options,
               const std::map<std::string, std::string> &names, bool writes)
    : path(options.exported), maxShardSize(options.maxShardSize),
      writes(writes) {
  if (path.empty())
    return;
  while (path.size() > 1 && path.back() == '/')
    path.pop_back();
  std::error_code ignored;
  if (writes && !isFile() && fs::exists(path, ignored) &&
      !(fs::is_directory(path, ignored) && fs::is_empty(path, ignored)))
    throw Error("--export: expected a folder that does not exist yet, or is "
                "empty, or the name of a .safetensors file; found " +
                path);
  fs::path parent = fs::path(path).parent_path();
  if (writes && !isFile() &&
      ::access(parent.empty() ? "." : parent.c_str(), W_OK) != 0)
    throw Error("--export: " + path +
                ": cannot be made: " + std::strerror(errno));
  auto add = [&](TensorName::Kind kind, std::string_view name,
                 std::uint64_t bytes) {
    auto found = names.find(std::string(name));
    tensors.push_back({found == names.end() ? std::string(name) : found->second,
                       {kind, name},
                       bytes});
  };
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters())
      add(TensorName::Kind::Parameter, plan.string(parameter->name()),
          countBytes(plan, parameter->sizes(), unit->storage()));
  for (std::uint32_t i = 0; i != plan->buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan->buffers()->Get(i);
    // What the plan brings along is no part of the model.
    if (buffer.role() == planfile::BufferRole::ModelBuffer &&
        buffer.root() == i && buffer.name() != planfile::none &&
        !buffer.bytes())
      add(TensorName::Kind::Buffer, plan.string(buffer.name()),
          countBytes(plan, buffer.sizes(), buffer.dtype()));
  }
  std::ranges::sort(tensors, {}, &Tensor::name);
  auto twice = std::ranges::adjacent_find(tensors, {}, &Tensor::name);
  if (twice != tensors.end())
    throw Error("--export: expected tensors with names of their own, found two "
                "that are called " +
                twice->name);
}

bool Export::isFile() const { return path.ends_with(".safetensors"); }

std::vector<std::span<const Export::Tensor>> Export::split() const {
  std::vector<std::span<const Tensor>> parts;
  std::span<const Tensor> rest = tensors;
  while (!rest.empty()) {
    std::size_t count = 1;
    std::uint64_t bytes = rest[0].bytes;
    while (count != rest.size() && bytes + rest[count].bytes <= maxShardSize)
      bytes += rest[count++].bytes;
    parts.push_back(rest.first(count));
    rest = rest.subspan(count);
  }
  return parts;
}

void Export::write(const Session &session, const std::string &file,
                   std::span<const Tensor> part) const {
  std::vector<HostTensor> values;
  for (const Tensor &each : part) {
    HostTensor value = each.tensor.kind == TensorName::Kind::Parameter
                           ? session.parameter(each.tensor.name)
                           : session.buffer(each.tensor.name);
    if (writes)
      values.push_back(std::move(value));
  }
  if (!writes)
    return;
  std::vector<archive::TensorRef> refs;
  for (std::size_t i = 0; i != part.size(); ++i)
    refs.push_back({part[i].name,
                    archive::DType(values[i].type),
                    values[i].sizes,
                    {reinterpret_cast<const char *>(values[i].bytes.data()),
                     values[i].bytes.size()}});
  auto written = archive::writeSafetensors(file, refs, {{"format", "pt"}});
  if (!written)
    throw Error("--export: " + written.error().message, Failure::RankFailed);
}

void Export::writeFolder(const Session &session) const {
  std::optional<NewFolder> folder;
  if (writes)
    folder.emplace(path);
  auto placeOf = [&](const std::string &name) {
    return folder ? folder->file(name) : name;
  };
  std::vector<std::span<const Tensor>> parts = split();
  std::string index;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i != parts.size(); ++i) {
    char name[64] = "model.safetensors";
    if (parts.size() != 1)
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors",
                    i + 1, parts.size());
    write(session, placeOf(name), parts[i]);
    for (const Tensor &each : parts[i]) {
      index += (index.empty() ? "" : ",\n    ") +
               archive::quoteJSON(each.name) + ": \"" + name + "\"";
      bytes += each.bytes;
    }
  }
  if (!folder)
    return;
  if (parts.size() != 1) {
    index = "{\n  \"metadata\": {\"total_size\": " + std::to_string(bytes) +
            "},\n  \"weight_map\": {\n    " + index + "\n  }\n}\n";
    auto written =
        archive::writeFile(placeOf("model.safetensors.index.json"), {index});
    if (!written)
      throw Error("--export: " + written.error().message, Failure::RankFailed);
  }
  folder->finish();
}

void Export::write(const Session &session) const {
  if (path.empty())
    return;
  if (isFile())
    write(session, path, tensors);
  else
    writeFolder(session);
}
