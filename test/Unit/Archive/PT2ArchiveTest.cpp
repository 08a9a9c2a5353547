//===- PT2ArchiveTest.cpp -------------------------------------------------===//

#include "fsdp/Archive/PT2Archive.h"

#include "Support/Replace.h"
#include "Support/Zip.h"
#include "TempFolder.h"

using namespace fsdp::archive;
using fsdp::test::makeZip;
using fsdp::test::replace;
using fsdp::test::ZipEntry;
using test::readFile;

namespace {
const std::string meta = "{\"dtype\":7,\"sizes\":[{\"as_int\":2},"
                         "{\"as_int\":3}],\"requires_grad\":true,\"device\":{"
                         "\"type\":\"cpu\",\"index\":null},\"strides\":[{"
                         "\"as_int\":1},{\"as_int\":2}],\"storage_offset\":{"
                         "\"as_int\":1},\"layout\":7}";
const std::string payload = "{\"path_name\":\"weight_0\",\"is_param\":true,"
                            "\"use_pickle\":false,\"tensor_meta\":" +
                            meta + "}";

class PT2ArchiveTest : public test::TempFolder {
protected:
  /// A sound archive of one 2x3 parameter in a record of 28 bytes.
  std::vector<ZipEntry> entries = {
      {"any/archive_format", "pt2"},
      {"any/archive_version", "0"},
      {"any/byteorder", "little"},
      {"any/models/model.json", "{}"},
      {"any/data/weights/weight_0", std::string(28, 'w')},
      {"any/data/weights/model_weights_config.json",
       "{\"config\":{\"a.w\":" + payload + "}}"},
      {"any/data/constants/model_constants_config.json", "{\"config\":{}}"},
      {"any/extra/notes.txt", "hello"}};

  ZipEntry &getEntry(const std::string &name) {
    for (ZipEntry &entry : entries)
      if (entry.name == "any/" + name)
        return entry;
    ADD_FAILURE() << "no entry " << name;
    return entries.front();
  }
  void remove(const std::string &name) {
    entries.erase(entries.begin() + (&getEntry(name) - entries.data()));
  }
  /// The error, without the path, for this file or for `entries`.
  std::string getError(const std::string &content) {
    std::string path = write("bad.pt2", content);
    auto archive = PT2Archive::open(path);
    if (archive)
      return "";
    EXPECT_EQ(archive.error().message.rfind(path + ": ", 0), 0u);
    return archive.error().message.substr(path.size() + 2);
  }
  std::string getError() { return getError(makeZip(entries)); }
  /// The error if a piece of the description of `a.w` is another.
  std::string getPayloadError(const std::string &from, const std::string &to) {
    getEntry("data/weights/model_weights_config.json").bytes =
        "{\"config\":{\"a.w\":" + replace(payload, from, to) + "}}";
    std::string where = "data/weights/model_weights_config.json.config.a.w";
    std::string error = getError();
    EXPECT_EQ(error.rfind(where, 0), 0u) << error;
    return error.substr(std::min(error.size(), where.size()));
  }
};
} // namespace

TEST_F(PT2ArchiveTest, ReadsWhatTorchWrote) {
  auto archive = PT2Archive::open(FSDP_FIXTURES "/gpt2.pt2");
  ASSERT_TRUE(archive) << archive.error().message;
  EXPECT_EQ(archive->modelName(), "model");
  EXPECT_EQ(archive->modelJSON().size(), 324727u);
  EXPECT_EQ(archive->modelJSON().front(), '{');
  EXPECT_EQ(archive->weights().size(), 28u);
  EXPECT_TRUE(archive->constants().empty());
  const Payload *weight = archive->findWeight("m.lm_head.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_TRUE(weight->isParam);
  EXPECT_TRUE(weight->requiresGrad);
  EXPECT_EQ(weight->dtype, DType::F32);
  EXPECT_EQ(weight->sizes, (std::vector<int64_t>{128, 32}));
  EXPECT_EQ(archive->findWeight("no such weight"), nullptr);
  for (const Payload &each : archive->weights()) {
    auto bytes = archive->readRecord(each);
    ASSERT_TRUE(bytes) << bytes.error().message;
    EXPECT_EQ(bytes->size(), each.recordBytes);
  }
}

TEST_F(PT2ArchiveTest, ReadsNewerAndOtherGraphs) {
  for (const char *name : {"newer_schema/gpt2.pt2", "llama_bf16.pt2"}) {
    auto archive = PT2Archive::open(std::string(FSDP_FIXTURES "/") + name);
    ASSERT_TRUE(archive) << archive.error().message;
    EXPECT_FALSE(archive->weights().empty());
  }
}

TEST_F(PT2ArchiveTest, ReadsAllParts) {
  auto archive = PT2Archive::open(write("good.pt2", makeZip(entries)));
  ASSERT_TRUE(archive) << archive.error().message;
  EXPECT_EQ(archive->modelJSON(), "{}");
  ASSERT_EQ(archive->weights().size(), 1u);
  const Payload &weight = archive->weights().front();
  EXPECT_EQ(weight.name, "a.w");
  EXPECT_EQ(weight.record, "weight_0");
  EXPECT_EQ(weight.sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(weight.strides, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(weight.storageOffset, 1);

  PT2Archive moved = std::move(*archive);
  auto bytes = moved.readRecord(*moved.findWeight("a.w"));
  ASSERT_TRUE(bytes);
  EXPECT_EQ(*bytes, std::string(28, 'w'));
}

// Archives without weights have one empty record for all of them.
TEST_F(PT2ArchiveTest, EmptyRecordMeansShapeOnly) {
  getEntry("data/weights/weight_0").bytes = "";
  auto archive = PT2Archive::open(write("good.pt2", makeZip(entries)));
  ASSERT_TRUE(archive) << archive.error().message;
  EXPECT_FALSE(archive->weights().front().hasBytes());
  EXPECT_TRUE(archive->readRecord(archive->weights().front())->empty());
}

TEST_F(PT2ArchiveTest, RejectsWhatIsNoZip) {
  EXPECT_EQ(getError("hello"),
            "zip: expected a zip file, found an error: Not a zip archive");
  std::string file = makeZip(entries);
  EXPECT_EQ(getError(file.substr(0, file.size() / 2)),
            "zip: expected a zip file, found an error: Not a zip archive");
}

TEST_F(PT2ArchiveTest, RejectsOtherContainers) {
  getEntry("extra/notes.txt").method = 8;
  EXPECT_EQ(getError(), "any/extra/notes.txt: expected an entry that is not "
                        "compressed, found a compressed one");
  getEntry("extra/notes.txt").method = 0;
  getEntry("extra/notes.txt").flags |= 1;
  EXPECT_EQ(getError(), "any/extra/notes.txt: expected an entry that is not "
                        "encrypted, found an encrypted one");
  getEntry("extra/notes.txt").flags = 0;
  entries.push_back({"other/file", "x"});
  EXPECT_EQ(getError(), "other/file: expected all entries in the folder "
                        "'any', found one outside");
  entries.back().name = "file";
  EXPECT_EQ(getError(),
            "file: expected an entry in a folder, found one outside");
  entries.back().name = "serialized_exported_program.json";
  EXPECT_EQ(getError(), "serialized_exported_program.json: expected the "
                        "archive of torch >= 2.9, found an older one; re-save "
                        "with torch >= 2.9");
  entries.back().name = "any/byteorder";
  EXPECT_EQ(getError(),
            "byteorder: expected one entry of this name, found two");
}

TEST_F(PT2ArchiveTest, RejectsOtherFormats) {
  getEntry("byteorder").bytes = "big";
  EXPECT_EQ(getError(), "byteorder: expected 'little', found 'big'");
  getEntry("archive_version").bytes = "1";
  EXPECT_EQ(getError(), "archive_version: expected '0', found '1'");
  remove("archive_format");
  EXPECT_EQ(getError(),
            "archive_format: expected an entry in the archive, found none");
}

TEST_F(PT2ArchiveTest, RejectsPickledWeights) {
  entries.push_back({"any/data/weights/model.pt", "x"});
  EXPECT_EQ(getError(), "data/weights/model.pt: expected raw tensors, found a "
                        "pickle; re-save with torch >= 2.9");
}

TEST_F(PT2ArchiveTest, RejectsNoneAndSeveralPrograms) {
  entries.push_back({"any/models/other.json", "{}"});
  EXPECT_EQ(getError(), "models: expected one program, found "
                        "'models/model.json' and 'models/other.json'");
  entries.pop_back();
  remove("models/model.json");
  EXPECT_EQ(getError(), "models: expected one program, found none");
}

TEST_F(PT2ArchiveTest, RejectsFalseSizes) {
  getEntry("extra/notes.txt").falseSize = 100'000;
  EXPECT_NE(getError(), "");
  getEntry("extra/notes.txt").falseSize = -1;
  getEntry("byteorder").falseSize = 7; // one byte of what follows
  EXPECT_EQ(getError(), "byteorder: expected bytes that match the checksum, "
                        "found others");
}

TEST_F(PT2ArchiveTest, RejectsFlippedBits) {
  std::string file = makeZip(entries);
  for (const char *text : {"pt2", "little"}) {
    std::string broken =
        replace(file, text, std::string(1, text[0] ^ 1) + (text + 1));
    EXPECT_NE(getError(broken).find("expected bytes that match the checksum, "
                                    "found others"),
              std::string::npos);
  }
  getEntry("models/model.json").damage = 1;
  EXPECT_EQ(getError(), "models/model.json: expected bytes that match the "
                        "checksum, found others");
}

// The bytes of weights are looked at only when they are asked for.
TEST_F(PT2ArchiveTest, RejectsFlippedBitsOfWeights) {
  std::string path =
      write("bad.pt2", replace(makeZip(entries), "wwww", "wwvw"));
  auto archive = PT2Archive::open(path);
  ASSERT_TRUE(archive) << archive.error().message;
  auto bytes = archive->readRecord(archive->weights().front());
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().message, path + ": data/weights/weight_0: expected "
                                          "bytes that match the checksum, "
                                          "found others");
}

TEST_F(PT2ArchiveTest, RejectsBadTables) {
  std::string name = "data/weights/model_weights_config.json";
  std::string &config = getEntry(name).bytes;
  config = "{";
  EXPECT_EQ(getError().substr(0, name.size() + 32),
            name + ": expected JSON, found an error:");
  config = "{\"config\":[]}";
  EXPECT_EQ(getError(), name + ".config: expected an object, found an array");
  config = "{}";
  EXPECT_EQ(getError(), name + ": expected a member 'config', found none");
  config = "{\"config\":{\"a\":" + payload + ",\"a\":" + payload + "}}";
  EXPECT_EQ(getError(),
            name + ".config: expected distinct keys, found 'a' twice");
  remove(name);
  EXPECT_EQ(getError(), name + ": expected an entry in the archive, found "
                               "none");
}

TEST_F(PT2ArchiveTest, RejectsBadPayloads) {
  EXPECT_EQ(getPayloadError("\"use_pickle\":false", "\"use_pickle\":true"),
            ": expected a plain tensor, found a tensor subclass or custom "
            "object");
  EXPECT_EQ(getPayloadError("\"is_param\":true", "\"is_param\":3"),
            ".is_param: expected true or false, found 3");
  EXPECT_EQ(getPayloadError("\"is_param\":true",
                            "\"is_param\":true,\"is_param\":true"),
            ": expected distinct keys, found 'is_param' twice");
  EXPECT_EQ(getPayloadError("weight_0", "../weight_0"),
            ".path_name: expected an entry 'data/weights/../weight_0', found "
            "none");
  EXPECT_EQ(getPayloadError("\"dtype\":7", "\"dtype\":14"),
            ".tensor_meta.dtype: expected the number of a known element type, "
            "found 14");
  EXPECT_EQ(getPayloadError("\"layout\":7", "\"layout\":1"),
            ".tensor_meta.layout: expected 7, a strided tensor, found 1");
  EXPECT_EQ(getPayloadError("\"requires_grad\":true", "\"requires_grad\":null"),
            ".tensor_meta.requires_grad: expected true or false, found null");
  EXPECT_EQ(getPayloadError("\"layout\":7", "\"lay\":7"),
            ".tensor_meta: expected a member 'layout', found none");
  EXPECT_EQ(getPayloadError("{\"as_int\":3}", "{\"as_expr\":\"s0\"}"),
            ".tensor_meta.sizes[1]: expected a member 'as_int', found none");
  EXPECT_EQ(getPayloadError("{\"as_int\":3}", "{\"as_int\":-3}"),
            ".tensor_meta.sizes[1].as_int: expected at least 0, found -3");
  EXPECT_EQ(getPayloadError(",{\"as_int\":3}", ""),
            ".tensor_meta.strides: expected 1 strides, found 2");
}

TEST_F(PT2ArchiveTest, RejectsTensorsOutsideOfTheirRecord) {
  // The last element of the sound one is the last of the record.
  EXPECT_EQ(getPayloadError("\"storage_offset\":{\"as_int\":1}",
                            "\"storage_offset\":{\"as_int\":2}"),
            ".tensor_meta: expected a tensor inside the 28 bytes of "
            "'weight_0', found one of 32");
  EXPECT_EQ(getPayloadError("{\"as_int\":3}", "{\"as_int\":4}"),
            ".tensor_meta: expected a tensor inside the 28 bytes of "
            "'weight_0', found one of 36");
  for (const char *number : {"9223372036854775807", "4611686018427387904"})
    EXPECT_EQ(getPayloadError("{\"as_int\":3}",
                              std::string("{\"as_int\":") + number + "}"),
              ".tensor_meta: expected less than 2^63 bytes, found more");
  // An empty tensor touches nothing.
  getEntry("data/weights/model_weights_config.json").bytes =
      "{\"config\":{\"a.w\":" +
      replace(payload, "{\"as_int\":3}", "{\"as_int\":0}") + "}}";
  EXPECT_EQ(getError(), "");
}
