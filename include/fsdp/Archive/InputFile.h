//===- InputFile.h - A regular file opened for reading ----------*- C++ -*-===//
//
// What is needed of a file is copied when it is needed. A mapping would kill
// the process with SIGBUS when somebody truncates the file, and what was
// checked in it could be changed before it is used. With checksums of its
// blocks, what is read is checked first.
//
// Any number of files may be known at once: of all of a process, those that
// were opened last stay open, and another one is opened again when it is read.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_INPUTFILE_H
#define FSDP_ARCHIVE_INPUTFILE_H

#include "fsdp/Archive/BlockSums.h"
#include "fsdp/Archive/Expected.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdp::archive {

class InputFile {
public:
  /// Rejects whatever is not a regular file, and empty files.
  static Expected<InputFile> open(const std::string &path);
  /// The same of a file that must have this size, and blocks with these
  /// checksums: `read` rejects other bytes. Not for several threads at once.
  static Expected<InputFile> open(const std::string &path, BlockSums sums);

  /// The whole of a file, such as a text. An error if it has more than `most`
  /// bytes.
  static Expected<std::string> readWhole(const std::string &path,
                                         uint64_t most = uint64_t(256) << 20);

  InputFile(InputFile &&other) noexcept;
  InputFile &operator=(InputFile &&other) noexcept;
  ~InputFile();

  /// In bytes, when it was opened.
  uint64_t size() const;

  /// The path as it was given to `open`.
  const std::string &path() const;

  /// Copies `count` bytes from `offset` on, inside of `size()`. An error if the
  /// file has been changed, or can't be read.
  std::optional<Error> read(uint64_t offset, char *to, uint64_t count) const;
  Expected<std::string> read(uint64_t offset, uint64_t count) const;
  /// The whole file.
  Expected<std::string> read() const { return read(0, size()); }

private:
  class Source;
  explicit InputFile(std::shared_ptr<Source> source);

  std::optional<Error> readPlain(uint64_t offset, char *to,
                                 uint64_t count) const;
  std::optional<Error> checkBlock(uint64_t block, const char *content) const;

  std::optional<Error> readFromBlock(uint64_t block, uint64_t size,
                                     uint64_t offset, char *to,
                                     uint64_t count) const;

  /// A block that was read last. Of all files of a process, a few have one.
  struct Block {
    std::string content;
    uint64_t number = UINT64_MAX;
  };
  /// What the file must consist of.
  struct Checks {
    BlockSums sums;
    std::shared_ptr<Block> latest = std::make_shared<Block>();
  };

  std::shared_ptr<Source> source; ///< Its descriptor ends with it.
  std::unique_ptr<Checks> checks; ///< Null: none are known.
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_INPUTFILE_H
