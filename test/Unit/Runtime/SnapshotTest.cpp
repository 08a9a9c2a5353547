//===- SnapshotTest.cpp - What ranks write of a checkpoint ----------------===//
#include "fsdp/Runtime/Checkpoints/Snapshot.h"

#include "Files.h"
#include "SharedBackend.h"
#include "SmallModel.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using namespace fsdp::test;
using Kind = TensorName::Kind;

namespace {

planfile::PlanFile seal(TestPlan plan) {
  auto file = plan.seal();
  if (!file)
    throw Error(file.error().message);
  return std::move(*file);
}

void makeFolders(const std::string &folder, unsigned ranks) {
  for (unsigned rank = 0; rank < ranks; rank += archive::ranksInPart)
    std::filesystem::create_directories(std::filesystem::path(folder) /
                                        archive::getPart(rank, ranks) /
                                        "ranks");
}

/// The files of the ranks of a session; returns what their lists add up to.
std::vector<std::uint64_t> writeRanks(const planfile::PlanFile &plan,
                                      Session &session,
                                      const std::string &folder) {
  Snapshot snapshot(plan, session);
  snapshot.take(session);
  return snapshot.write(folder);
}

void writeManifest(const planfile::PlanFile &plan, const std::string &folder,
                   const std::vector<std::uint64_t> &lists) {
  archive::TrainingState state;
  state.ranks = planfile::getRankCount(plan.plan());
  state.mesh = spellMesh(plan);
  std::ofstream(folder + "/" + archive::Checkpoint::manifestName)
      << archive::spellManifest(state, Snapshot::tensors(plan), lists);
}

at::Tensor valuesOf(const Session &session, const TensorName &name) {
  std::vector<std::int64_t> sizes = session.sizes(name);
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes) + 1;
}

} // namespace

// A manifest that says something else than the files leads nobody to them.
TEST(Snapshot, AManifestSaysWhatRanksHold) {
  std::vector<TestPlan> plans = {makeHybridPlan()};
  for (std::uint32_t ranks : {1, 2, 3, 4, 7})
    plans.push_back(makeOddPlan(ranks));
  for (const TestPlan &plan : plans) {
    planfile::PlanFile file = seal(plan);
    unsigned ranks = planfile::getRankCount(file.plan());
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    Session session(file.plan(), ranks);
    auto tensors = Snapshot::tensors(file);
    for (const TensorName &name : session.tensors(Kind::Parameter)) {
      const archive::HeldTensor &tensor = tensors.at(std::string(name.name));
      EXPECT_EQ(tensor.shape, session.sizes(name));
      EXPECT_FALSE(tensor.check(ranks));
      for (unsigned rank = 0; rank != ranks; ++rank) {
        // Of replicas, the first one; and nobody holds nothing.
        bool isFirst = plan.mesh[0].first != "replicate" || rank < 2;
        std::vector<Box> held = session.heldBoxes(name, rank);
        if (tensor.runs.empty())
          EXPECT_THAT(held, testing::IsEmpty());
        else
          EXPECT_EQ(tensor.boxesOf(rank), isFirst ? held : std::vector<Box>());
      }
    }
    Files files;
    makeFolders(files.path("new"), ranks);
    writeManifest(file, files.path("new"),
                  writeRanks(file, session, files.path("new")));
    auto checkpoint = archive::Checkpoint::open(files.path("new"));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    auto problem = checkpoint->verify();
    EXPECT_FALSE(problem) << problem->message;
  }
}

// One more than have one folder, or a process. Nothing is run.
TEST(Snapshot, AThousandRanksAreReadByAFew) {
  constexpr unsigned many = archive::ranksInPart + 1;
  Files files;
  makeFolders(files.path("new"), many);
  {
    planfile::PlanFile file = seal(makeOddPlan(many));
    std::shared_ptr<Backend> backend = makeLocalBackend(many);
    std::shared_ptr<Store> store = makeLocalStore();
    auto writeSome = [&](RankRange ranks) {
      SessionOptions options;
      options.backend = std::make_shared<SharedBackend>(backend);
      options.store = store;
      Session session(file.plan(), ranks, std::move(options));
      for (const TensorName &name : session.tensors(Kind::Parameter))
        session.write(name, toHost(valuesOf(session, name)));
      return writeRanks(file, session, files.path("new"));
    };
    std::vector<std::uint64_t> lists, last;
    std::thread other([&] { last = writeSome({many - 1, 1}); });
    lists = writeSome(many - 1);
    other.join();
    lists.insert(lists.end(), last.begin(), last.end());
    writeManifest(file, files.path("new"), lists);
  }
  EXPECT_TRUE(std::filesystem::exists(files.path("new/part-00002")));
  auto checkpoint = archive::Checkpoint::open(files.path("new"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  planfile::PlanFile file = seal(makeOddPlan(3));
  Session session(file.plan(), 3);
  Weights weights = Weights::of("new", std::move(checkpoint->files));
  auto matches = weights.match(file);
  weights.load(matches, session);
  weights.loadStates(file, matches, session);
  EXPECT_FALSE(loadOwn(*checkpoint, file, session));
  for (const TensorName &name : session.tensors(Kind::Parameter))
    EXPECT_TRUE(at::equal(toTorch(session.read(name)), valuesOf(session, name)))
        << name.name;
}
