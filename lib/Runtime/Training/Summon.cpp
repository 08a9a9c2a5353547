//===- Summon.cpp - Whole parameters and gradients, as a file -------------===//

#include "Summon.h"

#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Runtime/Checkpoints/NameRegex.h"

using namespace fsdp;

Summon::Summon(const planfile::PlanFile &plan, const TrainingOptions &options,
               bool writes)
    : path(options.summon), writes(writes) {
  if (path.empty())
    return;
  NameRegex regex("--summon-only", options.summonOnly);
  auto add = [&](const TensorName &tensor) {
    std::string own(tensor.name);
    if (!regex.matches(own))
      return;
    if (tensor.kind == TensorName::Kind::Gradient)
      gradients.emplace("grad." + own, tensor);
    else
      tensors.emplace(own, tensor);
  };
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      std::string_view name = plan.string(parameter->name());
      add(TensorName::parameter(name));
      if (options.withGrads && parameter->trainable() &&
          unit->gradient() != planfile::none)
        add(TensorName::gradient(name));
    }
  for (std::uint32_t i = 0; i != plan->buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan->buffers()->Get(i);
    if (buffer.role() != planfile::BufferRole::ModelBuffer ||
        buffer.root() != i || buffer.name() == planfile::none)
      continue;
    // What the plan brings along is no part of the model, unless it changes.
    std::string_view name = plan.string(buffer.name());
    if (!buffer.bytes() || planfile::isGradScalerState(name))
      add(TensorName::buffer(name));
  }
  if (tensors.empty())
    throw Error("--summon-only: expected '" + options.summonOnly +
                "' to match the name of a parameter or model buffer of " +
                plan.name() + ", found none");
  if (options.withGrads && gradients.empty())
    throw Error("--with-grads: expected a parameter of " + plan.name() +
                " that trains" +
                (options.summonOnly.empty()
                     ? ""
                     : " and that '" + options.summonOnly + "' matches") +
                ", found none");
}

void Summon::read(const Session &session,
                  const std::map<std::string, TensorName> &wanted) {
  for (const auto &[name, tensor] : wanted) {
    HostTensor value = session.gather(tensor);
    if (writes)
      values[name] = std::move(value);
  }
}

void Summon::readGradients(const Session &session) { read(session, gradients); }

void Summon::write(const Session &session) {
  if (path.empty())
    return;
  read(session, tensors);
  if (!writes)
    return;
  std::vector<archive::TensorRef> refs;
  for (const auto &[name, value] : values)
    refs.push_back({name,
                    archive::DType(value.type),
                    value.sizes,
                    {reinterpret_cast<const char *>(value.bytes.data()),
                     value.bytes.size()}});
  auto written = archive::writeSafetensors(path, refs, {{"format", "pt"}});
  if (!written)
    throw Error(written.error().message, Failure::RankFailed);
}
