//===- Export.h - A trained model for others --------------------*- C++ -*-===//
//
// Parameters and model buffers under the names that the weights had, as
// `save_pretrained` of Hugging Face writes them (`WriteModel.h`).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_EXPORT_H
#define FSDP_LIB_RUNTIME_TRAINING_EXPORT_H

#include "fsdp/Archive/WriteModel.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Training/TrainingOptions.h"

#include <map>

namespace fsdp {

class Export {
public:
  /// Throws if there can be no such file or folder. `names`: of the weights, by
  /// those of the plan; a tensor without one has the plan's. `writes`: in a run
  /// of several processes, one does; all read.
  Export(const planfile::PlanFile &plan, const TrainingOptions &options,
         const std::map<std::string, std::string> &names, bool writes);

  /// After the training. Does nothing if nothing is asked for.
  void write(const Session &session) const;

private:
  const std::string &path;
  std::uint64_t maxShardSize;
  bool writes;
  /// By name in the file.
  std::vector<std::pair<archive::TensorSpec, TensorName>> tensors;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_EXPORT_H
