//===- TCPStore.cpp - The store of PyTorch's process groups ---------------===//
#include "Caught.h"
#include "Text.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

using namespace fsdp;
using namespace std::chrono_literals;

namespace {

constexpr auto connectTimeout = 60s;

class TCPStore : public Store {
public:
  TCPStore(const std::string &host, const c10d::TCPStoreOptions &options)
      : address(host + ":" + std::to_string(options.port)) {
    archive::SignalsBlocked blocked; // The server has a thread.
    store = guarded(
        [&] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  }

  void set(const std::string &key, const std::string &value) override {
    guarded([&] {
      store->set("value " + key, {value.begin(), value.end()});
      return 0;
    });
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
      if (guarded([&] { return store->check({"value " + key}); })) {
        auto value = guarded([&] { return store->get("value " + key); });
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
    return guarded([&] { return store->add("counter " + key, amount); });
  }

private:
  template <typename Call> auto guarded(const Call &call) -> decltype(call()) {
    try {
      return call();
    } catch (...) {
      throw Error("cannot reach the store of rank 0 at " + address + ": " +
                      describeCaught(),
                  Failure::RankFailed);
    }
  }

  std::string address;
  c10::intrusive_ptr<c10d::TCPStore> store;
};

} // namespace

std::shared_ptr<Store> fsdp::serveStore(bool isForThisMachine,
                                        std::uint16_t &port) {
  auto fail = [](const char *call) -> Error {
    return Error(std::string("cannot open the store of the run: ") + call +
                 ": " + std::strerror(errno));
  };
  int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0)
    throw fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr =
      htonl(isForThisMachine ? INADDR_LOOPBACK : INADDR_ANY);
  address.sin_port = htons(port);
  socklen_t length = sizeof address;
  auto *generic = reinterpret_cast<sockaddr *>(&address);
  if (::bind(descriptor, generic, length) != 0 ||
      ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, generic, &length) != 0) {
    Error error = fail("bind");
    ::close(descriptor);
    throw error;
  }
  c10d::TCPStoreOptions options;
  options.port = port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  options.masterListenFd = descriptor; // It closes it.
  return std::make_shared<TCPStore>("127.0.0.1", options);
}

std::shared_ptr<Store> fsdp::connectStore(const std::string &host,
                                          std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  return std::make_shared<TCPStore>(host, options);
}
