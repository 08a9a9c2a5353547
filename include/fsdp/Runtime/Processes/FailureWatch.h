//===- FailureWatch.h - Who hears that the run has failed -------*- C++ -*-===//
//
// A process looks after the others of its run once, whoever wants to know: each
// look is a request to a store that a thousand others ask, too.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_PROCESSES_FAILUREWATCH_H
#define FSDP_RUNTIME_PROCESSES_FAILUREWATCH_H

#include "fsdp/Runtime/Processes/Store.h"
#include "fsdp/Runtime/Support/Error.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace fsdp {

class FailureWatch : public std::enable_shared_from_this<FailureWatch> {
public:
  /// Between two looks, while nothing is wrong.
  static constexpr std::chrono::seconds period{1};

  FailureWatch() = default;
  virtual ~FailureWatch() = default;
  FailureWatch(const FailureWatch &) = delete;
  FailureWatch &operator=(const FailureWatch &) = delete;

  /// Calls `onFailure` once if the run fails, or has, from any thread, until
  /// what is returned goes, which waits for the call.
  [[nodiscard]] std::shared_ptr<void>
  subscribe(std::function<void(const Error &)> onFailure);

protected:
  /// The run has failed: tells all who want to know.
  void ring(const Error &error);

private:
  std::recursive_mutex mutex;
  std::optional<Error> failure;
  unsigned next = 0;
  std::map<unsigned, std::function<void(const Error &)>> subscribers;
};

/// One with a thread that looks into the store.
std::shared_ptr<FailureWatch> watchStore(std::shared_ptr<Store> store);

} // namespace fsdp

#endif // FSDP_RUNTIME_PROCESSES_FAILUREWATCH_H
