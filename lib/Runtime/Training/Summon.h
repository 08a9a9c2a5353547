//===- Summon.h - Whole parameters and gradients, as a file -----*- C++ -*-===//
//
// As `summon_full_params` of FSDP1: what the ranks hold in parts is put
// together, once, in the host memory of the process that writes them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_SUMMON_H
#define FSDP_LIB_RUNTIME_TRAINING_SUMMON_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Training/TrainingOptions.h"

#include <map>

namespace fsdp {

class Summon {
public:
  /// What `options` ask for. Throws if nothing in the plan has such a name.
  /// `writes`: in a run of several processes, one does; all read.
  Summon(const planfile::PlanFile &plan, const TrainingOptions &options,
         bool writes);

  /// The last program of a training has reduced its gradients.
  bool wantsGradients() const { return !gradients.empty(); }
  void readGradients(const Session &session);

  /// After the training. Does nothing if nothing is asked for.
  void write(const Session &session);

private:
  std::string path;
  bool writes;
  /// By the tensor's name in the file.
  std::map<std::string, TensorName> tensors, gradients;
  std::map<std::string, HostTensor> values;
  void read(const Session &session,
            const std::map<std::string, TensorName> &wanted);
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_SUMMON_H
