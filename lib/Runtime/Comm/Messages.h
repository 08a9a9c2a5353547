//===- Messages.h - Collectives out of messages -----------------*- C++ -*-===//
//
// What backends share that carry bytes from one rank to another and compute
// nothing. A sum is made by the code that the local backend uses, of pieces in
// the type of the source, in the order of the ranks: the bits are the same.
// Pieces arrive in chunks in a workspace of fixed size. A collective is
// complete when all that this rank sends has been received, or copied.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_MESSAGES_H
#define FSDP_LIB_RUNTIME_COMM_MESSAGES_H

#include "fsdp/Runtime/Comm/Comm.h"

#include <array>

namespace fsdp {

class MessageComm : public Comm {
public:
  struct Limits {
    /// Of one message: engines count in `int`.
    std::size_t messageBytes = std::size_t{1} << 30;
    /// Of one communicator, at most; but for one element of each member.
    std::size_t workspaceBytes = std::size_t{4} << 20;
  };

  void prepare(std::span<const Collective> given) final;
  void run(std::size_t first, std::size_t count) final;
  /// Nobody reads the sources any more when a collective is complete.
  void drain(std::size_t, std::size_t) final { check(); }
  void barrier() final;
  std::size_t workspaceBytes() const final { return workspace.size(); }

protected:
  MessageComm(const Group &group, const Limits &limits)
      : ranks(group.members), index(group.index),
        size(static_cast<unsigned>(group.members.size())), limits(limits),
        sources(size) {}

  /// Messages that are on their way at the same time are a flight: there are
  /// two, and the next one may start before the other one has arrived.
  static constexpr unsigned flightCount = 2;

  /// Throws if the run was aborted.
  virtual void check() const = 0;
  /// Starts one message from, or to, another member. Those between two members
  /// arrive in the order in which they were sent.
  virtual void receive(unsigned flight, unsigned member, std::byte *to,
                       std::size_t bytes) = 0;
  virtual void send(unsigned flight, unsigned member, const std::byte *from,
                    std::size_t bytes) = 0;
  /// Waits until all messages of the flight have arrived, here and there.
  /// `deed`: what this rank waits for another one to do, "join it".
  virtual void finish(unsigned flight, const char *deed) = 0;

  const std::vector<unsigned> ranks; ///< Of the members.
  const unsigned index, size;

private:
  void run(const Collective &mine);
  void receiveParts(unsigned flight, unsigned member, std::byte *to,
                    std::size_t bytes);
  void sendParts(unsigned flight, unsigned member, const std::byte *from,
                 std::size_t bytes);
  void allGather(const Collective &mine);
  template <typename SliceOf>
  void reduce(const Collective &mine, std::byte *target,
              const SliceOf &sliceOf);
  void allReduce(const Collective &mine);
  std::byte *arrival(std::size_t chunk, unsigned member);

  const Limits limits;
  std::vector<Collective> collectives;
  /// For each flight, a place for each other member.
  std::vector<std::byte> workspace;
  std::size_t place = 0;
  std::vector<const std::byte *> sources; ///< Of a sum.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_MESSAGES_H
