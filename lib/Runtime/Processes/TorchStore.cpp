//===- TorchStore.cpp - A store of PyTorch's, as one of ours --------------===//
#include "TorchStore.h"

#include "../Support/Caught.h"
#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <thread>

using namespace fsdp;
using namespace std::chrono_literals;

namespace {

class TorchStore : public Store {
public:
  TorchStore(const std::string &name, const std::string &prefix,
             const std::function<c10::intrusive_ptr<c10d::Store>()> &open)
      : name(name), values(prefix + "value "), counters(prefix + "counter ") {
    store = guarded(open);
  }

  void set(const std::string &key, const std::string &value) override {
    guarded([&] {
      store->set(values + key, value);
      return 0;
    });
  }

  std::string setFirst(const std::string &key,
                       const std::string &value) override {
    return guarded(
        [&] { return store->compareSet(values + key, std::string(), value); });
  }

  /// Asks now and then: whoever waits in the store keeps other threads out. The
  /// longer it has waited, the less often, so that a thousand ranks do not keep
  /// the store from its work.
  std::optional<std::string> get(const std::string &key,
                                 std::chrono::milliseconds timeout) override {
    using Clock = std::chrono::steady_clock;
    constexpr Clock::duration shortest = 1ms, longest = 250ms;
    Clock::time_point begin = Clock::now(), end = begin + timeout;
    for (;;) {
      if (guarded([&] { return store->check({values + key}); })) {
        auto value = guarded([&] { return store->get(values + key); });
        return std::string(value.begin(), value.end());
      }
      Clock::time_point now = Clock::now();
      if (now >= end)
        return std::nullopt;
      Clock::duration nap = std::clamp((now - begin) / 8, shortest, longest);
      std::this_thread::sleep_for(std::min(nap, end - now));
    }
  }

  std::int64_t add(const std::string &key, std::int64_t amount) override {
    return guarded([&] { return store->add(counters + key, amount); });
  }

private:
  template <typename Call> auto guarded(const Call &call) -> decltype(call()) {
    try {
      return call();
    } catch (...) {
      throw Error("cannot reach " + name + ": " + describeCaught(),
                  Failure::RankFailed);
    }
  }

  std::string name, values, counters;
  c10::intrusive_ptr<c10d::Store> store;
};

} // namespace

std::shared_ptr<Store> fsdp::openTorchStore(
    const std::string &name, const std::string &prefix,
    const std::function<c10::intrusive_ptr<c10d::Store>()> &open) {
  return std::make_shared<TorchStore>(name, prefix, open);
}
