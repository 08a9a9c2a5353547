//===- Data.cpp - Batches out of a file -----------------------------------===//

#include "fsdp/Runtime/Data.h"

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

std::vector<InputSpec> fsdp::getInputs(const planfile::PlanFile &plan) {
  std::vector<InputSpec> inputs;
  for (const planfile::Buffer *buffer : *plan->buffers()) {
    if (buffer->role() != planfile::BufferRole::Input)
      continue;
    inputs.resize(std::max<std::size_t>(inputs.size(), buffer->index() + 1));
    const auto &sizes = plan.shape(buffer->sizes());
    inputs[buffer->index()] = {buffer->dtype(), {sizes.begin(), sizes.end()}};
  }
  return inputs;
}

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

/// Refuses tokens outside of [0, rows); `numel` are in one batch.
template <typename Token>
static void checkTokens(const std::string &place, std::string_view bytes,
                        std::uint64_t rows, std::size_t numel) {
  for (std::size_t i = 0; i != bytes.size() / sizeof(Token); ++i) {
    Token token;
    std::memcpy(&token, bytes.data() + i * sizeof(Token), sizeof(Token));
    // A negative one becomes a huge one.
    if (static_cast<std::uint64_t>(token) >= rows)
      throw Error(place + ": expected tokens below " + std::to_string(rows) +
                  ", found " + std::to_string(token) + " at place " +
                  std::to_string(i % numel) + " of batch " +
                  std::to_string(i / numel));
  }
}

template <typename From, typename To>
static void convertTokens(std::string_view from, std::vector<std::byte> &to) {
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

void Data::openTensors(const archive::Safetensors &tensors,
                       std::uint64_t rows) {
  for (std::size_t i = 0; i != inputs.size(); ++i) {
    std::string name = "in_" + std::to_string(i);
    std::string expected =
        "batches of " +
        spellTensor(inputs[i].sizes, archive::DType(inputs[i].type));
    const archive::TensorRef *tensor = tensors.find(name);
    if (!tensor)
      throw Error(path + ": expected " + name + ", " + expected +
                  ", found no such tensor");
    bool fits = tensor->dtype == archive::DType(inputs[i].type) &&
                !tensor->shape.empty() &&
                std::equal(tensor->shape.begin() + 1, tensor->shape.end(),
                           inputs[i].sizes.begin(), inputs[i].sizes.end());
    if (!fits || tensor->shape[0] == 0)
      throw Error(path + ": " + name + ": expected " + expected + ", found " +
                  spellTensor(tensor->shape, tensor->dtype));
    std::uint64_t batches = static_cast<std::uint64_t>(tensor->shape[0]);
    if (i != 0 && batches != count)
      throw Error(path + ": " + name + ": expected " + std::to_string(count) +
                  " batches as in in_0, found " + std::to_string(batches));
    count = batches;
    contents.push_back(tensor->bytes);
  }
  if (std::string name = "in_" + std::to_string(inputs.size());
      tensors.find(name))
    throw Error(path + ": expected " + std::to_string(inputs.size()) +
                " inputs, found " + name);
  if (rows == 0)
    return;
  if (inputs[0].type == DType::I64)
    checkTokens<std::int64_t>(path + ": in_0", contents[0], rows,
                              inputs[0].numel());
  else
    checkTokens<std::int32_t>(path + ": in_0", contents[0], rows,
                              inputs[0].numel());
}

void Data::openTokens(const archive::MappedFile &tokens, std::uint64_t rows) {
  auto isToken = [](const InputSpec &input) {
    return input.type == DType::I64 || input.type == DType::I32;
  };
  if (rows == 0 || inputs.size() != 2 ||
      !std::ranges::all_of(inputs, isToken) ||
      inputs[0].sizes != inputs[1].sizes)
    throw Error(path + ": expected a plan over tokens and labels of one shape, "
                       "found one with other inputs: give it a .safetensors "
                       "file");
  std::string_view bytes = tokens.bytes();
  std::size_t numel = inputs[0].numel(), tokenSize = tokenBits / 8;
  if (bytes.size() % tokenSize != 0)
    throw Error(path + ": expected tokens of " + std::to_string(tokenBits) +
                " bits, found " + std::to_string(bytes.size()) + " bytes");
  count = bytes.size() / tokenSize / std::max<std::size_t>(numel, 1);
  if (count == 0)
    throw Error(path + ": expected at least " + std::to_string(numel) +
                " tokens, found " + std::to_string(bytes.size() / tokenSize));
  contents.push_back(bytes.substr(0, count * numel * tokenSize));
  if (tokenBits == 16)
    checkTokens<std::uint16_t>(path, contents[0], rows, numel);
  else
    checkTokens<std::uint32_t>(path, contents[0], rows, numel);
}

Data Data::open(const std::string &path, const planfile::PlanFile &plan,
                unsigned tokenBits) {
  if (path.ends_with(".safetensors")) {
    Data data(path, take(archive::Safetensors::open(path)), getInputs(plan),
              tokenBits);
    data.openTensors(std::get<archive::Safetensors>(data.file),
                     plan->token_rows());
    return data;
  }
  Data data(path, take(archive::MappedFile::open(path)), getInputs(plan),
            tokenBits);
  data.openTokens(std::get<archive::MappedFile>(data.file), plan->token_rows());
  return data;
}

TensorView Data::input(std::size_t index, std::uint64_t batch) {
  const InputSpec &spec = inputs[index];
  batch %= count;
  if (std::holds_alternative<archive::Safetensors>(file)) {
    std::string_view bytes =
        contents[index].substr(batch * spec.bytes(), spec.bytes());
    return {spec.type, spec.sizes, std::as_bytes(std::span(bytes))};
  }
  std::size_t size = spec.numel() * tokenBits / 8;
  std::string_view tokens = contents[0].substr(batch * size, size);
  bool isWide = spec.type == DType::I64;
  if (tokenBits == 16)
    isWide ? convertTokens<std::uint16_t, std::int64_t>(tokens, converted)
           : convertTokens<std::uint16_t, std::int32_t>(tokens, converted);
  else
    isWide ? convertTokens<std::uint32_t, std::int64_t>(tokens, converted)
           : convertTokens<std::uint32_t, std::int32_t>(tokens, converted);
  return {spec.type, spec.sizes, converted};
}
