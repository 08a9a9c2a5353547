//===- fuzz-checkpoint.cpp - Folders of checkpoints through the runtime ---===//
//
// A folder that is signed after the damage: opened, read, verified, loaded into
// a session of the mesh that the seeds are of and into another one, written
// again, and read as weights.
//
//===----------------------------------------------------------------------===//

#include "CheckpointText.h"
#include "InputFile.h"
#include "Target.h"
#include "fsdp/Runtime/Checkpoints/Snapshot.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"

#include <memory>

using namespace fsdp;
using namespace fsdp::fuzz;

namespace {

/// A plan of this build, loaded.
struct Trainer {
  explicit Trainer(const std::string &path)
      : plan(open(path)), ranks(planfile::getRankCount(plan.plan())) {}

  static planfile::PlanFile open(const std::string &path) {
    auto plan = planfile::PlanFile::open(path);
    if (!plan)
      report(plan.error().message.c_str());
    return std::move(*plan);
  }

  void load(const std::string &folder) {
    auto checkpoint = archive::Checkpoint::open(folder);
    if (!checkpoint)
      throw Error(checkpoint.error());
    if (!session)
      session = std::make_unique<Session>(plan.plan(), ranks);
    Weights weights = Weights::of(folder, std::move(checkpoint->files));
    std::vector<Weights::Match> matches = weights.match(plan);
    weights.load(matches, *session);
    weights.loadStates(plan, matches, *session);
    loadOwn(*checkpoint, plan, *session);
    session->setUpdates(checkpoint->state.updates);
    Snapshot(plan, *session).take(*session);
  }

  /// What is rejected says why, as an `Error`; a session that has failed is
  /// made anew.
  void attempt(const std::string &folder) {
    try {
      load(folder);
    } catch (const Error &) {
      session.reset();
    }
  }

  planfile::PlanFile plan;
  unsigned ranks;
  std::unique_ptr<Session> session;
};

/// The first and the last element of each tensor: files are opened for them,
/// however large it is said to be.
void readEnds(const archive::TensorFiles &files) {
  for (const auto &[name, tensor] : files.tensors()) {
    archive::Box box = archive::Box::whole(tensor.shape);
    if (box.numel() == 0)
      continue;
    char element[16];
    for (bool isLast : {false, true}) {
      for (std::size_t axis = 0; axis != tensor.shape.size(); ++axis) {
        box.offsets[axis] = isLast ? tensor.shape[axis] - 1 : 0;
        box.sizes[axis] = 1;
      }
      static_cast<void>(archive::readBox(tensor, box, element));
    }
  }
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const InputFile folder("checkpoint");
  static Trainer trainers[] = {Trainer(FSDP_FUZZ_PLANS "/buffers.plan"),
                               Trainer(FSDP_FUZZ_PLANS "/tokens.plan")};
  writeFolder({reinterpret_cast<const char *>(data), size}, folder.path());
  if (auto checkpoint = archive::Checkpoint::open(folder.path())) {
    readEnds(checkpoint->files);
    static_cast<void>(checkpoint->verify());
  }
  for (Trainer &trainer : trainers)
    trainer.attempt(folder.path());
  return 0;
}
