//===- TrainingOptions.cpp - What a training is told ----------------------===//

#include "fsdp/Runtime/Training/TrainingOptions.h"

#include "Digests.h"

#include "fsdp/Archive/Numbers.h"
#include "fsdp/Runtime/Training/Processes.h"

#include <charconv>
#include <cmath>
#include <sstream>

using namespace fsdp;

/// Each "GROUP=FACTOR".
void fsdp::readScales(const std::vector<std::string> &texts,
                      std::map<unsigned, double> &scales) {
  for (const std::string &text : texts) {
    unsigned group = 0;
    double factor = -1;
    const char *end = text.data() + text.size();
    auto [middle, error] = std::from_chars(text.data(), end, group);
    if (error == std::errc() && middle != end && *middle == '=') {
      auto [last, problem] = std::from_chars(middle + 1, end, factor);
      if (problem != std::errc() || last != end)
        factor = -1;
    }
    if (group == 0 || !(factor >= 0) || std::isinf(factor))
      throw Error("--lr-scale: expected a group from 1 and a factor of at "
                  "least 0, as 1=0.1; found " +
                  text);
    if (!scales.emplace(group, factor).second)
      throw Error("--lr-scale: expected one factor for group " +
                  std::to_string(group) + ", found two");
  }
}

//===----------------------------------------------------------------------===//
// Hyper-parameters
//===----------------------------------------------------------------------===//

static constexpr HyperParameterOption numberOptions[] = {
    {"--lr", "Learning rate", &HyperParameters::lr},
    {"--beta1", "Of AdamW", &HyperParameters::beta1},
    {"--beta2", "Of AdamW", &HyperParameters::beta2},
    {"--eps", "Of AdamW", &HyperParameters::eps},
    {"--weight-decay", "Of AdamW, decoupled", &HyperParameters::weightDecay},
    {"--momentum", "Of SGD, if the plan has a buffer for it",
     &HyperParameters::momentum}};

std::span<const HyperParameterOption> fsdp::getHyperParameterOptions() {
  return numberOptions;
}

bool fsdp::isNamedSchedule(const std::string &schedule) {
  return schedule == "constant" || schedule == "linear" || schedule == "cosine";
}

TrainingFacts fsdp::spellHyperParameters(const TrainingOptions &options) {
  TrainingFacts facts;
  auto add = [&](const char *name, std::string value) {
    facts.emplace_back(name, std::move(value));
  };
  add("--steps", std::to_string(options.steps));
  add("--lr-schedule", isNamedSchedule(options.lrSchedule)
                           ? options.lrSchedule
                           : "with digest " + digestFile(options.lrSchedule));
  add("--warmup-steps", std::to_string(options.warmupSteps));
  for (const HyperParameterOption &option : numberOptions)
    add(option.name,
        archive::spellNumber(options.hyperParameters.*option.value));
  std::string scales;
  for (auto [group, factor] : options.lrScales)
    scales += (scales.empty() ? "" : " ") + std::to_string(group) + "=" +
              archive::spellNumber(factor);
  add("--lr-scale", scales.empty() ? "none" : scales);
  return facts;
}

void fsdp::checkSteps(const TrainingOptions &options) {
  if (options.data.empty())
    return;
  if (options.steps == 0 && !options.given.contains("--steps"))
    throw Error("expected --steps N, how many steps to train on " +
                options.data + "; found none");
  if (options.steps < 1)
    throw Error("--steps: expected at least 1, found " +
                std::to_string(options.steps));
  if (options.warmupSteps < 0 || options.warmupSteps > options.steps)
    throw Error("--warmup-steps: expected from 0 to the " +
                std::to_string(options.steps) + " of --steps, found " +
                std::to_string(options.warmupSteps));
}

void fsdp::resumeHyperParameters(const TrainingFacts &facts,
                                 TrainingOptions &options) {
  std::map<std::string, std::string> told(facts.begin(), facts.end());
  for (const std::string &name : options.given)
    told.erase(name);
  auto take = [&](const char *name, auto &value) {
    auto fact = told.find(name);
    if (fact == told.end())
      return;
    const std::string &text = fact->second;
    const char *end = text.data() + text.size();
    auto [last, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || last != end)
      throw Error(std::string("--resume: expected a number as ") + name +
                  " of the checkpoint, found '" + text + "'");
  };
  take("--steps", options.steps);
  take("--warmup-steps", options.warmupSteps);
  for (const HyperParameterOption &option : numberOptions)
    take(option.name, options.hyperParameters.*option.value);
  options.hyperParameters.check();
  if (auto schedule = told.find("--lr-schedule"); schedule != told.end()) {
    if (!isNamedSchedule(schedule->second))
      throw Error("--resume: expected --lr-schedule, since the rates of the "
                  "checkpoint came from a file, which it does not have; found "
                  "none");
    options.lrSchedule = schedule->second;
  }
  if (auto scales = told.find("--lr-scale"); scales != told.end() &&
                                             !scales->second.empty() &&
                                             scales->second != "none") {
    // Six digits after the point are not always all.
    if (scales->second.starts_with(' '))
      throw Error("--resume: expected --lr-scale, since the checkpoint is of a "
                  "version that rounded the factors (" +
                  scales->second.substr(1) + "); found none");
    std::istringstream words(scales->second);
    std::vector<std::string> texts;
    for (std::string word; words >> word;)
      texts.push_back(word);
    readScales(texts, options.lrScales);
  }
  checkSteps(options);
}
