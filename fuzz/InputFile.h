//===- InputFile.h - The fuzzer's bytes as a file ---------------*- C++ -*-===//
//
// For readers that take a path. The file lies in a folder of its own below
// TMPDIR, which goes with the object.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_INPUTFILE_H
#define FSDP_FUZZ_INPUTFILE_H

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace fsdp::fuzz {

class InputFile {
public:
  explicit InputFile(const char *name) {
    std::string pattern =
        std::filesystem::temp_directory_path() / "fsdp-fuzz-XXXXXX";
    if (!mkdtemp(pattern.data()))
      std::abort();
    folder = pattern;
    file = folder / name;
  }
  InputFile(const InputFile &) = delete;
  InputFile &operator=(const InputFile &) = delete;
  ~InputFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  std::string path() const { return file.string(); }

  /// Replaces the file; what is mapped from the one before stays as it is.
  void write(const uint8_t *data, size_t size) const {
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char *>(data),
               static_cast<std::streamsize>(size));
  }

private:
  std::filesystem::path folder, file;
};

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_INPUTFILE_H
