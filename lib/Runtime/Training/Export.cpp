//===- Export.cpp - A trained model for others ----------------------------===//

#include "Export.h"

#include <algorithm>
#include <exception>

using namespace fsdp;

Export::Export(const planfile::PlanFile &plan, const TrainingOptions &options,
               const std::map<std::string, std::string> &names, bool writes)
    : path(options.exported), maxShardSize(options.maxShardSize),
      writes(writes) {
  if (path.empty())
    return;
  if (writes)
    if (auto error = archive::checkModelPath(path))
      throw Error("--export: " + error->message);
  auto add = [&](const TensorName &own, planfile::DType type,
                 std::uint32_t shape) {
    std::string name(own.name);
    auto found = names.find(name);
    archive::TensorSpec tensor{
        found == names.end() ? name : found->second, archive::DType(type), {}};
    if (shape != planfile::none)
      tensor.shape.assign(plan.shape(shape).begin(), plan.shape(shape).end());
    tensors.emplace_back(std::move(tensor), own);
  };
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters())
      add(TensorName::parameter(plan.string(parameter->name())),
          unit->storage(), parameter->sizes());
  for (std::uint32_t i = 0; i != plan->buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan->buffers()->Get(i);
    // What the plan brings along is no part of the model.
    if (buffer.role() == planfile::BufferRole::ModelBuffer &&
        buffer.root() == i && buffer.name() != planfile::none &&
        !buffer.bytes())
      add(TensorName::buffer(plan.string(buffer.name())), buffer.dtype(),
          buffer.sizes());
  }
  auto nameOf = [](const auto &tensor) -> const std::string & {
    return tensor.first.name;
  };
  std::ranges::sort(tensors, {}, nameOf);
  auto twice = std::ranges::adjacent_find(tensors, {}, nameOf);
  if (twice != tensors.end())
    throw Error("--export: expected tensors with names of their own, found two "
                "that are called " +
                twice->first.name);
}

void Export::write(const Session &session) const {
  if (path.empty())
    return;
  std::vector<archive::TensorSpec> wanted;
  for (const auto &[tensor, name] : tensors)
    wanted.push_back(tensor);
  // No exception passes through what writes, which has a file to clean up.
  std::exception_ptr failure;
  auto read = [&](std::size_t index) -> archive::Expected<std::string> {
    try {
      HostTensor value = session.gather(tensors[index].second);
      return std::string(reinterpret_cast<const char *>(value.bytes.data()),
                         value.bytes.size());
    } catch (const std::exception &error) {
      failure = std::current_exception();
      return archive::Error{error.what()};
    }
  };
  auto error = archive::writeModel(path, maxShardSize, wanted, writes, read);
  if (failure)
    std::rethrow_exception(failure);
  if (error)
    throw Error("--export: " + error->message, Failure::RankFailed);
}
