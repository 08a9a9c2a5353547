//===- SafetensorsTest.cpp ------------------------------------------------===//

#include "fsdp/Archive/Safetensors.h"

#include "Support/Zip.h"
#include "TempFolder.h"

using namespace fsdp::archive;
using fsdp::test::littleEndian;

namespace {
class SafetensorsTest : public test::TempFolder {
protected:
  /// The error, without the path, for a file of this header and data.
  std::string getError(const std::string &header, const std::string &data) {
    return getRawError(littleEndian(header.size(), 8) + header + data);
  }
  std::string getRawError(const std::string &content) {
    std::string path = write("bad.safetensors", content);
    auto file = Safetensors::open(path);
    if (file)
      return "";
    EXPECT_EQ(file.error().message.rfind(path + ": ", 0), 0u);
    return file.error().message.substr(path.size() + 2);
  }
  /// The error for one tensor 'w' with this description and 8 bytes of data.
  std::string getTensorError(const std::string &description) {
    return getError("{\"w\":" + description + "}", "12345678");
  }
};
} // namespace

TEST_F(SafetensorsTest, ReadsWhatPythonWrote) {
  auto file = Safetensors::open(FSDP_FIXTURES "/gpt2_ref.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 31u);
  const TensorInfo *loss = file->find("loss");
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->dtype, DType::F32);
  EXPECT_TRUE(loss->shape.empty());
  EXPECT_EQ(loss->bytes, 4u);
  const TensorInfo *input = file->find("in_0");
  ASSERT_NE(input, nullptr);
  EXPECT_EQ(input->dtype, DType::I64);
  EXPECT_EQ(file->find("no such tensor"), nullptr);
}

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const std::string bytes = "abcdefghijklmnopqrstuvwxyz";
  std::string_view all = bytes;
  std::vector<TensorRef> tensors = {
      {"flags", DType::Bool, {3}, all.substr(0, 3)},
      {"half \"quoted\" \\ \n \xc3\xa9", DType::BF16, {2, 2}, all.substr(3, 8)},
      {"wide", DType::F64, {}, all.substr(11, 8)},
      {"none", DType::F32, {0, 7}, {}}};
  std::string path = getPath("out.safetensors");
  write("out.safetensors", "what was there before");
  auto size = writeSafetensors(path, tensors, {{"format", "pt"}, {"a", "\""}});
  ASSERT_TRUE(size) << size.error().message;
  EXPECT_EQ(*size, std::filesystem::file_size(path));

  auto file = Safetensors::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->metadata(),
            (SafetensorsMetadata{{"format", "pt"}, {"a", "\""}}));
  ASSERT_EQ(file->tensors().size(), tensors.size());
  EXPECT_EQ(file->tensors().front().name, "wide");
  for (const TensorRef &tensor : tensors) {
    const TensorInfo *copy = file->find(tensor.name);
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy->dtype, tensor.dtype);
    EXPECT_EQ(copy->shape, tensor.shape);
    std::string content(copy->bytes, '\0');
    EXPECT_FALSE(file->read(*copy, 0, content.data(), copy->bytes));
    EXPECT_EQ(content, tensor.bytes);
    // Aligned, because the header is padded and large elements come first.
    EXPECT_EQ(copy->offset % (copy->bytes ? getItemSize(copy->dtype) : 1), 0u);
  }
  // Nothing else is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(SafetensorsTest, RejectsToWriteNonsense) {
  auto getWriteError = [&](std::vector<TensorRef> tensors) {
    std::string path = getPath("out.safetensors");
    auto size = writeSafetensors(path, tensors);
    EXPECT_FALSE(std::filesystem::exists(path));
    return size ? "" : size.error().message.substr(path.size() + 2);
  };
  EXPECT_EQ(getWriteError({{"w", DType::F32, {2}, "1234"}}),
            "tensor 'w': expected as many bytes as the shape has, found 4");
  EXPECT_EQ(getWriteError({{"w", DType::C128, {}, "1234567812345678"}}),
            "tensor 'w': expected an element type that the format has, found "
            "complex<f64>");
  TensorRef same{"w", DType::U8, {1}, "1"};
  EXPECT_EQ(getWriteError({same, same}),
            "tensor 'w': expected a name of its own, found one that is taken");
  auto size = writeSafetensors(getPath("no/folder"), {same});
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().message,
            getPath("no/folder") + ": cannot create the file: No such file or "
                                   "directory");
}

TEST_F(SafetensorsTest, RejectsBadHeaders) {
  EXPECT_EQ(getRawError("1234"), "header length: expected 8 bytes, found 4");
  EXPECT_EQ(getRawError(littleEndian(3, 8) + "{}"),
            "header length: expected at most 2, found 3");
  EXPECT_EQ(getRawError(littleEndian(UINT64_MAX, 8) + "{}"),
            "header length: expected at most 2, found 18446744073709551615");
  EXPECT_EQ(getError("[]", ""), "header: expected an object, found an array");
  EXPECT_EQ(getError("{\"w\xff\":1}", "").substr(0, 39),
            "header: expected JSON, found an error: ");
  EXPECT_EQ(getError("{} {}", "").substr(0, 39),
            "header: expected JSON, found an error: ");
  EXPECT_EQ(getError("{\"__metadata__\":{\"a\":1}}", ""),
            "header.__metadata__.a: expected a string, found 1");
  EXPECT_EQ(getError("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", ""),
            "header.__metadata__: expected distinct keys, found 'a' twice");
  const std::string byte =
      "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
  EXPECT_EQ(getError("{\"w\":" + byte + ",\"w\":" + byte + "}", "1"),
            "header: expected distinct keys, found 'w' twice");
}

// The limit holds for files that are as long as they say, too.
TEST_F(SafetensorsTest, RejectsLongHeaders) {
  std::string path = write("bad.safetensors", littleEndian(100'000'001, 8));
  std::filesystem::resize_file(path, 200'000'000);
  auto file = Safetensors::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message,
            path + ": header length: expected at most 100000000, found "
                   "100000001");
}

TEST_F(SafetensorsTest, RejectsBadTensors) {
  EXPECT_EQ(getTensorError("3"), "header.w: expected an object, found 3");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2]}"),
            "header.w: expected a member 'data_offsets', found none");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F31\",\"shape\":[2],"
                           "\"data_offsets\":[0,8]}"),
            "header.w.dtype: expected a known element type, found 'F31'");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[-2],"
                           "\"data_offsets\":[0,8]}"),
            "header.w.shape[0]: expected a size of at least 0, found -2");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2.0],"
                           "\"data_offsets\":[0,8]}"),
            "header.w.shape[0]: expected a size of at least 0, found 2.0");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[3],"
                           "\"data_offsets\":[0,8]}"),
            "header.w.data_offsets: expected 12 bytes, found 8");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\","
                           "\"shape\":[4294967296,4294967296],"
                           "\"data_offsets\":[0,8]}"),
            "header.w.shape: expected less than 2^63 bytes, found more");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2],"
                           "\"data_offsets\":[4,12]}"),
            "header.w.data_offsets[1]: expected an offset from 0 to 8, found "
            "12");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2],"
                           "\"data_offsets\":[8,0]}"),
            "header.w.data_offsets[1]: expected at least 8, found 0");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2],"
                           "\"data_offsets\":[0,4,8]}"),
            "header.w.data_offsets: expected two offsets, found 3");
  EXPECT_EQ(getTensorError("{\"dtype\":\"F32\",\"shape\":[2],"
                           "\"data_offsets\":[0,8],\"strides\":[1]}"),
            "header.w.strides: expected dtype, shape and data_offsets only, "
            "found 'strides'");
}

TEST_F(SafetensorsTest, RejectsHolesAndOverlaps) {
  auto describe = [](const std::string &name, int begin, int end) {
    return name + "\":{\"dtype\":\"U8\",\"shape\":[" +
           std::to_string(end - begin) + "],\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  EXPECT_EQ(
      getError("{\"" + describe("a", 0, 3) + ",\"" + describe("b", 4, 8) + "}",
               "12345678"),
      "header.b: expected to begin at byte 3, where the one before ends, "
      "found 4");
  EXPECT_EQ(
      getError("{\"" + describe("b", 2, 8) + ",\"" + describe("a", 0, 3) + "}",
               "12345678"),
      "header.b: expected to begin at byte 3, where the one before ends, "
      "found 2");
  EXPECT_EQ(getError("{\"" + describe("a", 0, 3) + "}", "1234"),
            "data: expected 3 bytes, found 4");
  EXPECT_EQ(getError("{}", ""), "");
}
