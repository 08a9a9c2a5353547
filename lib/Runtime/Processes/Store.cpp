//===- Store.cpp - Where the processes of a run meet ----------------------===//
#include "fsdp/Runtime/Processes/Store.h"

#include <condition_variable>
#include <map>
#include <mutex>

using namespace fsdp;

namespace {

class LocalStore : public Store {
public:
  void set(const std::string &key, const std::string &value) override {
    {
      std::lock_guard lock(mutex);
      values[key] = value;
    }
    changed.notify_all();
  }

  std::string setFirst(const std::string &key,
                       const std::string &value) override {
    std::string found;
    {
      std::lock_guard lock(mutex);
      found = values.emplace(key, value).first->second;
    }
    changed.notify_all();
    return found;
  }

  std::optional<std::string> get(const std::string &key,
                                 std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex);
    auto deadline = std::chrono::steady_clock::now() + timeout;
    if (!changed.wait_until(lock, deadline,
                            [&] { return values.contains(key); }))
      return std::nullopt;
    return values[key];
  }

  std::int64_t add(const std::string &key, std::int64_t amount) override {
    std::lock_guard lock(mutex);
    return counters[key] += amount;
  }

private:
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::map<std::string, std::int64_t> counters;
};

} // namespace

std::shared_ptr<Store> fsdp::makeLocalStore() {
  return std::make_shared<LocalStore>();
}
