//===- FailureWatch.cpp - Who hears that the run has failed ---------------===//

#include "fsdp/Runtime/Processes/FailureWatch.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <condition_variable>
#include <thread>

using namespace fsdp;
using namespace std::chrono_literals;

std::shared_ptr<void>
FailureWatch::subscribe(std::function<void(const Error &)> onFailure) {
  std::lock_guard lock(mutex);
  if (failure)
    onFailure(*failure);
  subscribers.emplace(next, std::move(onFailure));
  return {nullptr, [self = shared_from_this(), number = next++](void *) {
            std::lock_guard lock(self->mutex);
            self->subscribers.erase(number);
          }};
}

void FailureWatch::ring(const Error &error) {
  std::lock_guard lock(mutex);
  if (failure)
    return;
  failure = error;
  for (const auto &[number, onFailure] : subscribers)
    onFailure(error);
}

namespace {

class StoreWatch final : public FailureWatch {
public:
  explicit StoreWatch(std::shared_ptr<Store> given) : store(std::move(given)) {
    archive::SignalsBlocked blocked;
    thread = std::thread([this] { work(); });
  }
  ~StoreWatch() override {
    {
      std::lock_guard lock(mutex);
      isOver = true;
    }
    changed.notify_all();
    thread.join();
  }

private:
  void work() {
    try {
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, period, [this] { return isOver; }))
        if (auto failure = findFailure(*store, 0ms))
          return ring(*failure);
    } catch (const std::exception &error) {
      ring(Error(error.what(), Failure::RankFailed));
    }
  }

  std::shared_ptr<Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  bool isOver = false;
  std::thread thread;
};

} // namespace

std::shared_ptr<FailureWatch> fsdp::watchStore(std::shared_ptr<Store> store) {
  return std::make_shared<StoreWatch>(std::move(store));
}
