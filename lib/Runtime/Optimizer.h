//===- Optimizer.h - The update of one unit ---------------------*- C++ -*-===//
//
// One fused call per unit, over the pieces of its intervals that lie in this
// rank's shard. An interval is in elements of the unsharded flat parameter.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_OPTIMIZER_H
#define FSDP_LIB_RUNTIME_OPTIMIZER_H

#include "Memory.h"
#include "fsdp/Runtime/Session.h"

namespace fsdp {

class AdamW {
public:
  /// `step`: a tensor that holds the number of the update, from 1.
  AdamW(const planfile::Plan &plan, const planfile::AdamW &command,
        unsigned shard, Memory &memory, const at::Tensor &step);
  void run(const HyperParameters &values);

private:
  std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
};

class SGD {
public:
  SGD(const planfile::Plan &plan, const planfile::SGD &command, unsigned shard,
      Memory &memory);
  void run(const HyperParameters &values, bool isFirst);

private:
  std::vector<at::Tensor> parameters, gradients, momenta;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_OPTIMIZER_H
