//===- StoreAgreement.cpp - How long a thousand ranks take to agree -------===//
//
// What processes do with their store, by as many threads, each with a
// connection of its own. Before anything is loaded: every rank shows its facts,
// rank 0 compares them, every rank reads the verdict. Then each looks once a
// second whether the run has failed; after some seconds the last rank says so,
// and the others hear it.
//
//   StoreAgreement [RANKS]     default 1024
//
//===----------------------------------------------------------------------===//

#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Processes/Agreement.h"
#include "fsdp/Runtime/Processes/Lifeline.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <latch>
#include <thread>
#include <vector>

using namespace fsdp;

int main(int argc, char **argv) try {
  unsigned ranks = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1024;
  auto begin = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  std::uint16_t port = 0;
  std::shared_ptr<Store> served = serveStore("127.0.0.1", port);
  const std::string facts(2000, 'f');
  auto keyOf = [](unsigned rank) { return "facts " + std::to_string(rank); };
  std::vector<std::thread> others;
  std::atomic<unsigned> agreed{0};
  std::latch all(ranks), heard(ranks);
  // Its thread ends with it.
  auto look = [&](const std::shared_ptr<Store> &store) {
    auto lifeline = std::make_shared<Lifeline>(Lifeline::Options{store});
    auto subscription =
        lifeline->subscribe([&](const Error &) { heard.count_down(); });
    all.arrive_and_wait();
    heard.wait();
  };
  for (unsigned rank = 1; rank < ranks; ++rank)
    others.emplace_back([&, rank] {
      std::shared_ptr<Store> store = connectStore("127.0.0.1", port);
      store->set(keyOf(rank), facts);
      agreed += store->get("agreed", defaultTimeout) == facts;
      look(store);
    });
  for (unsigned rank = 1; rank < ranks; ++rank)
    if (served->get(keyOf(rank), defaultTimeout) != facts)
      throw Error("rank " + std::to_string(rank) + " has other facts");
  double gathered = seconds();
  served->set("agreed", facts);
  std::thread first([&] { look(served); });
  all.wait();
  std::printf("%u ranks: all facts after %.2f s, %u agree after %.2f s\n",
              ranks, gathered, agreed.load() + 1, seconds());

  // Of all cores together: the ranks' share is in it.
  constexpr auto quiet = std::chrono::seconds(10);
  std::clock_t busy = std::clock();
  std::this_thread::sleep_for(quiet);
  double load = double(std::clock() - busy) / CLOCKS_PER_SEC;
  begin = std::chrono::steady_clock::now();
  tellFailure(*connectStore("127.0.0.1", port), Error("rank 1 has ended"));
  heard.wait();
  std::printf("looking once a second takes %.2f s of processor time in 10 s; "
              "all have heard of a failure after %.2f s\n",
              load, seconds());
  first.join();
  for (std::thread &other : others)
    other.join();
  return agreed.load() + 1 == ranks ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
