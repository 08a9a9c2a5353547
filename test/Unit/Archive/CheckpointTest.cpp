//===- CheckpointTest.cpp -------------------------------------------------===//

#include "fsdp/Archive/Checkpoint.h"

#include "FewDescriptors.h"
#include "Support/Replace.h"
#include "TempFolder.h"

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <sys/inotify.h>
#include <unistd.h>

using namespace fsdp::archive;
using fsdp::test::replace;

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

/// Which files below a folder are opened while it exists.
class Opened {
public:
  explicit Opened(const std::string &folder) {
    watcher = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    names[::inotify_add_watch(watcher, folder.c_str(), IN_OPEN)] = "";
    for (const auto &each :
         std::filesystem::recursive_directory_iterator(folder))
      if (each.is_directory())
        names[::inotify_add_watch(watcher, each.path().c_str(), IN_OPEN)] =
            each.path().string().substr(folder.size() + 1) + "/";
  }
  Opened(const Opened &) = delete;
  Opened &operator=(const Opened &) = delete;
  ~Opened() { ::close(watcher); }

  /// How often each, since the last call.
  std::map<std::string, unsigned> take() {
    std::map<std::string, unsigned> found;
    alignas(inotify_event) char buffer[1 << 16];
    for (ssize_t size; (size = ::read(watcher, buffer, sizeof buffer)) > 0;)
      for (char *at = buffer; at < buffer + size;) {
        auto *event = reinterpret_cast<inotify_event *>(at);
        EXPECT_FALSE(event->mask & IN_Q_OVERFLOW);
        if (!(event->mask & IN_ISDIR))
          ++found[names[event->wd] + event->name];
        at += sizeof *event + event->len;
      }
    return found;
  }

private:
  int watcher;
  std::map<int, std::string> names;
};

/// A manifest with the checksum of what it says.
std::string sign(std::string text) {
  constexpr std::string_view ending = "  \"checksum\": ";
  text.resize(text.rfind(ending));
  std::string sum = spellChecksum(checksum(text));
  return text.append(ending) + '"' + sum + "\"\n}\n";
}

class CheckpointTest : public test::TempFolder {
protected:
  /// A checkpoint of a tensor "w" with an element for each rank: its number.
  void write(unsigned ranks, const std::string &mesh, int version = 2) {
    std::vector<uint64_t> sums;
    HeldTensor tensor{DType::I32, {int64_t(ranks)}, {0}, {}};
    for (unsigned rank = 0; rank != ranks; ++rank) {
      std::string part = version == 1 ? "" : getPart(rank, ranks);
      part += part.empty() ? "" : "/";
      if (rank == 0 || !part.empty())
        std::filesystem::create_directories(getPath(part + "ranks"));
      auto number = static_cast<int32_t>(rank);
      std::string_view bytes(reinterpret_cast<const char *>(&number),
                             sizeof number);
      std::vector<CheckedFile> files;
      auto add = [&](const std::string &name, const std::string &content) {
        TempFolder::write(part + name, content);
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
      TempFolder::write(part + getRankList(rank), list);
      sums.push_back(checksum(list));
      tensor.add(rank, 1);
    }
    TrainingState state;
    state.ranks = ranks;
    state.mesh = mesh;
    std::string text = spellManifest(state, {{"w", tensor}}, sums);
    if (version == 1)
      text = replace(replace(text, "\"version\": 2", "\"version\": 1"),
                     ", \"ranks\": [[0, 1, " + std::to_string(ranks) + ", 1]]",
                     "");
    TempFolder::write(Checkpoint::manifestName, sign(text));
  }

  /// Elements of "w" from `begin` on.
  static std::vector<int32_t> read(const Checkpoint &checkpoint, int64_t begin,
                                   int64_t count) {
    std::vector<int32_t> found(static_cast<size_t>(count), -1);
    auto problem =
        readBox(checkpoint.files.tensors().at("w"), {{begin}, {count}},
                reinterpret_cast<char *>(found.data()));
    EXPECT_FALSE(problem) << problem->message;
    return found;
  }

  static std::vector<int32_t> countFrom(int32_t begin, size_t count) {
    std::vector<int32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), begin);
    return numbers;
  }

  /// What is wrong with the manifest, or with what is read then.
  std::string getError() {
    auto checkpoint = Checkpoint::open(folder);
    if (!checkpoint) {
      EXPECT_TRUE(checkpoint.error().isDamage);
      return checkpoint.error().message.substr(folder.size() + 1);
    }
    const TensorPieces &tensor = checkpoint->files.tensors().at("w");
    std::string bytes(Box::whole(tensor.shape).numel() * 8, '\0');
    auto problem = readBox(tensor, Box::whole(tensor.shape), bytes.data());
    if (!problem)
      return "";
    EXPECT_TRUE(problem->isDamage);
    return problem->message.substr(folder.size() + 1);
  }
};

/// A checkpoint that several tests read.
class TenThousandRanks : public CheckpointTest {
protected:
  static constexpr unsigned ranks = 10'000;
  static void SetUpTestSuite() {
    TenThousandRanks maker;
    maker.CheckpointTest::SetUp();
    maker.write(ranks, "shard=10000");
    shared = maker.folder;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(shared); }
  void SetUp() override { folder = shared; }
  void TearDown() override {}

private:
  void TestBody() override {}
  static std::string shared;
};
std::string TenThousandRanks::shared;

} // namespace

// Nobody raises the limit of descriptors to read a checkpoint.
TEST_F(TenThousandRanks, NeedFewDescriptors) {
  test::FewDescriptors few(256);
  auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto problem = checkpoint->verify();
  EXPECT_FALSE(problem) << problem->message;
  EXPECT_EQ(read(*checkpoint, 0, ranks), countFrom(0, ranks));
}

// Of an old one, all files are in one folder, and all are opened at once.
TEST_F(CheckpointTest, OldOnesNeedFewDescriptors) {
  write(400, "shard=400", 1);
  test::FewDescriptors few(64);
  auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto problem = checkpoint->verify();
  EXPECT_FALSE(problem) << problem->message;
  EXPECT_EQ(read(*checkpoint, 0, 400), countFrom(0, 400));
}

// A thousand ranks that all opened the files of a thousand would open a
// million.
TEST_F(TenThousandRanks, AreOpenedByWhoReadsThem) {
  constexpr unsigned mine = 4'321;
  Opened opened(folder);
  auto begin = std::chrono::steady_clock::now();
  auto checkpoint = Checkpoint::open(folder);
  std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - begin;
  RecordProperty("open_ms", std::to_string(time.count()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  using Files = std::map<std::string, unsigned>;
  EXPECT_EQ(opened.take(), (Files{{"manifest.json", 1}}));
  // As many ranks go on.
  EXPECT_EQ(read(*checkpoint, mine, 1), countFrom(mine, 1));
  std::string part = getPart(mine, ranks) + "/";
  EXPECT_EQ(part, "part-00005/");
  EXPECT_EQ(opened.take(), (Files{{part + getRankList(mine), 1},
                                  {part + getShardFile(mine, 0, 1), 1}}));
  auto own = checkpoint->ranks->openOwn(mine);
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(opened.take(), (Files{{part + getRankList(mine), 1},
                                  {part + getRankFile(mine), 1}}));
  // Eight ranks do: a list and a file of each that had a part, once each.
  begin = std::chrono::steady_clock::now();
  for (int64_t at = 1'250; at != 2'500; at += 50)
    EXPECT_EQ(read(*checkpoint, at, 50), countFrom(int32_t(at), 50));
  time = std::chrono::steady_clock::now() - begin;
  RecordProperty("read_an_eighth_ms", std::to_string(time.count()));
  Files files = opened.take();
  EXPECT_EQ(files.size(), 2'500u);
  for (const auto &[name, times] : files)
    EXPECT_EQ(times, 1u) << name;
}

// Of tens of thousands, a file system makes and finds files slowly.
TEST_F(TenThousandRanks, HaveAFolderForEachThousand) {
  auto count = [&](const std::string &name) {
    return std::distance(std::filesystem::directory_iterator(getPath(name)),
                         std::filesystem::directory_iterator());
  };
  EXPECT_EQ(count("."), 11);
  EXPECT_EQ(count("part-00001"), 1'025);
  EXPECT_EQ(count("part-00002/ranks"), 2'048);
  EXPECT_EQ(count("part-00010"), 785);
  // Fewer are in one folder, as PyTorch reads it.
  EXPECT_EQ(getPart(1'023, 1'024), "");
  EXPECT_EQ(getPart(1'023, 1'025), "part-00001");
  EXPECT_EQ(getPart(1'024, 1'025), "part-00002");
}

TEST_F(CheckpointTest, ManifestsThatSayWhatCannotBeAreDamaged) {
  write(4, "shard=4");
  std::string good = test::readFile(getPath(Checkpoint::manifestName));
  const std::string runs = "\"ranks\": [[0, 1, 4, 1]]";
  const std::string all = "\"dtype\": \"I32\", \"shape\": [4], " + runs;
  auto errorOf = [&](const std::string &from, const std::string &to) {
    TempFolder::write(Checkpoint::manifestName, sign(replace(good, from, to)));
    return getError();
  };
  auto errorOfRuns = [&](const std::string &to) {
    return errorOf(runs, "\"ranks\": " + to);
  };
  EXPECT_EQ(errorOfRuns("[[0, 1, 4, 1]]"), "");
  EXPECT_EQ(errorOfRuns("[[0, 1, 1, 1], [1, 1, 3, 1]]"), "");
  const std::string where = "manifest.json: manifest.tensors.w.ranks";
  for (auto [given, why] :
       std::initializer_list<std::pair<const char *, const char *>>{
           {"[[0, 1, 5, 1]]", ": expected runs of 4 ranks, found one of 5"},
           {"[[1, 1, 4, 1]]", ": expected runs of 4 ranks, found one of 4"},
           {"[[0, 2, 4, 1]]", ": expected runs of 4 ranks"},
           {"[[0, 1048576, 1048576, 1]]", ": expected runs of 4 ranks"},
           {"[[0, 1, 0, 1]]", ": expected runs of 4 ranks"},
           {"[[0, 1, 4, 0]]", ": expected runs of 4 ranks"},
           {"[]", ": expected the 4 elements of the tensor, found runs of 0"},
           {"[[0, 1, 3, 1]]", ": expected the 4 elements of the tensor, found "
                              "runs of 3"},
           {"[[0, 1, 4, 2]]", ": expected the 4 elements of the tensor, found "
                              "runs of more"},
           {"[[0, 1, 4, 4611686018427387905]]", ": expected the 4 elements"},
           {"[[0, 1, 4, 9223372036854775807]]", ": expected the 4 elements"},
           {"[[0, 1, 4, 1], [0, 1, 4, 1]]", ": expected the 4 elements"},
           {"[[0, 1, 4]]", "[0]: expected a rank, a step"},
           {"[[0, 1, 4, 1, 1]]", "[0]: expected a rank, a step"},
           {"[[0, 4294967297, 1, 4]]", "[0]: expected a rank, a step"},
           {"[[-1, 1, 4, 1]]", "[0][0]: expected a number from 0"},
           {"[[0, 1, 4, 18446744073709551617]]", "manifest"},
           {"[[0, 1, 4, 1.5]]", "[0][3]: expected a number from 0"},
           {"[3]", "[0]: expected an array"},
           {"3", ": expected an array"},
           {"{}", ": expected an array"}}) {
    std::string found = errorOfRuns(given);
    std::string expected =
        *why == 'm' ? std::string("manifest.json: ") + why : where + why;
    EXPECT_EQ(found.substr(0, expected.size()), expected) << given;
  }
  EXPECT_EQ(errorOf(", " + runs, ""),
            "manifest.json: manifest.tensors.w: expected a member 'ranks', "
            "found none");
  for (auto [given, why] :
       std::initializer_list<std::pair<const char *, const char *>>{
           {"[1]", "expected each of the 1 axes once"},
           {"[]", "expected each of the 1 axes once"},
           {"[0, 0]", "expected each of the 1 axes once"},
           {"[-1]", "expected a number"},
           {"0", "expected an array"}})
    EXPECT_NE(errorOf(runs, std::string("\"order\": ") + given + ", " + runs)
                  .find(why),
              std::string::npos)
        << given;
  // Sizes whose product is none.
  EXPECT_NE(errorOf(all, "\"dtype\": \"I32\", \"shape\": [4611686018427387904, "
                         "4], " +
                             runs)
                .find("expected less than 2^63 bytes, found more"),
            std::string::npos);
  // Another tensor than the files have.
  for (auto [given, why] :
       std::initializer_list<std::pair<std::string, std::string>>{
           {"\"dtype\": \"F32\", \"shape\": [4], " + runs, "another one"},
           {"\"dtype\": \"I32\", \"shape\": [8], \"ranks\": [[0, 1, 4, 2]]",
            "another one"},
           {"\"dtype\": \"I32\", \"shape\": [4], \"ranks\": [[3, 0, 1, 1], [0, "
            "1, 3, 1]]",
            "another one"},
           {"\"dtype\": \"I32\", \"shape\": [4], \"ranks\": [[0, 0, 4, 1]]",
            "another one"},
           {"\"dtype\": \"I32\", \"shape\": [2, 2], \"ranks\": [[0, 1, 4, 1]]",
            "another one"}}) {
    std::string found = errorOf(all, given);
    EXPECT_NE(
        found.find("w: expected the box that the manifest says, found " + why),
        std::string::npos)
        << given << ": " << found;
  }
}

// What a list says of the files of a rank.
TEST_F(CheckpointTest, FilesBelongToOneRank) {
  write(2, "shard=2");
  const std::string manifest =
      test::readFile(getPath(Checkpoint::manifestName));
  const std::string list = test::readFile(getPath(getRankList(1)));
  const std::string shard = getShardFile(1, 0, 1);
  auto errorOf = [&](const std::string &changed) {
    TempFolder::write(getRankList(1), changed);
    TempFolder::write(Checkpoint::manifestName,
                      sign(replace(manifest, spellChecksum(checksum(list)),
                                   spellChecksum(checksum(changed)))));
    return getError();
  };
  EXPECT_EQ(errorOf(list), "");
  EXPECT_EQ(errorOf(replace(list, shard, getShardFile(0, 0, 1))),
            getRankList(1) + ": expected " + shard + ", found " +
                getShardFile(0, 0, 1));
  EXPECT_EQ(errorOf(test::readFile(getPath(getRankList(0)))),
            getRankList(1) +
                ": expected the name of a file in the same "
                "folder, found \"" +
                getRankFile(0) + "\"");
  for (const char *name : {"../x", "/etc/passwd", "..", "", "a/b"})
    EXPECT_EQ(errorOf(replace(list, shard, name)),
              getRankList(1) +
                  ": expected the name of a file in the same "
                  "folder, found \"" +
                  name + "\"");
  EXPECT_EQ(errorOf("{}\n"), getRankList(1) +
                                 ": expected a file with box 1 of w, found "
                                 "none");
  for (const char *content : {"", "[]", "3", "{\"a\": 3}", "{\"a\": {}}"})
    EXPECT_NE(errorOf(content), "") << content;
}

// Of an old checkpoint, all lists are read at once.
TEST_F(CheckpointTest, OldFilesBelongToOneRank) {
  write(2, "shard=2", 1);
  std::string list = test::readFile(getPath(getRankList(0)));
  std::string other = list.substr(0, list.find(",\n")) + "}\n";
  std::string before =
      spellChecksum(checksum(test::readFile(getPath(getRankList(1)))));
  TempFolder::write(getRankList(1), other);
  TempFolder::write(
      Checkpoint::manifestName,
      sign(replace(test::readFile(getPath(Checkpoint::manifestName)), before,
                   spellChecksum(checksum(other)))));
  EXPECT_EQ(getError(),
            getRankList(1) + ": expected files of the rank alone, found " +
                getShardFile(0, 0, 1) + ", which another one has, too");
}

// Who only resumes does not see what no rank reads; who verifies does.
TEST_F(CheckpointTest, WhatVerifiesReadsAll) {
  write(3, "shard=3");
  auto verify = [&] {
    auto checkpoint = Checkpoint::open(folder);
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    auto problem = checkpoint->verify();
    return problem ? problem->message.substr(folder.size() + 1) : "";
  };
  EXPECT_EQ(verify(), "");
  std::string manifest = test::readFile(getPath(Checkpoint::manifestName));
  TempFolder::write(
      Checkpoint::manifestName,
      sign(replace(manifest, "\"w\": {",
                   "\"v\": {\"dtype\": \"I32\", \"shape\": [0], \"ranks\": "
                   "[]}, \"w\": {")));
  EXPECT_EQ(verify(), getShardFile(0, 0, 1) +
                          ": v: expected the box that the manifest says, "
                          "found none");
  TempFolder::write(
      Checkpoint::manifestName,
      sign(replace(manifest, "\"shape\": [3], \"ranks\": [[0, 1, 3, 1]]",
                   "\"shape\": [2], \"ranks\": [[0, 1, 2, 1]]")));
  EXPECT_EQ(verify(), getRankList(2) +
                          ": expected files with the 0 boxes that the manifest "
                          "says, found others");
  TempFolder::write(Checkpoint::manifestName, manifest);
  // However often it is read.
  TempFolder::write(
      Checkpoint::manifestName,
      sign(
          replace(manifest, "\"w\": {",
                  "\"v\": {\"dtype\": \"I32\", \"shape\": [3], \"ranks\": [[0, "
                  "1, 3, 1]]}, \"w\": {")));
  std::string shard = test::readFile(getPath(getShardFile(0, 0, 1)));
  std::string damaged = shard;
  damaged.back() ^= 1;
  TempFolder::write(getShardFile(0, 0, 1), damaged);
  auto twice = Checkpoint::open(folder);
  ASSERT_TRUE(twice) << twice.error().message;
  for (const char *name : {"v", "w", "v"}) {
    char element[4];
    auto problem =
        readBox(twice->files.tensors().at(name), {{0}, {1}}, element);
    ASSERT_TRUE(problem);
    EXPECT_NE(problem->message.find("the file is damaged"), std::string::npos);
  }
  TempFolder::write(getShardFile(0, 0, 1), shard);
  TempFolder::write(Checkpoint::manifestName, manifest);
  for (const std::string &name :
       {getRankList(2), getRankFile(2), getShardFile(2, 0, 1)}) {
    std::string content = test::readFile(getPath(name));
    content[content.size() / 2] ^= 1;
    TempFolder::write(name, content);
    EXPECT_EQ(verify().substr(0, name.size()), name);
    content[content.size() / 2] ^= 1;
    TempFolder::write(name, content);
  }
  EXPECT_EQ(verify(), "");
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

// Whoever holds what, each element is found where it is.
TEST(HeldTensorTest, RunsAreFoundByElementsAndByRanks) {
  std::mt19937 random(11);
  for (int trial = 0; trial != 200; ++trial) {
    HeldTensor tensor{DType::I32, {}, {}, {}};
    for (size_t axes = random() % 4; axes != 0; --axes)
      tensor.shape.push_back(1 + static_cast<int64_t>(random() % 7));
    tensor.order = rowMajor(tensor.shape.size());
    std::shuffle(tensor.order.begin(), tensor.order.end(), random);
    uint64_t numel = Box::whole(tensor.shape).numel();
    // As shards over some axes of a mesh.
    uint64_t each = 1 + random() % numel;
    uint32_t stride = 1 + random() % 3, rank = random() % 3, ranks = 0;
    std::vector<std::pair<uint32_t, uint64_t>> holders;
    for (uint64_t at = 0; at != numel; rank += stride) {
      uint64_t count =
          std::min(holders.empty() ? 1 + random() % each : each, numel - at);
      holders.emplace_back(rank, count);
      tensor.add(rank, count);
      at += count;
      ranks = rank + 1;
    }
    EXPECT_LE(tensor.runs.size(), 3u);
    EXPECT_FALSE(tensor.check(ranks));
    EXPECT_TRUE(tensor.check(ranks - 1));
    uint64_t begin = 0;
    std::vector<Box> all;
    for (auto [holder, count] : holders) {
      tensor.forEachRank(begin,
                         [&](uint32_t found, uint64_t from, uint64_t to) {
                           EXPECT_EQ(found, holder);
                           EXPECT_EQ(from, begin);
                           EXPECT_EQ(to, begin + count);
                           return false;
                         });
      std::vector<Box> boxes = tensor.boxesOf(holder);
      EXPECT_EQ(boxes, tensor.boxesBetween(begin, begin + count));
      uint64_t found = 0;
      for (const Box &box : boxes)
        found += box.numel();
      EXPECT_EQ(found, count);
      all.insert(all.end(), boxes.begin(), boxes.end());
      begin += count;
    }
    std::vector<const Box *> pointers;
    for (const Box &box : all)
      pointers.push_back(&box);
    EXPECT_TRUE(areDisjoint(pointers));
  }
}
