//===- StoreAgreement.cpp - How long a thousand ranks take to agree -------===//
//
// What processes do with their store before anything is loaded, by as many
// threads, each with a connection of its own: every rank shows its facts, rank
// 0 compares them, every rank reads the verdict.
//
//   StoreAgreement [RANKS]     default 1024
//
//===----------------------------------------------------------------------===//

#include "fsdp/Runtime/Comm.h"
#include "fsdp/Runtime/Error.h"
#include "fsdp/Runtime/Store.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
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
  for (unsigned rank = 1; rank < ranks; ++rank)
    others.emplace_back([&, rank] {
      std::shared_ptr<Store> store = connectStore("127.0.0.1", port);
      store->set(keyOf(rank), facts);
      agreed += store->get("agreed", defaultTimeout) == facts;
    });
  for (unsigned rank = 1; rank < ranks; ++rank)
    if (served->get(keyOf(rank), defaultTimeout) != facts)
      throw Error("rank " + std::to_string(rank) + " has other facts");
  double gathered = seconds();
  served->set("agreed", facts);
  for (std::thread &other : others)
    other.join();
  std::printf("%u ranks: all facts after %.2f s, %u agree after %.2f s\n",
              ranks, gathered, agreed.load() + 1, seconds());
  return agreed.load() + 1 == ranks ? 0 : 1;
} catch (const std::exception &error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
