//===- TempFolder.h - A place for files made by a test ----------*- C++ -*-===//
//
// A folder of its own for each test, removed with it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_ARCHIVE_TEMPFOLDER_H
#define FSDP_TEST_UNIT_ARCHIVE_TEMPFOLDER_H

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace fsdp::archive::test {

/// A fixture with a temporary folder.
class TempFolder : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fsdp-archive-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string getPath(const std::string &name) const {
    return folder + "/" + name;
  }
  /// Writes a file and returns its path.
  std::string write(const std::string &name, std::string_view content) const {
    std::ofstream(getPath(name), std::ios::binary) << content;
    return getPath(name);
  }

  std::string folder;
};

inline std::string readFile(const std::string &path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

} // namespace fsdp::archive::test

#endif // FSDP_TEST_UNIT_ARCHIVE_TEMPFOLDER_H
