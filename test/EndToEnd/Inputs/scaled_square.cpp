// The custom operators of role_custom_op, as a library for `fsdp-run --load`.
// In its second step, one rank does what FSDP_TEST_DEED says: throw, exit, kill
// or hang; of several processes, the one of FSDP_TEST_RANK.

#include <ATen/ATen.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <torch/library.h>
#include <unistd.h>

static std::string getVariable(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

static void checkCall() {
  // A rank is a thread: 2 calls to probe, 2 a step.
  static thread_local int calls = 0;
  static std::atomic<bool> isDone{false};
  std::string deed = getVariable("FSDP_TEST_DEED");
  if (++calls != 5 || deed.empty() || isDone.exchange(true))
    return;
  // Open MPI's name for it, and MPICH's.
  std::string rank =
      getVariable("OMPI_COMM_WORLD_RANK") + getVariable("PMI_RANK");
  if (rank != getVariable("FSDP_TEST_RANK"))
    return;
  if (deed == "exit")
    _exit(0);
  if (deed == "kill")
    raise(SIGKILL);
  while (deed == "hang")
    sleep(1);
  throw std::runtime_error("out of luck");
}

static at::Tensor scaledSquare(const at::Tensor &x, double scale) {
  checkCall();
  return x * x * scale;
}

static at::Tensor scaledSquareBackward(const at::Tensor &grad,
                                       const at::Tensor &x, double scale) {
  return grad * (2 * scale) * x;
}

TORCH_LIBRARY(fsdp_test, m) {
  m.def("scaled_square(Tensor x, float scale) -> Tensor");
  m.def("scaled_square_backward(Tensor grad, Tensor x, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(fsdp_test, CPU, m) {
  m.impl("scaled_square", &scaledSquare);
  m.impl("scaled_square_backward", &scaledSquareBackward);
}
