//===- PT2Archive.h - The container of an exported program ------*- C++ -*-===//
//
// Opens a `.pt2` file as torch.export.save writes it (torch 2.9 and later): a
// zip file whose entries are not compressed, with the program as JSON and the
// weights as raw storages. This is the container only; what the JSON means is
// the importer's business. Weights are read when they are asked for. An archive
// is untrusted input.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_PT2ARCHIVE_H
#define FSDP_ARCHIVE_PT2ARCHIVE_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/InputFile.h"

#include <map>
#include <vector>

namespace fsdp::archive {

/// A tensor of the archive: a strided window of a record. Several tensors may
/// name one record, which is how tied parameters and other aliases are kept.
struct Payload {
  /// The fully qualified name: "transformer.wte.weight".
  std::string name;
  /// The record below `data/weights` or `data/constants`: "weight_0".
  std::string record;
  bool isParam;
  bool requiresGrad;
  DType dtype;
  /// In elements; not negative, and inside the record where it has bytes.
  std::vector<int64_t> sizes, strides;
  /// Of the first element, in elements from the start of the record.
  int64_t storageOffset;
  /// The size of the record in bytes. 0 if the archive knows the shape only:
  /// `record` then says nothing about aliases.
  uint64_t recordBytes;

  /// False for an archive without weights (and for an empty tensor).
  bool hasBytes() const { return recordBytes != 0; }

private:
  friend class PT2Archive;
  uint64_t entry;
};

/// An archive opened for reading.
class PT2Archive {
public:
  /// Opens the archive at `path`; checks the container, the tables of weights
  /// and constants, and the checksums of everything but the tensors' bytes.
  static Expected<PT2Archive> open(const std::string &path);

  /// True if the file at `path` begins as archives do, and not as a
  /// safetensors file whose header has that length.
  static bool isArchive(const std::string &path);

  const std::string &path() const { return file.path(); }

  /// The name of the one program in the archive, usually "model".
  const std::string &modelName() const { return model; }

  /// The program as JSON text. At least 64 readable bytes follow it, so
  /// simdjson may parse it in place.
  std::string_view modelJSON() const {
    return std::string_view(modelText).substr(0, modelBytes);
  }

  /// Parameters and persistent buffers in the archive's order.
  const std::vector<Payload> &weights() const { return weightTable.payloads; }
  /// Constants and buffers that are in no state_dict, in the archive's order.
  const std::vector<Payload> &constants() const {
    return constantTable.payloads;
  }

  /// The weight or constant called `name`, or null.
  const Payload *findWeight(std::string_view name) const {
    return weightTable.find(name);
  }
  const Payload *findConstant(std::string_view name) const {
    return constantTable.find(name);
  }

  /// The bytes of the record that `payload`, one of this archive's, lies in;
  /// empty if it has none. Reads all of them once to compare the checksum.
  Expected<std::string> readRecord(const Payload &payload) const;

private:
  /// One file in the zip.
  struct Entry {
    std::string name; // below the root folder
    uint64_t offset, bytes;
    uint32_t checksum;
  };
  struct Table {
    std::vector<Payload> payloads;
    std::map<std::string, size_t, std::less<>> indices;
    const Payload *find(std::string_view name) const;
  };

  explicit PT2Archive(InputFile file) : file(std::move(file)) {}

  Expected<size_t> readDirectory();
  Expected<size_t> checkFormat();
  Expected<size_t> findModel();
  Expected<size_t> readTable(const std::string &folder, Table &table);

  const Entry *findEntry(std::string_view name) const;
  Expected<std::string> readEntry(const Entry &entry) const;
  Expected<std::string> readText(const std::string &name) const;
  Error error(const std::string &where, const std::string &what) const;

  InputFile file;
  std::vector<Entry> entries;
  std::map<std::string, size_t, std::less<>> entryIndices;
  std::string model;
  std::string modelText;
  size_t modelBytes = 0; // ahead of the padding
  Table weightTable, constantTable;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_PT2ARCHIVE_H
