//===- Data.cpp - Batches out of a file -----------------------------------===//

#include "fsdp/Runtime/Data.h"

#include "Files.h"
#include "Text.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;
using planfile::DType;

//===----------------------------------------------------------------------===//
// Inputs
//===----------------------------------------------------------------------===//

std::size_t InputSpec::numel() const {
  std::size_t product = 1;
  for (std::int64_t size : sizes)
    product *= static_cast<std::size_t>(size);
  return product;
}

std::size_t InputSpec::bytes() const {
  return numel() * planfile::getItemSize(type);
}

std::uint32_t fsdp::findProgram(const planfile::PlanFile &plan,
                                std::string_view name) {
  std::vector<std::string> names;
  for (std::uint32_t p = 0; p != plan->programs()->size(); ++p) {
    const planfile::Program &program = *plan->programs()->Get(p);
    if (program.is_init())
      continue;
    if (plan.string(program.name()) == name)
      return p;
    names.emplace_back(plan.string(program.name()));
  }
  throw Error(plan.name() + ": expected a program " + std::string(name) +
              ", found " + listSome(names));
}

std::vector<std::string> fsdp::getStepPrograms(const planfile::PlanFile &plan,
                                               std::string_view program) {
  std::vector<std::string> names;
  for (std::uint32_t p : planfile::getStepPrograms(plan.plan(), program))
    names.emplace_back(plan.string(plan->programs()->Get(p)->name()));
  if (names.empty())
    findProgram(plan, program); // throws
  return names;
}

std::vector<InputSpec> fsdp::getInputs(const planfile::PlanFile &plan,
                                       std::string_view program) {
  std::uint32_t owner =
      findProgram(plan, getStepPrograms(plan, program).front());
  std::vector<InputSpec> inputs;
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    if (buffer->role() != planfile::BufferRole::Input ||
        buffer->owner() != owner)
      continue;
    inputs.resize(std::max<std::size_t>(inputs.size(), buffer->index() + 1));
    const auto &sizes = plan.shape(buffer->sizes());
    inputs[buffer->index()] = {buffer->dtype(),
                               {sizes.begin(), sizes.end()},
                               std::string(plan.string(buffer->name()))};
  }
  return inputs;
}

void fsdp::readBytes(const archive::Safetensors &file,
                     const archive::TensorInfo &tensor, std::uint64_t begin,
                     std::span<std::byte> bytes) {
  if (auto error = file.read(
          tensor, begin, reinterpret_cast<char *>(bytes.data()), bytes.size()))
    throw Error(error->message);
}

static std::string join(const std::vector<std::string> &names) {
  std::string text;
  for (const std::string &name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::vector<const archive::TensorInfo *>
fsdp::findInputs(const archive::Safetensors &file,
                 const std::vector<InputSpec> &inputs,
                 bool (*isOther)(std::string_view name)) {
  std::vector<std::string> numbers, names, found;
  bool isNamed = !inputs.empty(), hasNumber = false, hasName = false;
  for (std::size_t i = 0; i != inputs.size(); ++i) {
    numbers.push_back("in_" + std::to_string(i));
    names.push_back(inputs[i].name);
    isNamed &= !inputs[i].name.empty();
    hasNumber |= file.find(numbers[i]) != nullptr;
    hasName |= isNamed && file.find(names[i]) != nullptr;
  }
  if (isNamed && hasNumber && hasName && names != numbers)
    throw Error(file.path() + ": expected inputs called either " + join(names) +
                " or " + join(numbers) + ", found both");
  bool byName = isNamed && !hasNumber;
  std::vector<const archive::TensorInfo *> tensors;
  for (const std::string &name : byName ? names : numbers)
    tensors.push_back(file.find(name));
  std::string after = "in_" + std::to_string(inputs.size());
  if (!byName && file.find(after))
    throw Error(file.path() + ": expected " + std::to_string(inputs.size()) +
                " inputs, found " + after);

  for (const archive::TensorInfo &tensor : file.tensors())
    if (!isOther(tensor.name))
      found.push_back(tensor.name);
  std::ranges::sort(found);
  bool fits = std::ranges::find(tensors, nullptr) == tensors.end() &&
              (!byName || found.size() == inputs.size());
  if (fits)
    return tensors;
  if (byName)
    throw Error(file.path() + ": expected the inputs " + join(names) + " (or " +
                join(numbers) + "), found " + join(found));
  std::size_t missing = static_cast<std::size_t>(
      std::ranges::find(tensors, nullptr) - tensors.begin());
  throw Error(
      file.path() + ": expected " + numbers[missing] + ", " +
      spellTensor(inputs[missing].sizes, archive::DType(inputs[missing].type)) +
      ", found no such tensor");
}

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

/// Rejects tokens outside of [0, rows); `numel` are in one batch, and `first`
/// is the number of the first batch.
template <typename Token>
static void checkTokens(const std::string &place,
                        std::span<const std::byte> bytes, std::uint64_t rows,
                        std::size_t numel, std::uint64_t first) {
  for (std::size_t i = 0; i != bytes.size() / sizeof(Token); ++i) {
    Token token;
    std::memcpy(&token, bytes.data() + i * sizeof(Token), sizeof(Token));
    // A negative one becomes a huge one.
    if (static_cast<std::uint64_t>(token) >= rows)
      throw Error(place + ": expected tokens below " + std::to_string(rows) +
                  ", found " + std::to_string(token) + " at place " +
                  std::to_string(i % numel) + " of batch " +
                  std::to_string(first + i / numel));
  }
}

template <typename From, typename To>
static void convertTokens(std::span<const std::byte> from,
                          std::vector<std::byte> &to) {
  std::size_t count = from.size() / sizeof(From);
  to.resize(count * sizeof(To));
  for (std::size_t i = 0; i != count; ++i) {
    From token;
    std::memcpy(&token, from.data() + i * sizeof(From), sizeof(From));
    To value = static_cast<To>(token);
    std::memcpy(to.data() + i * sizeof(To), &value, sizeof(To));
  }
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

Data::Data(std::string path, File file, const planfile::PlanFile &plan,
           unsigned tokenBits, std::string_view program)
    : path(std::move(path)), file(std::move(file)),
      inputs(getInputs(plan, program)), rows(plan->token_rows()),
      tokenBits(tokenBits) {}

void Data::openTensors(const archive::Safetensors &safetensors) {
  tensors =
      findInputs(safetensors, inputs, [](std::string_view) { return false; });
  for (std::size_t i = 0; i != inputs.size(); ++i) {
    const archive::TensorInfo &tensor = *tensors[i];
    bool fits = tensor.dtype == archive::DType(inputs[i].type) &&
                !tensor.shape.empty() &&
                std::equal(tensor.shape.begin() + 1, tensor.shape.end(),
                           inputs[i].sizes.begin(), inputs[i].sizes.end());
    if (!fits || tensor.shape[0] == 0)
      throw Error(path + ": " + tensor.name + ": expected batches of " +
                  spellTensor(inputs[i].sizes, archive::DType(inputs[i].type)) +
                  ", found " + spellTensor(tensor.shape, tensor.dtype));
    std::uint64_t batches = static_cast<std::uint64_t>(tensor.shape[0]);
    if (i != 0 && batches != count)
      throw Error(path + ": " + tensor.name + ": expected " +
                  std::to_string(count) + " batches as in " + tensors[0]->name +
                  ", found " + std::to_string(batches));
    count = batches;
  }
}

void Data::openTokens(const archive::InputFile &tokens) {
  auto isToken = [](const InputSpec &input) {
    return input.type == DType::I64 || input.type == DType::I32;
  };
  if (rows == 0 || inputs.size() != 2 ||
      !std::ranges::all_of(inputs, isToken) ||
      inputs[0].sizes != inputs[1].sizes)
    throw Error(path + ": expected a plan over tokens and labels of one shape, "
                       "found one with other inputs: give it a .safetensors "
                       "file");
  std::size_t numel = inputs[0].numel(), tokenSize = tokenBits / 8;
  if (tokens.size() % tokenSize != 0)
    throw Error(path + ": expected tokens of " + std::to_string(tokenBits) +
                " bits, found " + std::to_string(tokens.size()) + " bytes");
  count = tokens.size() / tokenSize / std::max<std::size_t>(numel, 1);
  if (count == 0)
    throw Error(path + ": expected at least " + std::to_string(numel) +
                " tokens, found " + std::to_string(tokens.size() / tokenSize));
}

/// Bytes of input `index` in one batch of the file.
std::size_t Data::batchBytes(std::size_t index) const {
  return std::holds_alternative<archive::InputFile>(file)
             ? inputs[index].numel() * tokenBits / 8
             : inputs[index].bytes();
}

/// Reads `number` batches from `first` on into `content`; checks tokens.
void Data::readBatches(std::size_t index, std::uint64_t first,
                       std::uint64_t number) {
  std::size_t bytes = batchBytes(index), numel = inputs[index].numel();
  content.resize(number * bytes);
  if (const auto *tokens = std::get_if<archive::InputFile>(&file)) {
    if (auto error = tokens->read(first * bytes,
                                  reinterpret_cast<char *>(content.data()),
                                  content.size()))
      throw Error(error->message);
    return tokenBits == 16
               ? checkTokens<std::uint16_t>(path, content, rows, numel, first)
               : checkTokens<std::uint32_t>(path, content, rows, numel, first);
  }
  readBytes(std::get<archive::Safetensors>(file), *tensors[index],
            first * bytes, content);
  if (rows == 0 || index != 0)
    return;
  std::string place = path + ": " + tensors[0]->name;
  inputs[0].type == DType::I64
      ? checkTokens<std::int64_t>(place, content, rows, numel, first)
      : checkTokens<std::int32_t>(place, content, rows, numel, first);
}

/// That there are enough of them, and the tokens in all of them.
void Data::checkBatches(unsigned ranks) {
  if (inputs.empty())
    return;
  if (count < ranks)
    throw Error(path + ": expected at least " + std::to_string(ranks) +
                " batches, one for each rank, found " + std::to_string(count));
  if (rows == 0)
    return;
  std::uint64_t atOnce = std::max<std::uint64_t>(
      1, (1u << 20) / std::max<std::size_t>(1, batchBytes(0)));
  for (std::uint64_t first = 0; first < count; first += atOnce)
    readBatches(0, first, std::min(atOnce, count - first));
}

Data Data::open(const std::string &path, const planfile::PlanFile &plan,
                unsigned tokenBits, std::string_view program) {
  unsigned ranks = planfile::getRankCount(plan.plan());
  bool isSafetensors = path.ends_with(".safetensors");
  Data data(path,
            isSafetensors ? File(take(archive::Safetensors::open(path)))
                          : File(take(archive::InputFile::open(path))),
            plan, tokenBits, program);
  if (isSafetensors)
    data.openTensors(std::get<archive::Safetensors>(data.file));
  else
    data.openTokens(std::get<archive::InputFile>(data.file));
  data.checkBatches(ranks);
  return data;
}

TensorView Data::input(std::size_t index, std::uint64_t batch) {
  const InputSpec &spec = inputs[index];
  readBatches(index, batch % count, 1);
  if (std::holds_alternative<archive::Safetensors>(file))
    return {spec.type, spec.sizes, content};
  bool isWide = spec.type == DType::I64;
  if (tokenBits == 16)
    isWide ? convertTokens<std::uint16_t, std::int64_t>(content, converted)
           : convertTokens<std::uint16_t, std::int32_t>(content, converted);
  else
    isWide ? convertTokens<std::uint32_t, std::int64_t>(content, converted)
           : convertTokens<std::uint32_t, std::int32_t>(content, converted);
  return {spec.type, spec.sizes, converted};
}
