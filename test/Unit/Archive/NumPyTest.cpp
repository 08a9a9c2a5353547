//===- NumPyTest.cpp ------------------------------------------------------===//

#include "fsdp/Archive/NumPy.h"

#include "TempFolder.h"

using namespace fsdp::archive;

namespace {
class NumPyTest : public test::TempFolder {
protected:
  /// A file of version 1.0 with 12 bytes of elements.
  static std::string make(const std::string &header, char version = 1) {
    std::string bytes = std::string("\x93NUMPY") + version;
    bytes += '\0';
    bytes += static_cast<char>(header.size());
    bytes.append(version == 1 ? 1 : 3, '\0');
    return bytes + header + std::string(12, '\1');
  }

  std::string reject(std::string_view content) {
    auto file = InputFile::open(write("a.npy", content));
    EXPECT_TRUE(file);
    auto header = readNumPyHeader(*file);
    return header ? "accepted"
                  : header.error().message.substr(getPath("a.npy: ").size());
  }
};
} // namespace

TEST_F(NumPyTest, ReadsWhatNumPyWrites) {
  struct {
    const char *descr, *shape;
    DType dtype;
    std::vector<uint64_t> sizes;
  } cases[] = {{"<u2", "(6,)", DType::U16, {6}},
               {"<u4", "(3, 1)", DType::U32, {3, 1}},
               {"<i4", "(1, 3)", DType::I32, {1, 3}}};
  for (const auto &[descr, shape, dtype, sizes] : cases)
    for (char version : {1, 2, 3}) {
      std::string text = std::string("{'descr': '") + descr +
                         "', 'fortran_order': False, 'shape': " + shape +
                         ", }   \n";
      auto file = InputFile::open(write("a.npy", make(text, version)));
      ASSERT_TRUE(file);
      auto header = readNumPyHeader(*file);
      ASSERT_TRUE(header) << header.error().message;
      EXPECT_EQ(header->dtype, dtype);
      EXPECT_EQ(header->shape, sizes);
      EXPECT_EQ(header->offset, file->size() - 12);
    }
}

TEST_F(NumPyTest, RejectsOtherArrays) {
  EXPECT_EQ(reject(make("{'descr': '>i4', 'fortran_order': False, 'shape': "
                        "(3,), }\n")),
            "expected elements of type <u2, <u4, <i4 or <i8, found >i4");
  EXPECT_EQ(reject(make("{'descr': '<i4', 'fortran_order': True, 'shape': "
                        "(3, 1), }\n")),
            "expected an array in C order, found one in Fortran order");
  EXPECT_EQ(reject(make("{'descr': '<i4', 'fortran_order': False, 'shape': "
                        "(), }\n")),
            "expected an array of one or two axes, found one of 0");
  EXPECT_EQ(reject(make("{'descr': '<i4', 'fortran_order': False, 'shape': "
                        "(3, 1, 1), }\n")),
            "expected an array of one or two axes, found one of 3");
  EXPECT_EQ(reject(make("{'descr': [('a', '<i4')], 'fortran_order': False, "
                        "'shape': (3,), }\n")),
            "expected the header of an array of numbers, found {'descr': "
            "[('a', '<i4')], 'fortran_order");
}

TEST_F(NumPyTest, RejectsDamagedFiles) {
  const std::string whole =
      make("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n");
  EXPECT_EQ(reject(whole), "accepted");
  for (size_t size = 1; size != whole.size(); ++size)
    EXPECT_NE(reject(whole.substr(0, size)), "accepted") << size;
  EXPECT_EQ(reject(whole + "x"), "expected 12 bytes of elements, found 13");
  EXPECT_EQ(reject("\x93NUMPY"), "expected an array that numpy.save has "
                                 "written, found another file");
  std::string other = whole;
  other[6] = 9;
  EXPECT_EQ(reject(other), "expected version 1.0, 2.0 or 3.0, found 9.0");
  other = whole;
  other[9] = 1;
  EXPECT_EQ(reject(other), "expected a header of at most 70 bytes, found one "
                           "of 314");
  EXPECT_EQ(reject(make("{'descr': '<i4', 'fortran_order': False, 'shape': "
                        "(4294967296, 4294967296), }\n")),
            "expected an array that fits into the file, found a larger one");
  EXPECT_EQ(reject(make("{'descr': '<i4', 'fortran_order': False, 'shape': "
                        "(99999999999999999999,), }\n")),
            "expected an array of one or two axes, found one of 0");
  // Nothing is evaluated, and nothing is guessed.
  for (const char *text :
       {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}\n",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1+2,), }\n",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (3), }\n",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-3,), }\n",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), } x\n",
        "{'descr': '<i4', 'fortran_order': exit(), 'shape': (3,), }\n",
        "{'descr': '<i4", "{'descr': '<i4'", " "})
    EXPECT_NE(reject(make(text)), "accepted") << text;
}
