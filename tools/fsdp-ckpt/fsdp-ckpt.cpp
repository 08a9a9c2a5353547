//===- fsdp-ckpt.cpp - What is in a checkpoint ----------------------------===//

#include "Compare.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Checkpoint.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteModel.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>

using namespace fsdp;
using archive::Checkpoint;
using archive::TensorFiles;
using archive::TensorPieces;
namespace fs = std::filesystem;

static constexpr int rejected = 1, differs = 2;

static const char *const footer = R"(
A checkpoint is a folder that fsdp-run --checkpoint has written. A model is a checkpoint, a .safetensors file, or a
folder as save_pretrained of Hugging Face or torch.distributed.checkpoint (HuggingFaceStorageWriter) writes it.

Exit codes: 0 done; 1 something cannot be read or written, or is damaged; 2 two models differ.)";

namespace {
/// What ends the program.
struct Problem {
  std::string sentence;
};
} // namespace

template <typename T> static T take(archive::Expected<T> expected) {
  if (!expected)
    throw Problem{expected.error().message};
  return std::move(*expected);
}

static std::string spellShape(const TensorPieces &tensor) {
  std::string text;
  for (std::int64_t size : tensor.shape)
    text += std::to_string(size) + "x";
  return text.append(archive::getMLIRName(tensor.dtype));
}

static std::uint64_t countBytes(const TensorPieces &tensor) {
  return archive::Box::whole(tensor.shape).numel() *
         archive::getItemSize(tensor.dtype);
}

static std::uint64_t countBytes(const TensorFiles &files) {
  std::uint64_t bytes = 0;
  for (const auto &[name, tensor] : files.tensors())
    bytes += countBytes(tensor);
  return bytes;
}

/// A checkpoint, or those of a folder.
static std::vector<std::string> findCheckpoints(const std::string &folder) {
  if (Checkpoint::isOne(folder))
    return {folder};
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed))
    if (Checkpoint::isOne(it->path().string()))
      found.push_back(it->path().string());
  if (failed)
    throw Problem{folder + ": cannot be read: " + failed.message()};
  if (found.empty())
    throw Problem{folder +
                  ": expected a checkpoint or a folder of them, found none"};
  std::sort(found.begin(), found.end());
  return found;
}

static void print(const std::string &text) {
  std::printf("%s\n", archive::escape(text).c_str());
}

static void describe(const std::string &path, const Checkpoint &checkpoint) {
  const archive::TrainingState &state = checkpoint.state;
  print(path + ": step " + std::to_string(state.step) + ", " +
        std::to_string(state.ranks) + " ranks (" + state.mesh + "), " +
        std::to_string(checkpoint.files.tensors().size()) + " tensors, " +
        spellBytes(countBytes(checkpoint.files)));
}

static void printTensors(const TensorFiles &files) {
  for (const auto &[name, tensor] : files.tensors())
    print("  " + name + " " + spellShape(tensor));
}

/// A .safetensors file, or a folder with what save_pretrained writes.
static bool isModel(const fs::path &path) {
  return path.extension() == ".safetensors" ||
         fs::exists(path / "model.safetensors") ||
         fs::exists(path / "model.safetensors.index.json");
}

static int list(const std::string &path) {
  if (!Checkpoint::isOne(path) && isModel(path)) {
    TensorFiles files = take(TensorFiles::open(path));
    print(path + ": " + std::to_string(files.tensors().size()) + " tensors, " +
          spellBytes(countBytes(files)));
    printTensors(files);
    return 0;
  }
  if (!Checkpoint::isOne(path)) {
    for (const std::string &each : findCheckpoints(path))
      describe(each, take(Checkpoint::open(each)));
    return 0;
  }
  Checkpoint checkpoint = take(Checkpoint::open(path));
  describe(path, checkpoint);
  for (const auto &[name, value] : checkpoint.state.facts)
    print("  " + name + " " + value);
  printTensors(checkpoint.files);
  return 0;
}

static int verify(const std::string &path) {
  int code = 0;
  for (const std::string &each : findCheckpoints(path)) {
    auto checkpoint = Checkpoint::open(each);
    auto error =
        checkpoint ? checkpoint->verify() : std::optional(checkpoint.error());
    if (!error) {
      print(each + ": whole");
      continue;
    }
    std::fprintf(stderr, "error: %s\n",
                 archive::escape(error->message).c_str());
    code = rejected;
  }
  return code;
}

static int compareModels(const std::string &left, const std::string &right) {
  TensorFiles one = take(TensorFiles::open(left)),
              two = take(TensorFiles::open(right));
  int code = 0;
  auto report = [&](const std::string &text) {
    print(text);
    code = differs;
  };
  std::size_t equal = 0;
  for (const auto &[name, tensor] : one.tensors()) {
    auto other = two.tensors().find(name);
    if (other == two.tensors().end()) {
      report(name + ": only in " + left);
      continue;
    }
    std::string shape = spellShape(tensor), found = spellShape(other->second);
    if (shape != found) {
      report(name + ": " + shape + " in " + left + ", " + found + " in " +
             right);
      continue;
    }
    Difference difference = take(compare(tensor, other->second));
    equal += difference.different == 0;
    if (difference.different == 0)
      continue;
    char most[32];
    std::snprintf(most, sizeof most, "%.6g", difference.most);
    report(name + ": " + std::to_string(difference.different) + " of " +
           std::to_string(difference.elements) +
           " elements differ, by at most " + most);
  }
  for (const auto &[name, tensor] : two.tensors())
    if (!one.tensors().count(name))
      report(name + ": only in " + right);
  print(std::to_string(equal) + " tensors are equal");
  return code;
}

/// Parameters and model buffers under the names of the weights that the
/// training began with.
static int convert(const std::string &from, const std::string &to,
                   std::uint64_t maxBytes) {
  std::map<std::string, std::string> names;
  TensorFiles files;
  if (Checkpoint::isOne(from)) {
    Checkpoint checkpoint = take(Checkpoint::open(from));
    names = std::move(checkpoint.state.names);
    files = std::move(checkpoint.files);
  } else
    files = take(TensorFiles::open(from));
  if (auto error = archive::checkModelPath(to))
    throw Problem{error->message};
  std::map<std::string, const TensorPieces *> found;
  for (const auto &[name, tensor] : files.tensors()) {
    if (name.rfind(Checkpoint::statePrefix, 0) == 0)
      continue;
    auto other = names.find(name);
    const std::string &spelling = other == names.end() ? name : other->second;
    if (!found.emplace(spelling, &tensor).second)
      throw Problem{from +
                    ": expected names of their own, found two tensors "
                    "that are called " +
                    spelling};
  }
  std::vector<archive::TensorSpec> tensors;
  std::vector<const TensorPieces *> pieces;
  for (const auto &[name, tensor] : found) {
    tensors.push_back({name, tensor->dtype, tensor->shape});
    pieces.push_back(tensor);
  }
  auto read = [&](std::size_t index) -> archive::Expected<std::string> {
    const TensorPieces &tensor = *pieces[index];
    std::string content(countBytes(tensor), '\0');
    if (auto error = archive::readBox(tensor, archive::Box::whole(tensor.shape),
                                      content.data()))
      return *error;
    return content;
  };
  if (auto error =
          archive::writeModel(to, maxBytes, tensors, /*writes=*/true, read))
    throw Problem{error->message};
  print(to + ": " + std::to_string(tensors.size()) + " tensors");
  return 0;
}

int main(int argc, char **argv) {
  CLI::App app("Looks into checkpoints, without PyTorch.", "fsdp-ckpt");
  app.footer(footer);
  app.set_version_flag("--version", "fsdp-ckpt " FSDP_VERSION);
  app.require_subcommand(1);
  std::string first, second;
  std::uint64_t maxBytes = 5'000'000'000;
  CLI::App *ls = app.add_subcommand(
      "ls", "List the checkpoints of a folder, or the tensors of a checkpoint "
            "or a model");
  ls->add_option("path", first, "A checkpoint, a folder of them, or a model")
      ->required();
  CLI::App *check = app.add_subcommand(
      "verify", "Read all of a checkpoint, or of those of a folder, and "
                "compare it with its checksums");
  check->add_option("path", first, "A checkpoint, or a folder of them")
      ->required();
  CLI::App *diff =
      app.add_subcommand("diff", "Compare two models tensor by tensor");
  diff->add_option("left", first, "A model")->required();
  diff->add_option("right", second, "Another one")->required();
  CLI::App *conversion = app.add_subcommand(
      "convert", "Write the parameters and model buffers as save_pretrained of "
                 "Hugging Face does, under the names of the weights that the "
                 "training began with");
  conversion->add_option("from", first, "A model")->required();
  conversion->add_option("to", second, "A .safetensors file, or a new folder")
      ->required();
  conversion
      ->add_option("--max-shard-size", maxBytes,
                   "The most bytes of a file in a folder: 5GB, 200MiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("SIZE")
      ->default_str("5GB");
  auto fail = [](const std::string &sentence) {
    std::fprintf(stderr, "error: %s\n", archive::escape(sentence).c_str());
    return rejected;
  };
  try {
    app.parse(argc, argv);
    int code = *ls      ? list(first)
               : *check ? verify(first)
               : *diff  ? compareModels(first, second)
                        : convert(first, second, maxBytes);
    return std::fflush(stdout) == 0
               ? code
               : fail("standard output: cannot be written");
  } catch (const CLI::Success &success) {
    return app.exit(success);
  } catch (const CLI::ParseError &error) {
    return fail(error.what());
  } catch (const Problem &problem) {
    return fail(problem.sentence);
  } catch (const std::exception &error) {
    return fail(error.what());
  }
}
