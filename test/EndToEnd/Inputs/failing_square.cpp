// The custom operators of role_custom_op, of which the first fails on one rank,
// in its second step.

#include <atomic>
#include <stdexcept>

static void checkCall() {
  // A rank is a thread: 2 calls to probe, 2 a step.
  static thread_local int calls = 0;
  static std::atomic<bool> failed{false};
  if (++calls == 5 && !failed.exchange(true))
    throw std::runtime_error("out of luck");
}

#define FSDP_CHECK_CALL checkCall
#include "scaled_square.cpp"
