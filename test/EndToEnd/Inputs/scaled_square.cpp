// The custom operators of role_custom_op, as a library for `fsdp-run --load`.

#include <ATen/ATen.h>
#include <torch/library.h>

#ifndef FSDP_CHECK_CALL
#define FSDP_CHECK_CALL() // failing_square.cpp has one
#endif

static at::Tensor scaledSquare(const at::Tensor &x, double scale) {
  FSDP_CHECK_CALL();
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
