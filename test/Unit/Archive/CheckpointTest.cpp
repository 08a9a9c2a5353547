//===- CheckpointTest.cpp -------------------------------------------------===//

#include "fsdp/Archive/Checkpoint.h"

#include "FewDescriptors.h"
#include "TempFolder.h"

#include <cstring>

using namespace fsdp::archive;

namespace {

/// The bytes of a safetensors file, which is not synchronized to the disk.
std::string spellSafetensors(const std::string &header, std::string_view data) {
  std::string text = header;
  text.append((8 - text.size() % 8) % 8, ' ');
  uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(text).append(data);
}

class CheckpointTest : public test::TempFolder {
protected:
  /// A checkpoint of a tensor "w" with an element for each rank: its number.
  void write(unsigned ranks, const std::string &mesh) {
    std::filesystem::create_directory(getPath("ranks"));
    std::vector<uint64_t> sums;
    for (unsigned rank = 0; rank != ranks; ++rank) {
      auto number = static_cast<int32_t>(rank);
      std::string_view bytes(reinterpret_cast<const char *>(&number),
                             sizeof number);
      std::vector<CheckedFile> files;
      auto add = [&](const std::string &name, const std::string &content) {
        TempFolder::write(name, content);
        files.push_back({name, BlockSums::of({content})});
      };
      std::string offset = std::to_string(rank);
      add(getShardFile(rank, 0, 1),
          spellSafetensors(
              "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"w\\\": "
              "{\\\"saved_offsets\\\": [" +
                  offset +
                  "]}}\"},\"w\":{\"dtype\":\"I32\",\"shape\":[1],"
                  "\"data_offsets\":[0,4]}}",
              bytes));
      add(getRankFile(rank),
          spellSafetensors("{\"generator\":{\"dtype\":\"U8\",\"shape\":[4],"
                           "\"data_offsets\":[0,4]}}",
                           bytes));
      std::string list = spellRankList(files);
      TempFolder::write(getRankList(rank), list);
      sums.push_back(checksum(list));
    }
    TrainingState state;
    state.ranks = ranks;
    state.mesh = mesh;
    TempFolder::write(
        Checkpoint::manifestName,
        spellManifest(state, {{"w", {DType::I32, {int64_t(ranks)}}}}, sums));
  }
};

} // namespace

// Nobody raises the limit of descriptors to read a checkpoint.
TEST_F(CheckpointTest, TenThousandRanksNeedFewDescriptors) {
  constexpr unsigned ranks = 10'000;
  write(ranks, "shard=10000");
  test::FewDescriptors few(256);
  auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto problem = checkpoint->verify();
  EXPECT_FALSE(problem) << problem->message;
  const TensorPieces &tensor = checkpoint->files.tensors().at("w");
  std::vector<int32_t> found(ranks, -1);
  problem = readBox(tensor, Box::whole(tensor.shape),
                    reinterpret_cast<char *>(found.data()));
  ASSERT_FALSE(problem) << problem->message;
  for (unsigned rank = 0; rank != ranks; ++rank)
    ASSERT_EQ(found[rank], static_cast<int32_t>(rank));
}

// Ranks are numbered by it when a checkpoint is loaded.
TEST_F(CheckpointTest, MeshAndRanksAgree) {
  for (const char *mesh :
       {"shard=4", "replicate=2 shard=2", "a=1 b=4 c=1", "PyTorch", ""}) {
    write(4, mesh);
    auto checkpoint = Checkpoint::open(folder);
    EXPECT_TRUE(checkpoint) << mesh << ": " << checkpoint.error().message;
  }
  for (const char *mesh :
       {"shard=2", "shard=8", "replicate=4 shard=4", "shard=0", "shard=-4",
        "shard=4 x", "shard=", "shard=4,", "a=4294967296 b=4294967296",
        "shard=4294967300", "a=65536 b=65536 c=65536 d=65536 e=4"}) {
    write(4, mesh);
    auto checkpoint = Checkpoint::open(folder);
    ASSERT_FALSE(checkpoint) << mesh;
    EXPECT_EQ(checkpoint.error().message,
              getPath("manifest.json") +
                  ": manifest.mesh: expected the axes of 4 ranks, as in "
                  "shard=4, found \"" +
                  mesh + "\"");
    EXPECT_TRUE(checkpoint.error().isDamage);
  }
}

TEST_F(CheckpointTest, FilesBelongToOneRank) {
  write(2, "shard=2");
  std::string list = test::readFile(getPath(getRankList(0)));
  TempFolder::write(getRankList(1), list.substr(0, list.find(",\n")) + "}\n");
  TrainingState state;
  state.ranks = 2;
  std::vector<uint64_t> sums;
  for (unsigned rank : {0, 1})
    sums.push_back(checksum(test::readFile(getPath(getRankList(rank)))));
  TempFolder::write(Checkpoint::manifestName,
                    spellManifest(state, {{"w", {DType::I32, {1}}}}, sums));
  auto checkpoint = Checkpoint::open(folder);
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().message,
            getPath(getRankList(1)) +
                ": expected files of the rank alone, found " +
                getShardFile(0, 0, 1) + ", which another one has, too");
}
