//===- SharedBackend.h - Two sessions in one process ------------*- C++ -*-===//
#ifndef FSDP_TEST_UNIT_RUNTIME_SHAREDBACKEND_H
#define FSDP_TEST_UNIT_RUNTIME_SHAREDBACKEND_H

#include "fsdp/Runtime/Execution/Session.h"

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <thread>

namespace fsdp::test {

/// One session's view of a local backend that several share. Its `abort` stops
/// its own ranks where `beforeComm` waits; all others wait in the shared one.
class SharedBackend : public Backend {
public:
  using Hook = std::function<void(const RankContext &, std::atomic<bool> &)>;

  SharedBackend(std::shared_ptr<Backend> shared, Hook beforeDevice = {},
                Hook beforeComm = {})
      : shared(std::move(shared)), beforeDevice(std::move(beforeDevice)),
        beforeComm(std::move(beforeComm)) {}

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    if (beforeDevice)
      beforeDevice(rank, aborted);
    return shared->openDevice(rank);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &device) override {
    if (beforeComm)
      beforeComm(rank, aborted);
    return shared->openComm(rank, communicator, group, device);
  }
  void abort() noexcept override {
    aborted.store(true);
    shared->abort();
  }

private:
  std::shared_ptr<Backend> shared;
  Hook beforeDevice, beforeComm;
  std::atomic<bool> aborted{false};
};

/// Runs `job` for ranks 0 and 1, and on another thread for ranks 2 and 3;
/// returns what each has thrown.
template <typename Job>
std::array<std::optional<Error>, 2> runBoth(const Job &job) {
  std::array<std::optional<Error>, 2> errors;
  auto half = [&](unsigned number) {
    try {
      job(RankRange(2 * number, 2));
    } catch (const Error &error) {
      errors[number] = error;
    }
  };
  std::thread second([&] { half(1); });
  half(0);
  second.join();
  return errors;
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_SHAREDBACKEND_H
