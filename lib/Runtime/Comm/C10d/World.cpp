//===- World.cpp - Ranks as processes of one c10d group -------------------===//
#include "World.h"

#include "../../Support/Caught.h"
#include "../../Support/Text.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

using namespace fsdp;
using Clock = std::chrono::steady_clock;

namespace fsdp {

class C10dComm : public MessageComm {
public:
  C10dComm(C10dWorld &world, int tag, const Group &group,
           std::chrono::milliseconds timeout)
      : MessageComm(group, world.limits), world(world), tag(tag),
        timeout(timeout) {}

private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    unsigned member; ///< The other one.
  };

  void check() const override { world.check(); }

  void receive(unsigned flight, unsigned member, std::byte *to,
               std::size_t bytes) override {
    post(flight, member, to, bytes, [&](std::vector<at::Tensor> &tensors) {
      return world.group->recv(tensors, static_cast<int>(ranks[member]), tag);
    });
  }

  void send(unsigned flight, unsigned member, const std::byte *from,
            std::size_t bytes) override {
    post(flight, member, const_cast<std::byte *>(from), bytes,
         [&](std::vector<at::Tensor> &tensors) {
           return world.group->send(tensors, static_cast<int>(ranks[member]),
                                    tag);
         });
  }

  template <typename Call>
  void post(unsigned flight, unsigned member, std::byte *memory,
            std::size_t bytes, const Call &call) {
    std::vector<at::Tensor> tensors = {
        at::from_blob(memory, {static_cast<std::int64_t>(bytes)}, at::kByte)};
    try {
      std::lock_guard lock(world.posting);
      flights[flight].push_back({call(tensors), member});
    } catch (...) {
      throwLost(member);
    }
  }

  void finish(unsigned flight, const char *deed) override {
    Clock::time_point end = Clock::now() + timeout;
    for (const auto &[work, member] : flights[flight]) {
      try {
        auto left =
            std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
        // None would be for ever.
        world.await(*work, std::max(left, std::chrono::milliseconds(1)));
      } catch (...) {
        check();
        if (Clock::now() < end)
          throwLost(member);
        throw Error("waited " + spellSeconds(timeout) + " for rank " +
                        std::to_string(ranks[member]) + " to " + deed,
                    Failure::RankFailed);
      }
      check();
    }
    flights[flight].clear();
  }

  /// Only inside of a `catch`.
  [[noreturn]] void throwLost(unsigned member) const {
    throw Error("cannot reach rank " + std::to_string(ranks[member]) + ": " +
                    describeCaught(),
                Failure::RankFailed);
  }

  C10dWorld &world;
  const int tag;
  const std::chrono::milliseconds timeout;
  std::array<std::vector<Message>, flightCount> flights;
};

} // namespace fsdp

std::unique_ptr<Comm> C10dWorld::openComm(unsigned communicator,
                                          const Group &group,
                                          std::chrono::milliseconds timeout) {
  return std::make_unique<C10dComm>(*this, static_cast<int>(communicator),
                                    group, timeout);
}

void C10dWorld::abort() noexcept {
  aborted.store(true);
  std::lock_guard lock(mutex);
  for (c10d::Work *work : awaited)
    try {
      work->abort();
    } catch (...) {
      // This one only ends with its time-out.
    }
}

void C10dWorld::check() const {
  if (aborted.load())
    throw Error("stopped because another rank failed", Failure::RankFailed);
}

/// Either `abort` sees the work, or this sees that all was aborted.
void C10dWorld::await(c10d::Work &work, std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(mutex);
    awaited.push_back(&work);
  }
  struct Leave {
    ~Leave() {
      std::lock_guard lock(world.mutex);
      std::erase(world.awaited, &work);
    }
    C10dWorld &world;
    c10d::Work &work;
  } leave{*this, work};
  check();
  work.wait(timeout);
}
