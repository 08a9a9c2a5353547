//===- ArchiveMutator.cpp - Damages what lies in a .pt2 archive -----------===//

#include "ArchiveMutator.h"

#include "TextMutator.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>
#include <zip.h>

using namespace fsdp::fuzz;

namespace {
struct Entry {
  std::string name, bytes;
};
} // namespace

using Entries = std::vector<Entry>;
using ZipHandle = std::unique_ptr<zip_t, decltype(&zip_discard)>;

static zip_source_t *makeSource(const void *data, size_t size) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t *source = zip_source_buffer_create(data, size, 0, &error);
  if (!source)
    std::abort();
  zip_error_fini(&error);
  return source;
}

static ZipHandle open(zip_source_t *source, int flags) {
  zip_error_t error;
  zip_error_init(&error);
  ZipHandle zip(zip_open_from_source(source, flags, &error), &zip_discard);
  if (!zip)
    zip_source_free(source);
  zip_error_fini(&error);
  return zip;
}

/// Nothing if the archive can't be read.
static std::optional<Entries> read(const std::string &file) {
  ZipHandle zip = open(makeSource(file.data(), file.size()), ZIP_RDONLY);
  if (!zip)
    return std::nullopt;
  Entries entries;
  for (zip_int64_t i = 0, e = zip_get_num_entries(zip.get(), 0); i < e; ++i) {
    zip_stat_t status;
    std::unique_ptr<zip_file_t, decltype(&zip_fclose)> opened(
        zip_fopen_index(zip.get(), i, 0), &zip_fclose);
    if (zip_stat_index(zip.get(), i, 0, &status) != 0 || !opened ||
        !(status.valid & ZIP_STAT_SIZE) || status.size > file.size())
      return std::nullopt;
    Entry entry{status.name, std::string(status.size, '\0')};
    if (zip_fread(opened.get(), entry.bytes.data(), status.size) !=
        static_cast<zip_int64_t>(status.size))
      return std::nullopt;
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// Empty if two entries have the same name.
static std::string write(const Entries &entries) {
  zip_source_t *target = makeSource(nullptr, 0);
  ZipHandle zip = open(target, ZIP_TRUNCATE);
  if (!zip)
    return {};
  zip_source_keep(target); // its bytes are read when the archive is closed
  std::unique_ptr<zip_source_t, decltype(&zip_source_free)> kept(
      target, &zip_source_free);
  for (const Entry &entry : entries) {
    zip_source_t *source =
        zip_source_buffer(zip.get(), entry.bytes.data(), entry.bytes.size(), 0);
    zip_int64_t index =
        zip_file_add(zip.get(), entry.name.c_str(), source, ZIP_FL_ENC_RAW);
    if (index < 0) {
      zip_source_free(source);
      return {};
    }
    zip_set_file_compression(zip.get(), static_cast<zip_uint64_t>(index),
                             ZIP_CM_STORE, 0);
    zip_file_set_mtime(zip.get(), static_cast<zip_uint64_t>(index), 0, 0);
  }
  if (zip_close(zip.get()) != 0)
    return {};
  static_cast<void>(zip.release());
  std::string bytes;
  zip_stat_t status;
  if (zip_source_stat(target, &status) != 0 || zip_source_open(target) != 0)
    return {};
  bytes.resize(status.size);
  if (zip_source_read(target, bytes.data(), bytes.size()) !=
      static_cast<zip_int64_t>(bytes.size()))
    bytes.clear();
  zip_source_close(target);
  return bytes;
}

static bool endsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.substr(text.size() - suffix.size()) == suffix;
}

/// The program, or null.
static Entry *findProgram(Entries &entries) {
  for (Entry &entry : entries)
    if (entry.name.find("/models/") != entry.name.npos &&
        endsWith(entry.name, ".json"))
      return &entry;
  return nullptr;
}

std::string fsdp::fuzz::mutateArchive(const std::string &file, Random &random,
                                      size_t maxSize) {
  std::optional<Entries> entries = read(file);
  if (!entries || entries->empty() || random.once(20))
    return mutateBytes(file, maxSize);
  Entry *program = findProgram(*entries);
  Entry &entry = program && !random.once(4) ? *program : random.pick(*entries);
  size_t mostBytes =
      entry.bytes.size() + maxSize - std::min(maxSize, file.size());
  if (random.once(32))
    std::swap(entry.name, random.pick(*entries).name);
  else if (random.once(32))
    entries->erase(entries->begin() + (&entry - entries->data()));
  else if (endsWith(entry.name, ".json"))
    entry.bytes = mutateText(std::move(entry.bytes), random, mostBytes);
  else
    entry.bytes = mutateBytes(std::move(entry.bytes), mostBytes);
  std::string result = write(*entries);
  return result.empty() || result.size() > maxSize ? file : result;
}

std::string fsdp::fuzz::spliceArchive(const std::string &file,
                                      const std::string &other,
                                      Random &random) {
  std::optional<Entries> into = read(file), from = read(other);
  Entry *program = into ? findProgram(*into) : nullptr;
  Entry *source = from ? findProgram(*from) : nullptr;
  if (!program || !source)
    return file;
  program->bytes = spliceText(program->bytes, source->bytes, random);
  return write(*into);
}
