//===- TCPStore.cpp - The store of PyTorch's process groups ---------------===//
#include "TorchStore.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Error.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

using namespace fsdp;
using namespace std::chrono_literals;

namespace {

/// As PyTorch's: processes do not start all at once.
constexpr auto connectTimeout = 300s;

/// A socket that listens.
class Listener {
public:
  Listener(const std::string &host, std::uint16_t port) {
    addrinfo wanted{};
    wanted.ai_family = AF_UNSPEC;
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    addrinfo *found = nullptr;
    std::string service = std::to_string(port);
    isNumeric =
        ::getaddrinfo(host.c_str(), service.c_str(), &wanted, &found) == 0;
    if (!isNumeric &&
        ::getaddrinfo("0.0.0.0", service.c_str(), &wanted, &found) != 0)
      throw fail("getaddrinfo");
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> freed(found,
                                                               ::freeaddrinfo);
    descriptor = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
      throw fail("socket");
    // A training that starts again finds the port of the last one free.
    int yes = 1;
    ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 ||
        ::listen(descriptor, SOMAXCONN) != 0) {
      Error error = fail("bind");
      ::close(descriptor);
      throw error;
    }
  }
  Listener(const Listener &) = delete;
  Listener &operator=(const Listener &) = delete;
  ~Listener() {
    if (descriptor >= 0)
      ::close(descriptor);
  }

  std::uint16_t port() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    if (::getsockname(descriptor, generic, &length) != 0)
      throw fail("getsockname");
    return ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<sockaddr_in6 *>(&address)->sin6_port
                     : reinterpret_cast<sockaddr_in *>(&address)->sin_port);
  }

  int release() { return std::exchange(descriptor, -1); }

  bool isNumeric = false; ///< It listens on the given address alone.

private:
  static Error fail(const char *call) {
    return Error(std::string("cannot open the store of the run: ") + call +
                 ": " + std::strerror(errno));
  }

  int descriptor = -1;
};

} // namespace

static std::shared_ptr<Store> open(const std::string &host,
                                   const c10d::TCPStoreOptions &options,
                                   const std::string &prefix) {
  archive::SignalsBlocked blocked; // The server has a thread.
  return openTorchStore(
      "the store of rank 0 at " + host + ":" + std::to_string(options.port),
      prefix,
      [&] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
}

std::shared_ptr<Store> fsdp::serveStore(const std::string &host,
                                        std::uint16_t &port) {
  Listener listener(host, port);
  c10d::TCPStoreOptions options;
  options.port = port = listener.port();
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  options.masterListenFd = listener.release(); // It closes it.
  return open(listener.isNumeric ? host : "127.0.0.1", options, "");
}

std::shared_ptr<Store> fsdp::connectStore(const std::string &host,
                                          std::uint16_t port,
                                          const std::string &prefix) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  return open(host, options, prefix);
}
