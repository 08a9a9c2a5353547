//===- PlanFile.cpp - The plan file as bytes ------------------------------===//

#include "fsdp/PlanFile/Steps.h"

#include "PlanCheck.h"
#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/InputFile.h"
#include "fsdp/Archive/WriteFile.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <xxhash.h>

namespace fsdp::planfile {

namespace {

constexpr size_t trailerSize = sizeof(XXH128_canonical_t);

XXH128_canonical_t hash(const uint8_t *data, size_t size) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  return canonical;
}

std::optional<Error> checkSize(const std::string &name, uint64_t size) {
  constexpr size_t smallest = 8 + trailerSize;
  constexpr size_t largest = FLATBUFFERS_MAX_BUFFER_SIZE;
  if (size >= smallest && size < largest)
    return std::nullopt;
  return Error{name + ": expected a plan file of " + std::to_string(smallest) +
               " to " + std::to_string(largest) + " bytes, found " +
               std::to_string(size) + " bytes"};
}

} // namespace

std::vector<uint8_t> appendTrailer(const uint8_t *data, size_t size) {
  std::vector<uint8_t> bytes;
  bytes.reserve(size + trailerSize);
  bytes.assign(data, data + size);
  XXH128_canonical_t trailer = hash(data, size);
  bytes.insert(bytes.end(), std::begin(trailer.digest),
               std::end(trailer.digest));
  return bytes;
}

Expected<PlanFile> PlanFile::open(const std::string &path) {
  Expected<archive::InputFile> file = archive::InputFile::open(path);
  if (!file)
    return file.error();
  if (auto rejection = checkSize(path, file->size()))
    return *rejection;
  std::vector<uint8_t> bytes(file->size());
  if (auto error =
          file->read(0, reinterpret_cast<char *>(bytes.data()), bytes.size()))
    return *error;
  return fromBytes(path, std::move(bytes));
}

Expected<PlanFile> PlanFile::fromBytes(std::string name,
                                       std::vector<uint8_t> bytes) {
  if (auto rejection = checkSize(name, bytes.size()))
    return *rejection;
  if (!PlanBufferHasIdentifier(bytes.data()))
    return Error{name + ": expected a plan file, found other content"};

  size_t size = bytes.size() - trailerSize;
  XXH128_canonical_t expected = hash(bytes.data(), size);
  if (std::memcmp(expected.digest, bytes.data() + size, trailerSize) != 0)
    return Error{name + ": expected the checksum of the content in the last " +
                 std::to_string(trailerSize) +
                 " bytes, found another: the file is damaged or incomplete"};

  // At most one table per 4 bytes; the schema's deepest nesting is 5.
  flatbuffers::Verifier verifier(bytes.data(), size, 16,
                                 static_cast<uint32_t>(size / 4));
  if (!VerifyPlanBuffer(verifier))
    return Error{name + ": expected a well-formed FlatBuffer, found offsets "
                        "that lead outside or fields that are missing"};
  if (std::string rejection = PlanChecker(*GetPlan(bytes.data()), size).run();
      !rejection.empty())
    return Error{name + ": " + rejection};
  return PlanFile(std::move(name), std::move(bytes));
}

Expected<PlanFile> PlanFile::seal(std::string name, const uint8_t *data,
                                  size_t size) {
  return fromBytes(std::move(name), appendTrailer(data, size));
}

Expected<size_t> PlanFile::write(const std::string &path) const {
  std::string_view bytes(reinterpret_cast<const char *>(content.data()),
                         content.size());
  return archive::writeFile(path, {bytes});
}

std::string_view PlanFile::string(uint32_t index) const {
  if (index == none)
    return {};
  return plan().strings()->Get(index)->string_view();
}

size_t getItemSize(DType dtype) {
  return archive::getItemSize(static_cast<archive::DType>(dtype));
}

std::vector<uint32_t> getStepPrograms(const Plan &plan,
                                      std::string_view program) {
  std::array<uint32_t, 4> parts; // by their numbers
  parts.fill(none);
  for (uint32_t i = 0; i != plan.programs()->size(); ++i) {
    const Program &own = *plan.programs()->Get(i);
    if (!own.is_init() &&
        plan.strings()->Get(own.name())->string_view() == program)
      return {i};
    parts[static_cast<size_t>(own.part())] = i;
  }
  if (plan.micro_batches() == 1 || program != defaultProgram)
    return {};
  std::vector<uint32_t> programs(plan.micro_batches(),
                                 parts[static_cast<size_t>(Part::Middle)]);
  programs.front() = parts[static_cast<size_t>(Part::First)];
  programs.back() = parts[static_cast<size_t>(Part::Last)];
  return programs;
}

std::optional<StepPrediction> predictStep(const Plan &plan,
                                          std::string_view program) {
  StepPrediction step;
  double atPeak = 0; // infinite if a peak is not known
  std::vector<uint32_t> programs = getStepPrograms(plan, program);
  for (uint32_t number : programs) {
    const Prediction *own = plan.programs()->Get(number)->prediction();
    if (!own)
      return {};
    auto flops = static_cast<double>(own->flops());
    step.seconds += 1e-9 * static_cast<double>(own->time_ns());
    step.exposed += 1e-9 * static_cast<double>(own->exposed_ns());
    step.flops += flops;
    if (flops > 0)
      atPeak += flops / static_cast<double>(own->peak());
  }
  if (programs.empty())
    return {};
  if (std::isfinite(atPeak) && atPeak > 0)
    step.atPeak = atPeak;
  return step;
}

std::optional<double> StepPrediction::mfu(double taken) const {
  if (!atPeak || !(taken > 0))
    return {};
  return *atPeak / taken;
}

std::string toSnakeCase(std::string_view name) {
  std::string text;
  for (char letter : name) {
    bool isUpper = letter >= 'A' && letter <= 'Z';
    if (isUpper && !text.empty())
      text += '_';
    text += static_cast<char>(isUpper ? letter - 'A' + 'a' : letter);
  }
  return text;
}

std::string describeCollective(Step kind, uint64_t bytes, DType dtype,
                               std::string_view unit, ReduceKind reduce) {
  std::string line = toSnakeCase(EnumNameStep(kind));
  line += reduce == ReduceKind::Max     ? " max "
          : reduce == ReduceKind::First ? " first "
                                        : " ";
  line += std::to_string(bytes) + " bytes ";
  line += archive::getMLIRName(static_cast<archive::DType>(dtype));
  if (!unit.empty())
    line.append(" ").append(unit);
  return line;
}

std::string digestCollectives(const std::vector<std::string> &sequence) {
  std::string text;
  for (const std::string &line : sequence)
    text.append(line).append("\n");
  char digits[17];
  std::snprintf(
      digits, sizeof digits, "%016llx",
      static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

const UpdateRuleFacts &getFacts(UpdateRule rule) {
  static const UpdateRuleFacts facts[] = {
      {"adamw", {"exp_avg", "exp_avg_sq"}, 2}, {"sgd", {"momentum"}, 0}};
  return facts[static_cast<size_t>(rule)];
}

uint32_t getRankCount(const Plan &plan) {
  uint32_t ranks = 1;
  for (const MeshAxis *axis : *plan.mesh())
    ranks *= axis->size();
  return ranks;
}

uint32_t getGroupSize(const Plan &plan, uint32_t communicator) {
  uint32_t ranks = 1;
  for (uint32_t axis : *plan.communicators()->Get(communicator)->axes())
    ranks *= plan.mesh()->Get(axis)->size();
  return ranks;
}

std::vector<std::vector<std::string>> getCollectives(const Plan &plan) {
  std::vector<std::vector<std::string>> lines(plan.communicators()->size());
  auto add = [&](Step kind, const auto &collective) {
    const Buffer &source = *plan.buffers()->Get(collective.source());
    uint64_t bytes = getItemSize(source.dtype());
    for (int64_t size : *plan.shapes()->Get(source.sizes())->values())
      bytes *= static_cast<uint64_t>(size);
    std::string_view unit;
    if (collective.unit() != none) {
      const Unit &owner = *plan.units()->Get(collective.unit());
      unit = plan.strings()->Get(owner.name())->string_view();
    }
    auto reduce = ReduceKind::Sum;
    if constexpr (std::is_same_v<decltype(collective), const AllReduce &>)
      reduce = collective.kind();
    lines[collective.communicator()].push_back(
        describeCollective(kind, bytes, source.dtype(), unit, reduce));
  };
  for (const Program *program : *plan.programs())
    for (const Command *command : *program->commands())
      visitStep(*command, [&](const auto &step) {
        if constexpr (isCollective<std::decay_t<decltype(step)>>)
          add(command->step_type(), step);
      });
  return lines;
}

} // namespace fsdp::planfile
