//===- LifelineTest.cpp - Whether a run goes on ---------------------------===//

#include "fsdp/Runtime/Processes/Lifeline.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include <future>

using namespace fsdp;
using namespace std::chrono_literals;

namespace {

/// Counts the requests that it passes on.
class CountingStore final : public Store {
public:
  void set(const std::string &key, const std::string &value) override {
    ++requests;
    store->set(key, value);
  }
  std::string setFirst(const std::string &key,
                       const std::string &value) override {
    ++requests;
    return store->setFirst(key, value);
  }
  std::optional<std::string> get(const std::string &key,
                                 std::chrono::milliseconds timeout) override {
    ++requests;
    return store->get(key, timeout);
  }
  std::int64_t add(const std::string &key, std::int64_t amount) override {
    ++requests;
    return store->add(key, amount);
  }

  std::atomic<unsigned> requests = 0;

private:
  std::shared_ptr<Store> store = makeLocalStore();
};

/// Waits until it is so.
void await(const std::function<bool()> &isSo) {
  auto end = std::chrono::steady_clock::now() + 20s;
  while (!isSo() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(isSo());
}

// A thousand processes share it.
TEST(Lifeline, AsksOncePerPeriodAndTellsAll) {
  auto store = std::make_shared<CountingStore>();
  auto lifeline = std::make_shared<Lifeline>(Lifeline::Options{store});
  std::atomic<unsigned> heard = 0;
  auto first = lifeline->subscribe([&](const Error &) { ++heard; });
  auto second = lifeline->subscribe([&](const Error &) { ++heard; });
  auto gone = lifeline->subscribe([&](const Error &) { heard += 100; });
  gone.reset();
  std::this_thread::sleep_for(2 * Lifeline::period);
  EXPECT_LE(store->requests, 2u);
  tellFailure(*store, Error("lost", Failure::RankFailed));
  await([&] { return heard == 2; });
  // Who comes later hears it at once.
  auto late = lifeline->subscribe([&](const Error &error) {
    EXPECT_STREQ(error.what(), "lost");
    ++heard;
  });
  EXPECT_EQ(heard, 3u);
}

TEST(Lifeline, NamesAProcessOfThisMachineThatEnds) {
  pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::string space = ownProcess("here").space;
  auto lifeline = std::make_shared<Lifeline>(Lifeline::Options{
      .store = makeLocalStore(),
      .processes = {{"here", space, ::getpid()}, {"here", space, child}}});
  std::promise<std::string> heard;
  auto subscription = lifeline->subscribe(
      [&](const Error &error) { heard.set_value(error.what()); });
  EXPECT_EQ(lifeline->findDead(), std::nullopt);
  ::kill(child, SIGKILL);
  EXPECT_EQ(heard.get_future().get(), "rank 1 (process " +
                                          std::to_string(child) +
                                          " on here) has ended before the run "
                                          "did");
  ::waitpid(child, nullptr, 0);
}

TEST(Process, IsWhatItSays) {
  Process own = ownProcess("here, or there");
  Process read = decodeProcess(encodeProcess(own));
  EXPECT_EQ(std::tie(read.host, read.space, read.number),
            std::tie(own.host, own.space, own.number));
  EXPECT_FALSE(isDead(own.number));
  for (const char *line : {"", "0 pid:[1] a", "-1 pid:[1] a", "x", "12",
                           "12 pid:[1]", "99999999999 pid:[1] a"})
    EXPECT_THROW(decodeProcess(line), Error) << line;
}

// A number of another machine means nothing here.
TEST(Lifeline, HearsOfOtherMachinesThroughTheStore) {
  std::shared_ptr<Store> store = makeLocalStore();
  auto lifeline = std::make_shared<Lifeline>(Lifeline::Options{
      .store = store,
      .processes = {{"here", "pid:[1]", ::getpid()}, {"there", "pid:[1]", 1}}});
  EXPECT_EQ(lifeline->findDead(), std::nullopt);
  EXPECT_TRUE(lifeline->isLowestHere());
  await([&] { return store->add("alive 0", 0) >= 2; });
}

TEST(Lifeline, TakesSignalsOnlyIfAskedWhileItExists) {
  auto handler = [] {
    struct sigaction action = {};
    ::sigaction(SIGUSR1, nullptr, &action);
    return action.sa_handler;
  };
  auto before = handler();
  {
    Lifeline storeAlone({.store = makeLocalStore()});
    EXPECT_EQ(handler(), before);
    Lifeline lifeline({.takesSignals = true});
    EXPECT_FALSE(lifeline.isInterrupted());
    std::raise(SIGUSR1);
    EXPECT_TRUE(lifeline.isInterrupted());
    EXPECT_FALSE(storeAlone.isInterrupted());
  }
  EXPECT_EQ(handler(), before);
  Lifeline later({.takesSignals = true});
  EXPECT_FALSE(later.isInterrupted());
}

TEST(Lifeline, ASecondSignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto end = [] {
    Lifeline lifeline({.takesSignals = true});
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    std::this_thread::sleep_for(20s);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), "");
}

} // namespace
