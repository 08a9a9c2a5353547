//===- PlanNumbers.cpp - What a plan is of
//---------------------------------===//
//
// The numbers of the mesh and of the table of parameters.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Values.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <algorithm>

namespace fsdp::symbolic {

uint64_t
getMeshNumber(const std::vector<std::pair<std::string, uint64_t>> &axes) {
  Key key("mesh");
  for (const auto &[name, size] : axes)
    key.add(hashText(name)).add(size);
  return key.number();
}

uint64_t getMicroBatchesNumber(uint64_t count) {
  return Key("micro-batches").add(count).number();
}

uint64_t getParametersNumber(std::vector<ParameterFacts> parameters) {
  std::sort(parameters.begin(), parameters.end(),
            [](const ParameterFacts &left, const ParameterFacts &right) {
              return left.name < right.name;
            });
  Key key("parameters");
  for (const ParameterFacts &parameter : parameters) {
    key.add(hashText(parameter.name)).add(parameter.isTrainable);
    key.add(parameter.aliases.size()).add(parameter.sizes.size());
    for (const std::string &alias : parameter.aliases)
      key.add(hashText(alias));
    for (size_t i = 0; i != parameter.sizes.size(); ++i)
      key.add(static_cast<uint64_t>(parameter.sizes[i]))
          .add(static_cast<uint64_t>(parameter.strides[i]));
  }
  return key.number();
}

} // namespace fsdp::symbolic
