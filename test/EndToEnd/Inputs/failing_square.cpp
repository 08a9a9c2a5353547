// The custom operators of role_custom_op, of which the first fails on one rank,
// in its second step.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <atomic>

static at::Tensor scaledSquare(const at::Tensor &x, double scale) {
  static thread_local int calls =
      0; // A rank is a thread: 2 calls to probe, 2 a step.
  static std::atomic<bool> failed{false};
  if (++calls == 5 && !failed.exchange(true))
    throw std::runtime_error("out of luck");
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
