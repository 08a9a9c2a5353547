//===- Files.h - Files made by a test ---------------------------*- C++ -*-===//
//
// A folder of its own, removed with the object, and tensors to put into it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_RUNTIME_FILES_H
#define FSDP_TEST_UNIT_RUNTIME_FILES_H

#include "fsdp/Archive/Safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fsdp::test {

class Files {
public:
  Files() {
    std::string pattern = ::testing::TempDir() + "fsdp-files-XXXXXX";
    if (!mkdtemp(pattern.data()))
      std::abort();
    folder = pattern + "/";
  }
  Files(const Files &) = delete;
  Files &operator=(const Files &) = delete;
  ~Files() { std::filesystem::remove_all(folder); }

  std::string path(const std::string &name) const { return folder + name; }

  /// A tensor of the next file; one of the same name takes its place.
  void addBytes(const std::string &name, std::vector<int64_t> sizes,
                archive::DType dtype, std::string content) {
    std::erase_if(tensors,
                  [&](const auto &other) { return other.name == name; });
    contents.push_back(std::move(content));
    tensors.push_back({name, dtype, std::move(sizes), contents.back()});
  }
  template <typename T>
  void add(const std::string &name, std::vector<int64_t> sizes,
           const std::vector<T> &values) {
    constexpr archive::DType dtype =
        std::is_same_v<T, float>     ? archive::DType::F32
        : std::is_same_v<T, double>  ? archive::DType::F64
        : std::is_same_v<T, int64_t> ? archive::DType::I64
                                     : archive::DType::I32;
    addBytes(name, std::move(sizes), dtype,
             {reinterpret_cast<const char *>(values.data()),
              values.size() * sizeof(T)});
  }
  void remove(const std::string &name) {
    std::erase_if(tensors,
                  [&](const auto &other) { return other.name == name; });
  }

  /// Writes the tensors and returns the path.
  std::string write(const std::string &name,
                    const archive::SafetensorsMetadata &metadata = {}) const {
    auto size = archive::writeSafetensors(path(name), tensors, metadata);
    EXPECT_TRUE(size) << size.error().message;
    return path(name);
  }
  std::string writeBytes(const std::string &name,
                         const std::string &content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  /// A sentence without the folder, which is another in every run.
  std::string withoutFolder(std::string text) const {
    for (size_t at; (at = text.find(folder)) != std::string::npos;)
      text.erase(at, folder.size());
    return text;
  }

private:
  std::string folder;
  std::deque<std::string> contents;
  std::vector<archive::TensorRef> tensors;
};

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_FILES_H
