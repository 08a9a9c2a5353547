//===- TCPStore.cpp - The store of PyTorch's process groups ---------------===//
#include "TorchStore.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Support/Error.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <arpa/inet.h>
#include <cerrno>
#include <cstdlib>
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

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// A socket that listens on one address: a number, or that of a name.
class Listener {
public:
  Listener(const std::string &host, std::uint16_t port) {
    // A name that leads to this machine alone, as its own does on some
    // machines, is not one that others know it by.
    Addresses addresses = resolve(host, port);
    const addrinfo *wanted = findOuter(*addresses);
    Addresses every(nullptr, ::freeaddrinfo);
    if (!wanted && (isNumber(host) || host == "localhost"))
      wanted = addresses.get();
    if (!wanted) {
      every = resolve("0.0.0.0", port);
      wanted = every.get();
    }
    descriptor = ::socket(wanted->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
      throw fail("socket");
    // A training that starts again finds the port of the last one free.
    int yes = 1;
    ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(descriptor, wanted->ai_addr, wanted->ai_addrlen) != 0 ||
        ::listen(descriptor, SOMAXCONN) != 0) {
      Error error =
          errno == EADDRNOTAVAIL
              ? Error("cannot open the store of the run: expected an address "
                      "of this machine, found " +
                      host +
                      "; with MASTER_ADDR=0.0.0.0 for rank 0, it "
                      "listens on all")
              : fail("bind");
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

  /// Where it listens, in numbers.
  std::pair<std::string, std::uint16_t> address() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    if (::getsockname(descriptor, generic, &length) != 0)
      throw fail("getsockname");
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (::getnameinfo(generic, length, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0)
      throw fail("getnameinfo");
    return {host, static_cast<std::uint16_t>(std::stoul(port))};
  }

  int release() { return std::exchange(descriptor, -1); }

private:
  static Addresses resolve(const std::string &host, std::uint16_t port) {
    addrinfo wanted{};
    wanted.ai_family = AF_UNSPEC;
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
    addrinfo *found = nullptr;
    int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(),
                                &wanted, &found);
    if (problem != 0)
      throw Error("cannot open the store of the run: expected an address of "
                  "this machine, found " +
                  host + ": " + ::gai_strerror(problem));
    return {found, ::freeaddrinfo};
  }

  /// The first that is not of the loopback; null if there is none.
  static const addrinfo *findOuter(const addrinfo &all) {
    for (const addrinfo *each = &all; each; each = each->ai_next) {
      const auto *four = reinterpret_cast<const sockaddr_in *>(each->ai_addr);
      const auto *six = reinterpret_cast<const sockaddr_in6 *>(each->ai_addr);
      constexpr std::uint32_t loopback = 127;
      bool isInner = each->ai_family == AF_INET6
                         ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                         : ntohl(four->sin_addr.s_addr) >> 24 == loopback;
      if (!isInner)
        return each;
    }
    return nullptr;
  }

  static bool isNumber(const std::string &host) {
    in6_addr address;
    return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
           ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
  }

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

/// A run's own keys: those of processes that do not know the secret are others.
static std::string secretPrefix() {
  const char *secret = std::getenv(storeSecretVariable);
  return secret && *secret ? std::string(secret) + " " : "";
}

std::shared_ptr<Store> fsdp::serveStore(const std::string &host,
                                        std::uint16_t &port) {
  Listener listener(host, port);
  auto [address, found] = listener.address();
  c10d::TCPStoreOptions options;
  options.port = port = found;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  options.masterListenFd = listener.release(); // It closes it.
  return open(address == "0.0.0.0" ? "127.0.0.1"
              : address == "::"    ? "::1"
                                   : address,
              options, secretPrefix());
}

std::shared_ptr<Store> fsdp::connectStore(const std::string &host,
                                          std::uint16_t port,
                                          const std::string &prefix) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = connectTimeout;
  return open(host, options, secretPrefix() + prefix);
}
