//===- Export.h - A trained model for others ---------------------*- C++
//-*-===//
//
// Parameters and model buffers under the names that the weights had, as
// `save_pretrained` of Hugging Face writes them: in one safetensors file, or in
// a folder of several with an index. Tensors of one file at a time are whole,
// in the host memory of the process that writes.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_RUN_EXPORT_H
#define FSDP_TOOLS_FSDP_RUN_EXPORT_H

#include "Options.h"
#include "fsdp/Archive/PlanFile.h"

#include <map>

namespace fsdp {

class Export {
public:
  /// Throws if there can be no such file or folder. `names`: of the weights, by
  /// those of the plan; a tensor without one has the plan's. `writes`: in a run
  /// of several processes, one does; all read.
  Export(const planfile::PlanFile &plan, const Options &options,
         const std::map<std::string, std::string> &names, bool writes);

  /// After the training. Does nothing if nothing is asked for.
  void write(const Session &session) const;

private:
  struct Tensor {
    std::string name; ///< In the file.
    TensorName tensor;
    std::uint64_t bytes;
  };
  bool isFile() const;
  /// Writes a file, if this process does.
  void write(const Session &session, const std::string &file,
             std::span<const Tensor> part) const;
  void writeFolder(const Session &session) const;
  /// Consecutive tensors of which one file has no more than `maxShardSize`
  /// bytes, unless there is but one.
  std::vector<std::span<const Tensor>> split() const;

  std::string path;
  std::uint64_t maxShardSize;
  bool writes;
  std::vector<Tensor> tensors; ///< By name.
};

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_EXPORT_H
