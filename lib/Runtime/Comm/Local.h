//===- Local.h - Ranks as threads of one process ----------------*- C++ -*-===//
//
// The communicator of ranks that share an address space. Gathers read the
// peers' memory directly, each rank sums its own slice, and a collective is
// run inline by the thread that calls it. A rank does not wait until its peers
// have read its source: `drain` does, right before the source is overwritten,
// by which time they usually have.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_LOCAL_H
#define FSDP_LIB_RUNTIME_COMM_LOCAL_H

#include "../Support/Waits.h"
#include "fsdp/Runtime/Comm/Comm.h"

#include <map>
#include <mutex>

namespace fsdp {

/// What the members of one group share.
struct LocalGroup;

/// All groups of one set of ranks.
class LocalWorld {
public:
  explicit LocalWorld(unsigned ranks);
  ~LocalWorld();

  std::unique_ptr<Comm>
  openComm(unsigned communicator, const Group &group,
           std::chrono::milliseconds timeout = defaultTimeout);
  void abort() noexcept { waits.abort(); }

private:
  Waits waits;
  std::mutex mutex;
  /// By communicator and first member.
  std::map<std::pair<unsigned, unsigned>, std::unique_ptr<LocalGroup>> groups;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_LOCAL_H
