//===- Samples.cpp - Samples of files, by their numbers -------------------===//

#include "Samples.h"

#include "../Support/Text.h"
#include "Files.h"
#include "fsdp/Archive/NumPy.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;
using archive::DType;

/// Tokens are checked in parts of so many bytes.
static constexpr std::uint64_t partBytes = 1 << 20;
/// All tokens of larger data are checked as they are read alone: the first step
/// does not wait for all of a disk.
static constexpr std::uint64_t mostChecked = 64 << 20;

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

/// Calls `visit` with a 0 of that type.
template <typename Visit> static void visitToken(DType type, Visit visit) {
  switch (type) {
  case DType::U16:
    return visit(std::uint16_t());
  case DType::U32:
    return visit(std::uint32_t());
  case DType::I32:
    return visit(std::int32_t());
  default:
    return visit(std::int64_t());
  }
}

/// Rejects tokens outside of [0, rows). The first one is number `first` of the
/// file, of which `inBatch` make a batch.
static void checkTokens(const std::string &place, DType type,
                        std::span<const std::byte> bytes, std::uint64_t rows,
                        std::uint64_t inBatch, std::uint64_t first) {
  visitToken(type, [&](auto token) {
    for (std::size_t i = 0; i != bytes.size() / sizeof token; ++i) {
      std::memcpy(&token, bytes.data() + i * sizeof token, sizeof token);
      // A negative one becomes a huge one.
      if (static_cast<std::uint64_t>(token) >= rows)
        throw Error(place + ": expected tokens below " + std::to_string(rows) +
                    ", found " + std::to_string(token) + " at place " +
                    std::to_string((first + i) % inBatch) + " of batch " +
                    std::to_string((first + i) / inBatch));
    }
  });
}

static void convertTokens(DType from, std::span<const std::byte> bytes,
                          DType to, std::span<std::byte> converted) {
  visitToken(from, [&](auto token) {
    visitToken(to, [&](auto value) {
      for (std::size_t i = 0; i != bytes.size() / sizeof token; ++i) {
        std::memcpy(&token, bytes.data() + i * sizeof token, sizeof token);
        value = static_cast<decltype(value)>(token);
        std::memcpy(converted.data() + i * sizeof value, &value, sizeof value);
      }
    });
  });
}

//===----------------------------------------------------------------------===//
// Tensors
//===----------------------------------------------------------------------===//

namespace {

class TensorSamples final : public Samples {
public:
  TensorSamples(archive::Safetensors opened, std::span<const InputSpec> inputs,
                std::uint64_t rows)
      : file(std::move(opened)), inputs(inputs.begin(), inputs.end()),
        rows(rows),
        tensors(findInputs(file, this->inputs,
                           [](std::string_view) { return false; })) {
    for (std::size_t i = 0; i != inputs.size(); ++i)
      checkFits(i);
  }

  std::uint64_t count() const override { return batches; }
  std::uint64_t inBatch() const override { return 1; }
  void read(std::size_t index, std::uint64_t sample,
            std::span<std::byte> to) override {
    readBytes(file, *tensors[index], sample * inputs[index].bytes(), to);
    if (rows != 0 && index == 0)
      checkTokens(place(), tensors[0]->dtype, to, rows, inputs[0].numel(),
                  sample * inputs[0].numel());
  }
  void check() override {
    std::uint64_t bytes = inputs[0].bytes();
    if (rows == 0 || bytes == 0 || tensors[0]->bytes > mostChecked)
      return;
    std::uint64_t atOnce = std::max<std::uint64_t>(1, partBytes / bytes);
    std::vector<std::byte> content(atOnce * bytes);
    for (std::uint64_t first = 0; first < batches; first += atOnce)
      read(0, first,
           std::span(content).first(std::min(atOnce, batches - first) * bytes));
  }

private:
  void checkFits(std::size_t index) {
    const archive::TensorInfo &tensor = *tensors[index];
    const InputSpec &input = inputs[index];
    bool fits = tensor.dtype == DType(input.type) && !tensor.shape.empty() &&
                std::equal(tensor.shape.begin() + 1, tensor.shape.end(),
                           input.sizes.begin(), input.sizes.end());
    if (!fits || tensor.shape[0] == 0)
      throw Error(file.path() + ": " + tensor.name + ": expected batches of " +
                  spellTensor(input.sizes, DType(input.type)) + ", found " +
                  spellTensor(tensor.shape, tensor.dtype));
    auto found = static_cast<std::uint64_t>(tensor.shape[0]);
    if (index != 0 && found != batches)
      throw Error(file.path() + ": " + tensor.name + ": expected " +
                  std::to_string(batches) + " batches as in " +
                  tensors[0]->name + ", found " + std::to_string(found));
    batches = found;
  }
  std::string place() const { return file.path() + ": " + tensors[0]->name; }

  archive::Safetensors file;
  std::vector<InputSpec> inputs;
  std::uint64_t rows;
  std::vector<const archive::TensorInfo *> tensors; // of each input
  std::uint64_t batches = 0;
};

//===----------------------------------------------------------------------===//
// Files of tokens
//===----------------------------------------------------------------------===//

/// Little-endian tokens of one file.
struct TokenFile {
  archive::InputFile file;
  DType type;
  std::uint64_t offset, tokens;
  std::uint64_t end = 0; ///< Sequences of this file and all before it.
};

class TokenSamples final : public Samples {
public:
  TokenSamples(const std::string &path, std::vector<archive::InputFile> opened,
               std::span<const InputSpec> inputs, std::uint64_t rows,
               std::optional<unsigned> tokenBits)
      : inputs(inputs.begin(), inputs.end()), rows(rows),
        length(static_cast<std::uint64_t>(inputs[0].sizes.back())) {
    std::uint64_t tokens = 0;
    for (archive::InputFile &each : opened) {
      TokenFile file = read(std::move(each), tokenBits);
      tokens += file.tokens;
      file.end = count() + file.tokens / length;
      files.push_back(std::move(file));
    }
    if (count() < inBatch())
      throw Error(path + ": expected at least " +
                  std::to_string(inputs[0].numel()) + " tokens, found " +
                  std::to_string(tokens));
  }

  std::uint64_t count() const override {
    return files.empty() ? 0 : files.back().end;
  }
  std::uint64_t inBatch() const override { return inputs[0].numel() / length; }

  void read(std::size_t index, std::uint64_t sample,
            std::span<std::byte> to) override {
    auto file = std::ranges::upper_bound(files, sample, {}, &TokenFile::end);
    std::uint64_t inside = sample - (file->end - file->tokens / length);
    readTokens(*file, inside * length, length);
    convertTokens(file->type, content, DType(inputs[index].type), to);
  }

  void check() override {
    std::uint64_t bytes = 0;
    for (const TokenFile &file : files)
      bytes += file.file.size();
    if (bytes > mostChecked)
      return;
    for (const TokenFile &file : files) {
      std::uint64_t used = file.tokens / length * length, part = 0;
      for (std::uint64_t first = 0; first != used; first += part) {
        part =
            std::min(used - first, partBytes / archive::getItemSize(file.type));
        readTokens(file, first, part);
      }
    }
  }

private:
  TokenFile read(archive::InputFile file,
                 std::optional<unsigned> tokenBits) const;

  /// Into `content`.
  void readTokens(const TokenFile &file, std::uint64_t first,
                  std::uint64_t number) {
    std::uint64_t size = archive::getItemSize(file.type);
    content.resize(number * size);
    if (auto error = file.file.read(file.offset + first * size,
                                    reinterpret_cast<char *>(content.data()),
                                    content.size()))
      throw Error(error->message);
    checkTokens(file.file.path(), file.type, content, rows, inputs[0].numel(),
                first);
  }

  std::vector<InputSpec> inputs;
  std::uint64_t rows;
  std::uint64_t length; // of a sequence, in tokens
  std::vector<TokenFile> files;
  std::vector<std::byte> content; // what was read last
};

} // namespace

TokenFile TokenSamples::read(archive::InputFile file,
                             std::optional<unsigned> tokenBits) const {
  const std::string path = file.path();
  if (path.ends_with(".npy")) {
    archive::NumPyHeader header = take(archive::readNumPyHeader(file));
    if (header.shape.size() == 2 && header.shape[1] != length)
      throw Error(path + ": expected rows of " + std::to_string(length) +
                  " tokens, one sequence of the plan each, found rows of " +
                  std::to_string(header.shape[1]));
    return {std::move(file), header.dtype, header.offset, header.numel()};
  }
  if (!tokenBits && !path.ends_with(".bin"))
    throw Error(path + ": expected batches (.safetensors) or tokens (.npy, "
                       ".bin), found a file of another name; --token-bits 16 "
                       "or 32 reads it as raw tokens");
  unsigned bits = tokenBits.value_or(16);
  std::uint64_t bytes = file.size(), size = bits / 8;
  if (bytes % size != 0)
    throw Error(path + ": expected tokens of " + std::to_string(bits) +
                " bits, found " + std::to_string(bytes) + " bytes");
  return {std::move(file), bits == 16 ? DType::U16 : DType::U32, 0,
          bytes / size};
}

std::unique_ptr<Samples> fsdp::openTensors(const std::string &path,
                                           std::span<const InputSpec> inputs,
                                           std::uint64_t rows) {
  return std::make_unique<TensorSamples>(take(archive::Safetensors::open(path)),
                                         inputs, rows);
}

std::unique_ptr<Samples> fsdp::openTokens(const std::string &path,
                                          std::span<const InputSpec> inputs,
                                          std::uint64_t rows,
                                          std::optional<unsigned> tokenBits) {
  std::vector<archive::InputFile> files;
  for (const std::string &name : listDataFiles(path))
    files.push_back(take(archive::InputFile::open(name)));
  auto isToken = [](const InputSpec &input) {
    return input.type == planfile::DType::I64 ||
           input.type == planfile::DType::I32;
  };
  if (rows == 0 || inputs.size() != 2 ||
      !std::ranges::all_of(inputs, isToken) ||
      inputs[0].sizes != inputs[1].sizes || inputs[0].sizes.empty() ||
      inputs[0].numel() == 0)
    throw Error(path + ": expected a plan over tokens and labels of one shape, "
                       "found one with other inputs: give it a .safetensors "
                       "file");
  return std::make_unique<TokenSamples>(path, std::move(files), inputs, rows,
                                        tokenBits);
}
