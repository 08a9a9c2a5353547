//===- Backend.cpp - Processes of a process group -------------------------===//
#include "fsdp/Runtime/Comm/C10d.h"

#include "../../Processes/TorchStore.h"
#include "../../Support/Caught.h"
#include "../Launcher.h"
#include "World.h"
#include "fsdp/Runtime/Support/Error.h"

using namespace fsdp;

namespace {

class C10dBackend : public Backend {
public:
  C10dBackend(const c10::intrusive_ptr<c10d::Backend> &group,
              const c10::intrusive_ptr<c10d::Store> &store,
              std::chrono::milliseconds timeout);

  World world() const override { return seen; }
  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    return local->openDevice(rank);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &) override {
    return messages.openComm(communicator, group, rank.timeout);
  }
  void abort() noexcept override { messages.abort(); }

private:
  World seen;
  std::unique_ptr<Backend> local = makeLocalBackend(1); ///< For devices.
  C10dWorld messages;
};

} // namespace

static World join(int rank, int processes,
                  const c10::intrusive_ptr<c10d::Store> &store,
                  std::chrono::milliseconds timeout) {
  World seen;
  seen.rank = static_cast<unsigned>(rank);
  const Process own = ownProcess(ownHost());
  seen.processes = {own};
  auto size = static_cast<unsigned>(processes);
  if (size == 1)
    return seen;
  auto open = [&](const std::string &prefix, bool isOwn) {
    return openTorchStore("the store of the process group", prefix,
                          [&] { return isOwn ? store->clone() : store; });
  };
  // Each world of the group has keys of its own, and a connection: others may
  // wait in that of the group. A new one would be tried for minutes if nobody
  // served the store any more.
  const std::string prefix = "fsdp-mlir ";
  std::int64_t number =
      open(prefix, false)
          ->add("backends of rank " + std::to_string(seen.rank), 1);
  seen.store = open(prefix + std::to_string(number) + " ", true);
  seen.processes.clear();
  for (const std::string &line :
       exchange(seen.rank, size, encodeProcess(own), *seen.store, timeout))
    seen.processes.push_back(decodeProcess(line));
  return seen;
}

World fsdp::joinGroup(const c10d::ProcessGroup &group,
                      std::chrono::milliseconds timeout) {
  return join(group.getRank(), group.getSize(), group.getStore(), timeout);
}

C10dBackend::C10dBackend(const c10::intrusive_ptr<c10d::Backend> &group,
                         const c10::intrusive_ptr<c10d::Store> &store,
                         std::chrono::milliseconds timeout)
    : seen(join(group->getRank(), group->getSize(), store, timeout)),
      messages(group) {}

std::shared_ptr<Backend>
fsdp::makeC10dBackend(const c10::intrusive_ptr<c10d::Backend> &group,
                      const c10::intrusive_ptr<c10d::Store> &store,
                      std::chrono::milliseconds timeout) {
  return std::make_shared<C10dBackend>(group, store, timeout);
}

std::shared_ptr<Backend>
fsdp::makeC10dBackend(const c10::intrusive_ptr<c10d::ProcessGroup> &group,
                      std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group->getBackend(c10::kCPU);
  } catch (...) {
    throw Error("expected a process group for tensors of the CPU, as gloo's; "
                "found one of " +
                group->getBackendName() + ": " + describeCaught());
  }
  return makeC10dBackend(backend, group->getStore(), timeout);
}
