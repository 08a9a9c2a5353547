//===- Reference.cpp - What PyTorch says about a plan ---------------------===//

#include "fsdp/Runtime/Data/Reference.h"

#include "../Support/Text.h"
#include "Files.h"

#include <algorithm>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

using namespace fsdp;

//===----------------------------------------------------------------------===//
// Comparison
//===----------------------------------------------------------------------===//

static archive::DType toArchive(planfile::DType dtype) {
  return static_cast<archive::DType>(dtype);
}

template <typename T>
static std::vector<double> widen(std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i != values.size(); ++i) {
    T value;
    std::memcpy(static_cast<void *>(&value), bytes.data() + i * sizeof(T),
                sizeof(T));
    values[i] = static_cast<double>(value);
  }
  return values;
}

static bool isInteger(planfile::DType dtype) {
  return dtype <= planfile::DType::I64 || dtype >= planfile::DType::U16;
}

/// Floating-point values; complex ones as pairs.
static std::vector<double> widen(const TensorView &tensor) {
  switch (tensor.type) {
  case planfile::DType::C128:
  case planfile::DType::F64:
    return widen<double>(tensor.bytes);
  case planfile::DType::C64:
  case planfile::DType::F32:
    return widen<float>(tensor.bytes);
  case planfile::DType::F16:
    return widen<c10::Half>(tensor.bytes);
  case planfile::DType::BF16:
    return widen<c10::BFloat16>(tensor.bytes);
  default:
    return {};
  }
}

void Comparison::compare(const std::string &name, const TensorView &expected,
                         const TensorView &found) {
  Tensor &entry = tensors.emplace_back(Tensor{.name = name});
  std::vector<double> reference = widen(expected), values = widen(found);
  bool areIntegers = isInteger(expected.type) || isInteger(found.type);
  if (!std::ranges::equal(expected.sizes, found.sizes) ||
      reference.size() != values.size() ||
      (areIntegers && expected.type != found.type))
    return fail(name + ": expected " +
                spellTensor(expected.sizes, toArchive(expected.type)) +
                ", found " + spellTensor(found.sizes, toArchive(found.type)));
  if (areIntegers) {
    if (!std::ranges::equal(expected.bytes, found.bytes))
      fail(name + ": expected the integers of the reference, found others");
    else
      entry.difference = 0;
    return;
  }
  double largest = 0, difference = 0;
  bool isNumber = true;
  for (std::size_t i = 0; i != values.size(); ++i) {
    if (std::isinf(reference[i]) && values[i] == reference[i])
      continue;
    double d = std::abs(values[i] - reference[i]);
    isNumber = isNumber && !std::isnan(d);
    difference = std::max(difference, d);
    if (std::isfinite(reference[i]))
      largest = std::max(largest, std::abs(reference[i]));
  }
  double allowed = tolerance * largest + 1e-7;
  entry.allowed = allowed;
  if (!isNumber)
    return fail(name + ": expected numbers, found NaN");
  entry.difference = difference;
  if (!(difference <= allowed))
    fail(name + ": expected values within " + spellNumber(allowed) +
             " of the reference, whose largest is " + spellNumber(largest) +
             ", found one off by " + spellNumber(difference),
         difference / allowed);
}

const Comparison::Tensor &Comparison::worstTensor() const {
  return *std::ranges::max_element(tensors, {}, [](const Tensor &tensor) {
    return tensor.difference / tensor.allowed;
  });
}

std::vector<std::string> Comparison::problems() const {
  std::vector<const Problem *> order;
  for (const Problem &problem : failures)
    order.push_back(&problem);
  std::ranges::sort(order, [](const Problem *a, const Problem *b) {
    return std::pair(-a->severity, a) < std::pair(-b->severity, b);
  });
  std::vector<std::string> sentences;
  for (const Problem *problem : order)
    sentences.push_back(problem->sentence);
  return sentences;
}

std::string Comparison::summary() const {
  if (tensors.empty())
    return "compared no tensors";
  const Tensor &worst = worstTensor();
  return "compared " + std::to_string(tensors.size()) + " tensors, worst " +
         worst.name + ": off by " + spellNumber(worst.difference) + " where " +
         spellNumber(worst.allowed) + " is allowed";
}

//===----------------------------------------------------------------------===//
// The file
//===----------------------------------------------------------------------===//

HostTensor Reference::read(const archive::TensorInfo &tensor) const {
  HostTensor value{static_cast<planfile::DType>(tensor.dtype), tensor.shape,
                   std::vector<std::byte>(tensor.bytes)};
  readBytes(file, tensor, 0, value.bytes);
  return value;
}

const archive::TensorInfo &Reference::get(const std::string &name) const {
  if (const archive::TensorInfo *tensor = file.find(name))
    return *tensor;
  throw Error(file.path() + ": expected a tensor " + name +
              ", found no such name");
}

void Reference::checkInputs(const planfile::PlanFile &plan) {
  ranks = planfile::getRankCount(plan.plan());
  bool isTraining = file.find("losses") != nullptr;
  if (isTraining) {
    const archive::TensorInfo &losses = get("losses");
    if (losses.shape.size() != 1 || losses.shape[0] == 0)
      throw Error(file.path() + ": losses: expected one for each step, found " +
                  spellTensor(losses.shape, losses.dtype));
    steps = static_cast<std::size_t>(losses.shape[0]);
  } else {
    get("loss");
  }

  std::size_t microBatches = programs.size();
  std::int64_t batches = static_cast<std::int64_t>(
      std::max<std::size_t>(steps, 1) * microBatches * ranks);
  inputTensors = findInputs(file, inputs, [](std::string_view name) {
    return name == "loss" || name == "losses" || name.starts_with("grad.") ||
           name.starts_with("param.") || name.starts_with("output.");
  });
  for (std::size_t i = 0; i != inputs.size(); ++i) {
    const archive::TensorInfo &tensor = *inputTensors[i];
    std::vector<std::int64_t> perRank = inputs[i].sizes;
    perRank.insert(perRank.begin(), isTraining ? batches : ranks);
    if (!isTraining && microBatches > 1)
      perRank.insert(perRank.begin(), static_cast<std::int64_t>(microBatches));
    archive::DType dtype = toArchive(inputs[i].type);
    if (tensor.dtype == dtype &&
        (tensor.shape == perRank ||
         (!isTraining && tensor.shape == inputs[i].sizes)))
      continue;
    throw Error(
        file.path() + ": " + tensor.name + ": expected " +
        spellTensor(perRank, dtype) +
        (isTraining ? "" : " or " + spellTensor(inputs[i].sizes, dtype)) +
        ", found " + spellTensor(tensor.shape, tensor.dtype));
  }
}

Reference Reference::open(const std::string &path,
                          const planfile::PlanFile &plan,
                          std::string_view program) {
  Reference reference(take(archive::Safetensors::open(path)), plan, program);
  reference.checkInputs(plan);
  (void)reference.seeds();
  for (const planfile::Buffer *buffer : *plan->buffers())
    if (buffer->role() == planfile::BufferRole::Output &&
        buffer->owner() == findProgram(plan, reference.programs.back()))
      reference.outputs.push_back(buffer->index());
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      std::vector<std::string> &names = reference.parameters.emplace_back();
      names.emplace_back(plan.string(parameter->name()));
      if (parameter->aliases())
        for (std::uint32_t alias : *parameter->aliases())
          names.emplace_back(plan.string(alias));
    }
  return reference;
}

Seeds Reference::seeds() const {
  auto it = file.metadata().find("seed");
  try {
    return it == file.metadata().end() ? Seeds() : Seeds::parse(it->second);
  } catch (const Error &error) {
    throw Error(file.path() + ": seed: " + error.what());
  }
}

HyperParameters Reference::hyperParameters() const {
  HyperParameters values;
  for (auto [key, value] :
       {std::pair("lr", &values.lr), std::pair("beta1", &values.beta1),
        std::pair("beta2", &values.beta2), std::pair("eps", &values.eps),
        std::pair("weight_decay", &values.weightDecay),
        std::pair("momentum", &values.momentum)}) {
    auto it = file.metadata().find(key);
    if (it == file.metadata().end())
      continue;
    const std::string &text = it->second;
    auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc() || end != text.data() + text.size())
      throw Error(file.path() + ": " + key + ": expected a number, found " +
                  text);
  }
  return values;
}

HostTensor Reference::input(std::size_t microBatch, unsigned rank,
                            std::size_t index) const {
  const InputSpec &spec = inputs[index];
  const archive::TensorInfo &tensor = *inputTensors[index];
  bool isBatched = tensor.shape.size() > spec.sizes.size();
  HostTensor value{spec.type, spec.sizes, std::vector<std::byte>(spec.bytes())};
  readBytes(file, tensor,
            isBatched ? (microBatch * ranks + rank) * spec.bytes() : 0,
            value.bytes);
  return value;
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

void Reference::compareOutputs(const Session &session,
                               Comparison &result) const {
  for (std::uint32_t index : outputs) {
    std::string name = "output." + std::to_string(index);
    const archive::TensorInfo *tensor = file.find(name);
    if (!tensor) {
      result.fail("expected all that the plan has, found nothing for " + name);
      continue;
    }
    HostTensor expected = read(*tensor);
    for (unsigned rank = 0; rank != ranks; ++rank) {
      HostTensor found = session.output(rank, index, programs.back());
      TensorView all = expected, own = all;
      std::size_t size = all.bytes.size() / ranks;
      if (all.sizes.size() > found.sizes.size() &&
          all.sizes[0] == static_cast<std::int64_t>(ranks))
        own = {all.type, all.sizes.subspan(1),
               all.bytes.subspan(rank * size, size)};
      result.compare(name + " of rank " + std::to_string(rank), own, found);
    }
  }
}

Comparison Reference::run(Session &session, double tolerance) const {
  Comparison result(tolerance);
  bool isTraining = steps != 0;
  session.setSeeds(seeds());
  if (isTraining)
    session.setHyperParameters(hyperParameters());
  std::vector<double> losses;
  std::size_t microBatch = 0;
  for (std::size_t step = 0; step != std::max<std::size_t>(steps, 1); ++step) {
    double &loss = losses.emplace_back(0);
    for (const std::string &program : programs) {
      for (unsigned rank = session.ranks().first; rank != session.ranks().end();
           ++rank)
        for (std::size_t i = 0; i != inputs.size(); ++i)
          session.setInput(rank, i, input(microBatch, rank, i), program);
      ++microBatch;
      session.run(program, {true, true, isTraining});
      loss += session.loss(program) / static_cast<double>(programs.size());
    }
  }
  std::vector<std::int64_t> count;
  if (isTraining)
    count.push_back(static_cast<std::int64_t>(losses.size()));
  const char *lossName = isTraining ? "losses" : "loss";
  result.compare(
      lossName, read(get(lossName)),
      {planfile::DType::F64, count, std::as_bytes(std::span(losses))});
  if (!isTraining)
    compareOutputs(session, result);

  // Each of the session's tensors has one of the file under any of its names.
  std::string prefix = isTraining ? "param." : "grad.";
  std::set<std::string> known;
  std::vector<std::string> onlyInPlan, onlyHere;
  using Kind = TensorName::Kind;
  for (const TensorName &own :
       session.tensors(isTraining ? Kind::Parameter : Kind::Gradient)) {
    auto spellings = std::ranges::find(
        parameters, own.name, [](const auto &all) { return all.front(); });
    const archive::TensorInfo *expected = nullptr;
    for (const std::string &spelling : *spellings) {
      const archive::TensorInfo *tensor = file.find(prefix + spelling);
      if (!tensor)
        continue;
      known.insert(tensor->name);
      expected = expected ? expected : tensor;
    }
    if (expected)
      result.compare(expected->name, read(*expected), session.read(own));
    else
      onlyInPlan.push_back(prefix + std::string(own.name));
  }
  // To a plan, a parameter that nobody can train is a buffer.
  if (isTraining)
    for (const TensorName &own : session.tensors(Kind::Buffer))
      if (const archive::TensorInfo *expected =
              file.find(prefix + std::string(own.name))) {
        known.insert(expected->name);
        result.compare(expected->name, read(*expected), session.read(own));
      }
  for (const archive::TensorInfo &tensor : file.tensors())
    if (tensor.name.starts_with(prefix) && !known.contains(tensor.name))
      onlyHere.push_back(tensor.name);
  if (!onlyInPlan.empty())
    result.fail("expected all that the plan has, found nothing for " +
                listSome(onlyInPlan));
  if (!onlyHere.empty())
    result.fail("expected only what the plan has, found " + listSome(onlyHere));
  for (std::string &problem : session.findDirtyPadding(!isTraining))
    result.fail(std::move(problem));
  return result;
}
