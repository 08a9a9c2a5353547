//===- PT2Archive.cpp - The container of an exported program --------------===//

#include "fsdp/Archive/PT2Archive.h"

#include "JSONCursor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <zip.h>
#include <zlib.h>

using namespace fsdp::archive;

// simdjson reads up to 32 bytes after a text.
static constexpr uint64_t paddingBytes = 64;
static_assert(paddingBytes >= simdjson::SIMDJSON_PADDING);

// What the .pt2 schema calls `Layout.Strided`.
static constexpr int64_t stridedLayout = 7;

//===----------------------------------------------------------------------===//
// The zip file
//===----------------------------------------------------------------------===//

namespace {
/// The file as libzip reads it. libzip does not tell where the bytes of
/// an entry lie, but it asks for them: the last read tells.
struct ZipSource {
  const InputFile &file;
  uint64_t position = 0;
  uint64_t lastRead = 0;
  zip_error_t error = {};

  static zip_int64_t callback(void *state, void *data, zip_uint64_t length,
                              zip_source_cmd_t command);
};
} // namespace

zip_int64_t ZipSource::callback(void *state, void *data, zip_uint64_t length,
                                zip_source_cmd_t command) {
  auto *source = static_cast<ZipSource *>(state);
  switch (command) {
  case ZIP_SOURCE_OPEN:
    source->position = 0;
    return 0;
  case ZIP_SOURCE_READ: {
    uint64_t count =
        std::min<uint64_t>(length, source->file.size() - source->position);
    if (source->file.read(source->position, static_cast<char *>(data), count)) {
      zip_error_set(&source->error, ZIP_ER_READ, EIO);
      return -1;
    }
    source->lastRead = source->position;
    source->position += count;
    return static_cast<zip_int64_t>(count);
  }
  case ZIP_SOURCE_SEEK: {
    zip_int64_t position = zip_source_seek_compute_offset(
        source->position, source->file.size(), data, length, &source->error);
    if (position < 0)
      return -1;
    source->position = static_cast<uint64_t>(position);
    return 0;
  }
  case ZIP_SOURCE_TELL:
    return static_cast<zip_int64_t>(source->position);
  case ZIP_SOURCE_STAT: {
    auto *status = static_cast<zip_stat_t *>(data);
    zip_stat_init(status);
    status->valid = ZIP_STAT_SIZE;
    status->size = source->file.size();
    return sizeof(*status);
  }
  case ZIP_SOURCE_ERROR:
    return zip_error_to_data(&source->error, data, length);
  case ZIP_SOURCE_CLOSE:
  case ZIP_SOURCE_FREE:
    return 0;
  case ZIP_SOURCE_SUPPORTS:
    return zip_source_make_command_bitmap(
        ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
        ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
        ZIP_SOURCE_SUPPORTS, -1);
  default:
    zip_error_set(&source->error, ZIP_ER_OPNOTSUPP, 0);
    return -1;
  }
}

Error PT2Archive::error(const std::string &where,
                        const std::string &what) const {
  return Error{file.path() + ": " + where + ": " + what};
}

Expected<size_t> PT2Archive::readDirectory() {
  ZipSource source{file};
  zip_error_t cause;
  zip_error_init(&cause);
  auto rejectZip = [&] {
    Error result = error("zip", std::string("expected a zip file, found an "
                                            "error: ") +
                                    zip_error_strerror(&cause));
    zip_error_fini(&cause);
    return result;
  };
  zip_source_t *zipSource =
      zip_source_function_create(ZipSource::callback, &source, &cause);
  if (!zipSource)
    return rejectZip();
  std::unique_ptr<zip_t, decltype(&zip_discard)> zip(
      zip_open_from_source(zipSource, ZIP_RDONLY, &cause), &zip_discard);
  if (!zip) {
    zip_source_free(zipSource);
    return rejectZip();
  }

  zip_int64_t numEntries = zip_get_num_entries(zip.get(), 0);
  std::string root;
  for (zip_int64_t i = 0; i < numEntries; ++i) {
    zip_stat_t status;
    zip_uint64_t needed = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                          ZIP_STAT_CRC | ZIP_STAT_COMP_METHOD |
                          ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip.get(), i, 0, &status) != 0 ||
        (status.valid & needed) != needed)
      return error("zip", "expected a readable directory, found entry " +
                              std::to_string(i) + " broken");
    std::string name = status.name;
    if (name == "serialized_exported_program.json")
      return error(name, "expected the archive of torch >= 2.9, found an older "
                         "one; re-save with torch >= 2.9");
    if (status.comp_method != ZIP_CM_STORE || status.size != status.comp_size)
      return error(name, "expected an entry that is not compressed, found a "
                         "compressed one");
    if (status.encryption_method != ZIP_EM_NONE)
      return error(name, "expected an entry that is not encrypted, found an "
                         "encrypted one");

    // Everything lies below one folder, whose name is arbitrary.
    size_t slash = name.find('/');
    if (slash == std::string::npos || slash == 0)
      return error(name, "expected an entry in a folder, found one outside");
    if (root.empty())
      root = name.substr(0, slash);
    if (name.compare(0, slash, root) != 0)
      return error(name, "expected all entries in the folder '" + root +
                             "', found one outside");
    name.erase(0, slash + 1);
    if (name.empty() || name.back() == '/')
      continue; // a folder

    Entry entry{name, 0, status.size, static_cast<uint32_t>(status.crc)};
    if (status.size != 0) {
      std::unique_ptr<zip_file_t, decltype(&zip_fclose)> opened(
          zip_fopen_index(zip.get(), i, 0), &zip_fclose);
      char first;
      if (!opened || zip_fread(opened.get(), &first, 1) != 1)
        return error(name, std::string("expected a readable entry, found an "
                                       "error: ") +
                               zip_strerror(zip.get()));
      if (status.size > file.size() - source.lastRead)
        return error(name, "expected an entry inside the file, found one of " +
                               std::to_string(status.size) + " bytes");
      entry.offset = source.lastRead;
    }
    if (!entryIndices.emplace(name, entries.size()).second)
      return error(name, "expected one entry of this name, found two");
    entries.push_back(std::move(entry));
  }
  return entries.size();
}

const PT2Archive::Entry *PT2Archive::findEntry(std::string_view name) const {
  auto it = entryIndices.find(name);
  return it == entryIndices.end() ? nullptr : &entries[it->second];
}

Expected<std::string> PT2Archive::readEntry(const Entry &entry) const {
  Expected<std::string> bytes = file.read(entry.offset, entry.bytes);
  if (!bytes)
    return bytes.error();
  auto *data = reinterpret_cast<const unsigned char *>(bytes->data());
  if (crc32_z(crc32_z(0, nullptr, 0), data, bytes->size()) != entry.checksum)
    return error(entry.name,
                 "expected bytes that match the checksum, found others");
  return bytes;
}

Expected<std::string> PT2Archive::readText(const std::string &name) const {
  const Entry *entry = findEntry(name);
  if (!entry)
    return error(name, "expected an entry in the archive, found none");
  return readEntry(*entry);
}

//===----------------------------------------------------------------------===//
// The archive
//===----------------------------------------------------------------------===//

Expected<size_t> PT2Archive::checkFormat() {
  // Programs of other kinds (TorchScript, torch.save) have no archive_format.
  static const std::pair<const char *, std::string_view> texts[] = {
      {"archive_format", "pt2"},
      {"archive_version", "0"},
      {"byteorder", "little"}};
  for (const auto &[name, wanted] : texts) {
    auto text = readText(name);
    if (!text)
      return text.error();
    if (*text != wanted)
      return error(name, "expected '" + std::string(wanted) + "', found " +
                             (text->size() > 60 ? std::string("a long text")
                                                : "'" + *text + "'"));
  }
  for (const Entry &entry : entries) {
    std::string_view name = entry.name;
    bool isTensor = name.rfind("data/weights/", 0) == 0 ||
                    name.rfind("data/constants/", 0) == 0;
    if (isTensor && name.size() > 3 && name.substr(name.size() - 3) == ".pt")
      return error(entry.name, "expected raw tensors, found a pickle; re-save "
                               "with torch >= 2.9");
  }
  return entries.size();
}

Expected<size_t> PT2Archive::findModel() {
  static constexpr std::string_view folder = "models/", suffix = ".json";
  const Entry *found = nullptr;
  for (const Entry &entry : entries) {
    std::string_view name = entry.name;
    if (name.rfind(folder, 0) != 0 ||
        name.size() <= folder.size() + suffix.size() ||
        name.substr(name.size() - suffix.size()) != suffix)
      continue;
    if (found)
      return error("models", "expected one program, found '" + found->name +
                                 "' and '" + entry.name + "'");
    found = &entry;
  }
  if (!found)
    return error("models", "expected one program, found none");
  auto text = readEntry(*found);
  if (!text)
    return text.error();
  modelBytes = text->size();
  modelText = std::move(*text);
  modelText.append(paddingBytes, ' ');
  model = found->name.substr(folder.size(), found->name.size() - folder.size() -
                                                suffix.size());
  return modelBytes;
}

/// Reads a number of the schema that may be symbolic elsewhere: {"as_int": 3}.
static Expected<int64_t> readSize(const JSONCursor &value) {
  auto member = value.at("as_int");
  if (!member)
    return member.error();
  auto number = member->asInteger();
  if (!number)
    return number.error();
  if (*number < 0)
    return member->expected("at least 0");
  return *number;
}

static Expected<std::vector<int64_t>> readSizes(const JSONCursor &parent,
                                                std::string_view key) {
  auto list = parent.at(key);
  if (!list)
    return list.error();
  auto values = list->elements();
  if (!values)
    return values.error();
  std::vector<int64_t> result;
  for (const JSONCursor &value : *values) {
    auto size = readSize(value);
    if (!size)
      return size.error();
    result.push_back(*size);
  }
  return result;
}

/// The bytes of a record that a strided tensor reaches, or nothing if that
/// does not fit into an int64_t.
static std::optional<int64_t> getReach(const Payload &payload) {
  int64_t last = payload.storageOffset;
  bool overflow = false, empty = false;
  for (size_t i = 0; i != payload.sizes.size(); ++i) {
    int64_t step = 0;
    empty |= payload.sizes[i] == 0;
    overflow |=
        __builtin_mul_overflow(payload.sizes[i] - 1, payload.strides[i], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  if (empty)
    return 0;
  overflow |= __builtin_add_overflow(last, 1, &last);
  overflow |= __builtin_mul_overflow(
      last, static_cast<int64_t>(getItemSize(payload.dtype)), &last);
  if (overflow)
    return std::nullopt;
  return last;
}

/// Reads all of a PayloadMeta but what only the archive knows: the record.
static Expected<size_t> readPayload(const JSONCursor &value, Payload &payload) {
  auto record = value.at("path_name");
  auto isParam = value.at("is_param");
  auto usePickle = value.at("use_pickle");
  for (const auto *field : {&record, &isParam, &usePickle})
    if (!*field)
      return field->error();
  auto pickled = usePickle->asBool();
  if (!pickled)
    return pickled.error();
  if (*pickled)
    return Error{value.where() + ": expected a plain tensor, found a tensor "
                                 "subclass or custom object"};
  auto recordName = record->asString();
  if (!recordName)
    return recordName.error();
  auto param = isParam->asBool();
  if (!param)
    return param.error();
  payload.record = std::string(*recordName);
  payload.isParam = *param;

  auto meta = value.at("tensor_meta");
  if (!meta)
    return meta.error();
  auto dtypeField = meta->at("dtype");
  auto layoutField = meta->at("layout");
  auto gradField = meta->at("requires_grad");
  auto offsetField = meta->at("storage_offset");
  for (const auto *field :
       {&dtypeField, &layoutField, &gradField, &offsetField})
    if (!*field)
      return field->error();
  auto code = dtypeField->asInteger();
  auto dtype = code ? getDTypeFromSchemaCode(*code) : std::nullopt;
  if (!dtype)
    return dtypeField->expected("the number of a known element type");
  payload.dtype = *dtype;
  auto layout = layoutField->asInteger();
  if (!layout || *layout != stridedLayout)
    return layoutField->expected("7, a strided tensor");
  auto grad = gradField->asBool();
  if (!grad)
    return grad.error();
  payload.requiresGrad = *grad;
  auto offset = readSize(*offsetField);
  if (!offset)
    return offset.error();
  payload.storageOffset = *offset;

  auto sizes = readSizes(*meta, "sizes");
  if (!sizes)
    return sizes.error();
  auto strides = readSizes(*meta, "strides");
  if (!strides)
    return strides.error();
  if (sizes->size() != strides->size())
    return Error{meta->where() + ".strides: expected " +
                 std::to_string(sizes->size()) + " strides, found " +
                 std::to_string(strides->size())};
  payload.sizes = std::move(*sizes);
  payload.strides = std::move(*strides);
  return payload.sizes.size();
}

Expected<size_t> PT2Archive::readTable(const std::string &folder,
                                       Table &table) {
  const std::string prefix = "data/" + folder + "/";
  const std::string name = prefix + model + "_" + folder + "_config.json";
  auto text = readText(name);
  if (!text)
    return text.error();
  auto reject = [&](const Error &why) {
    return Error{file.path() + ": " + why.message};
  };
  simdjson::dom::parser parser;
  auto document = JSONCursor::parse(parser, *text, name);
  if (!document)
    return reject(document.error());
  auto config = document->at("config");
  if (!config)
    return reject(config.error());
  auto members = config->members();
  if (!members)
    return reject(members.error());

  for (const JSONCursor::Member &member : *members) {
    Payload payload = {};
    payload.name = std::string(member.key);
    if (auto rank = readPayload(member.value, payload); !rank)
      return reject(rank.error());
    const std::string &where = member.value.where();
    const Entry *entry = findEntry(prefix + payload.record);
    if (!entry)
      return error(where + ".path_name", "expected an entry '" + prefix +
                                             payload.record + "', found none");
    payload.entry = entry - entries.data();
    payload.recordBytes = entry->bytes;
    std::optional<int64_t> reach = getReach(payload);
    if (!reach)
      return error(where + ".tensor_meta",
                   "expected less than 2^63 bytes, found more");
    uint64_t needed = static_cast<uint64_t>(*reach);
    if (payload.recordBytes != 0 && needed > payload.recordBytes)
      return error(where + ".tensor_meta",
                   "expected a tensor inside the " +
                       std::to_string(payload.recordBytes) + " bytes of '" +
                       payload.record + "', found one of " +
                       std::to_string(needed));
    table.indices.emplace(payload.name, table.payloads.size());
    table.payloads.push_back(std::move(payload));
  }
  return table.payloads.size();
}

// The ninth byte is the opening brace of a safetensors header; in a zip file it
// is a compression method, of which there are fewer.
bool PT2Archive::isArchive(const std::string &path) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return false;
  Expected<std::string> start =
      file->read(0, std::min<uint64_t>(9, file->size()));
  return start && start->substr(0, 2) == "PK" &&
         (start->size() < 9 || start->back() != '{');
}

Expected<PT2Archive> PT2Archive::open(const std::string &path) {
  Expected<InputFile> file = InputFile::open(path);
  if (!file)
    return file.error();
  PT2Archive result(std::move(*file));
  if (auto count = result.readDirectory(); !count)
    return count.error();
  if (auto count = result.checkFormat(); !count)
    return count.error();
  if (auto size = result.findModel(); !size)
    return size.error();
  if (auto count = result.readTable("weights", result.weightTable); !count)
    return count.error();
  if (auto count = result.readTable("constants", result.constantTable); !count)
    return count.error();
  return result;
}

const Payload *PT2Archive::Table::find(std::string_view name) const {
  auto it = indices.find(name);
  return it == indices.end() ? nullptr : &payloads[it->second];
}

Expected<std::string> PT2Archive::readRecord(const Payload &payload) const {
  assert(payload.entry < entries.size() && "not a payload of this archive");
  return readEntry(entries[payload.entry]);
}
