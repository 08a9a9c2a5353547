//===- Store.h - Where the processes of a run meet --------------*- C++ -*-===//
//
// Small values by name, seen by all processes of a run: what ranks exchange
// before they have communicators, and when one of them fails. A run uses each
// key once; who reuses a store gives every run keys of its own. May be called
// from any thread. Throws `fsdp::Error` if the others cannot be reached.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_PROCESSES_STORE_H
#define FSDP_RUNTIME_PROCESSES_STORE_H

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

class Store {
public:
  virtual ~Store() = default;

  virtual void set(const std::string &key, const std::string &value) = 0;

  /// Sets a key unless it is set, in one step. Returns what it is then.
  virtual std::string setFirst(const std::string &key,
                               const std::string &value) = 0;

  /// Waits until the key is set; nothing if `timeout` is over before.
  virtual std::optional<std::string> get(const std::string &key,
                                         std::chrono::milliseconds timeout) = 0;

  /// Adds to a counter, which starts at 0, and returns the sum. Counters and
  /// values do not share keys.
  virtual std::int64_t add(const std::string &key, std::int64_t amount) = 0;
};

/// In the memory of this process.
std::shared_ptr<Store> makeLocalStore();

/// In the environment: what all keys of the stores below begin with.
inline constexpr const char *storeSecretVariable = "FSDP_STORE_SECRET";

/// PyTorch's TCPStore, with its server in this process: anybody who reaches it
/// may read and write. It listens on the address of `host` alone, a number or a
/// name; on all of this machine if the name is known as another one than
/// localhost, and leads nowhere else here. `port` 0 becomes one that is free.
std::shared_ptr<Store> serveStore(const std::string &host, std::uint16_t &port);

/// One that another process serves. Its keys begin with `prefix`.
std::shared_ptr<Store> connectStore(const std::string &host, std::uint16_t port,
                                    const std::string &prefix = "");

} // namespace fsdp

#endif // FSDP_RUNTIME_PROCESSES_STORE_H
