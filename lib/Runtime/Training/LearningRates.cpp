//===- LearningRates.cpp - The learning rate of each step -----------------===//

#include "LearningRates.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/InputFile.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <set>

using namespace fsdp;

/// A number on each line.
static std::vector<double> readRates(const std::string &path, long long steps) {
  auto fail = [&](const std::string &what) -> Error {
    return Error("--lr-schedule: " + path + ": " + what);
  };
  constexpr std::uint64_t most = std::uint64_t{256} << 20;
  auto file = archive::InputFile::open(path);
  if (!file)
    throw Error("--lr-schedule: expected constant, linear, cosine or a file; " +
                file.error().message);
  if (file->size() > most)
    throw fail("expected at most 256 MiB, found " +
               std::to_string(file->size()) + " bytes");
  auto text = file->read();
  if (!text)
    throw Error("--lr-schedule: " + text.error().message);

  std::vector<double> rates;
  const char *place = text->data(), *end = place + text->size();
  while (place != end && static_cast<long long>(rates.size()) != steps) {
    const char *line = std::find(place, end, '\n');
    // Escaped: an exception's text would end at a zero.
    std::string shown = archive::escape(
        {place, std::size_t(std::min<std::ptrdiff_t>(line - place, 40))});
    double rate = 0;
    auto [stop, error] = std::from_chars(place, line, rate);
    if (error != std::errc{} ||
        std::any_of(stop, line, [](char c) { return c != ' ' && c != '\r'; }))
      throw fail("line " + std::to_string(rates.size() + 1) +
                 ": expected one number, found '" + shown + "'");
    if (!(rate >= 0) || std::isinf(rate))
      throw fail("line " + std::to_string(rates.size() + 1) +
                 ": expected a rate of at least 0, found " + shown);
    rates.push_back(rate);
    place = line == end ? end : line + 1;
  }
  if (static_cast<long long>(rates.size()) != steps)
    throw fail("expected a line for each of " + std::to_string(steps) +
               " steps, found " + std::to_string(rates.size()));
  return rates;
}

/// The factor of each decay group of the plan that has one, by those of groups
/// of learning rates.
static std::map<unsigned, double>
scaleGroups(const planfile::PlanFile &plan,
            const std::map<unsigned, double> &scales) {
  std::map<unsigned, double> groups;
  std::set<unsigned> unseen, known;
  for (const auto &[group, factor] : scales)
    unseen.insert(group);
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    if (buffer->role() != planfile::BufferRole::Hyper)
      continue;
    // Two decay groups for each, with decay and without.
    unsigned group = buffer->index() / 2;
    known.insert(group);
    unseen.erase(group);
    if (auto scale = scales.find(group); scale != scales.end())
      groups[buffer->index()] = scale->second;
  }
  known.erase(0);
  if (unseen.empty())
    return groups;
  std::string found;
  for (unsigned group : known)
    found += (found.empty() ? "" : ", ") + std::to_string(group);
  throw Error("--lr-scale: expected a group of " + plan.name() +
              ", as fsdp-plan --lr-groups makes them (" +
              (found.empty() ? "it has none" : found) + "), found " +
              std::to_string(*unseen.begin()));
}

LearningRates::LearningRates(const planfile::PlanFile &plan,
                             const TrainingOptions &options)
    : options(options), scales(scaleGroups(plan, options.lrScales)) {
  if (!isNamedSchedule(options.lrSchedule))
    rates = readRates(options.lrSchedule, options.steps);
}

double LearningRates::at(long long step) const {
  if (!rates.empty())
    return rates[static_cast<std::size_t>(step - 1)];
  double lr = options.hyperParameters.lr;
  auto done = static_cast<double>(step - 1);
  auto warmup = static_cast<double>(options.warmupSteps);
  if (done < warmup)
    return lr * (done / warmup);
  double left = static_cast<double>(options.steps) - warmup;
  double progress = (done - warmup) / std::max(left, 1.0);
  if (options.lrSchedule == "linear")
    return lr * (1 - progress);
  if (options.lrSchedule == "cosine")
    return lr * (0.5 * (1 + std::cos(std::numbers::pi * progress)));
  return lr;
}
