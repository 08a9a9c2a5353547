//===- Data.cpp - Batches out of files -----------------------------------===//

#include "fsdp/Runtime/Data/Data.h"

#include "../Support/Text.h"
#include "Files.h"
#include "Samples.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Data/Shuffle.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <unistd.h>

using namespace fsdp;

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

planfile::DType fsdp::getLossType(const planfile::PlanFile &plan,
                                  std::string_view program) {
  std::uint32_t owner = findProgram(plan, program);
  for (const planfile::Buffer *buffer : *plan->buffers())
    if (buffer->role() == planfile::BufferRole::Loss &&
        buffer->owner() == owner)
      return buffer->dtype();
  throw Error(plan.name() + ": expected a loss in program " +
              std::string(program) + ", found none");
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
// Batches
//===----------------------------------------------------------------------===//

std::vector<std::string> fsdp::listDataFiles(const std::string &path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return {path};
  std::vector<std::string> files;
  std::filesystem::directory_iterator file(path, error), end;
  for (; !error && file != end; file.increment(error)) {
    std::string extension = file->path().extension().string();
    if (extension == ".bin" || extension == ".npy")
      files.push_back(file->path().string());
  }
  if (error)
    throw Error(path + ": cannot read: " + error.message());
  if (files.empty())
    throw Error(path + ": expected files of tokens, *.bin or *.npy, found "
                       "none");
  std::ranges::sort(files);
  return files;
}

namespace {

/// A thread that does one thing at a time while its owner does another. A
/// thread for each batch would be started and ended in each step.
class Helper {
public:
  Helper() = default;
  Helper(const Helper &) = delete;
  Helper &operator=(const Helper &) = delete;
  ~Helper() {
    wait();
    if (!thread.joinable())
      return;
    set(State::Over);
    thread.join();
  }

  /// Does `job`, always the same one, which does not throw. What was begun
  /// before must be done.
  void start(std::function<void()> job) {
    if (!thread.joinable()) {
      archive::SignalsBlocked blocked; // They are the main thread's.
      thread = std::thread([this, job = std::move(job)] { work(job); });
    }
    set(State::Busy);
  }

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return state != State::Busy; });
  }

private:
  enum class State : std::uint8_t { Idle, Busy, Over };

  void set(State next) {
    {
      std::lock_guard lock(mutex);
      state = next;
    }
    changed.notify_all();
  }

  void work(const std::function<void()> &job) {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return state != State::Idle; });
        if (state == State::Over)
          return;
      }
      job();
      set(State::Idle);
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  State state = State::Idle;
  std::thread thread; ///< From the first start on.
};

} // namespace

class Data::Impl {
public:
  Impl(std::vector<InputSpec> inputs, unsigned ranks,
       std::unique_ptr<Samples> samples,
       std::optional<std::uint64_t> shuffleSeed)
      : inputs(std::move(inputs)), samples(std::move(samples)),
        shuffleSeed(shuffleSeed), step(ranks * this->samples->inBatch()) {}

  void next(RankRange ranks);
  void seek(std::uint64_t to) {
    helper.wait();
    ahead.isRead = false;
    position = to;
  }

  /// Batches of some ranks.
  struct Batches {
    bool isRead = false; ///< Or in vain.
    std::uint64_t position = 0;
    RankRange ranks = 0;
    /// Of each input of each rank.
    std::vector<std::vector<std::byte>> contents = {};
    std::exception_ptr failure = {};
  };

  std::vector<InputSpec> inputs;
  std::unique_ptr<Samples> samples;
  std::optional<std::uint64_t> shuffleSeed;
  std::uint64_t step; ///< Samples in a batch of every rank.
  std::uint64_t position = 0;
  Batches current{};

private:
  /// Reads those at the batches' position.
  void read(Batches &batches) const;

  /// The batches after the current ones, where the next ones are read.
  Batches ahead{};
  Helper helper; ///< While it works, `samples` and `ahead` are its own.
};

void Data::Impl::read(Batches &batches) const {
  batches.failure = nullptr;
  batches.isRead = true;
  try {
    std::uint64_t count = samples->count(), inBatch = samples->inBatch();
    batches.contents.resize(batches.ranks.count * inputs.size());
    auto content = batches.contents.begin();
    for (unsigned rank = batches.ranks.first; rank != batches.ranks.end();
         ++rank)
      for (std::size_t i = 0; i != inputs.size(); ++i, ++content) {
        content->resize(inputs[i].bytes());
        std::size_t bytes = content->size() / inBatch;
        for (std::uint64_t s = 0; s != inBatch; ++s) {
          std::uint64_t taken = batches.position + rank * inBatch + s;
          std::uint64_t sample = taken % count;
          if (shuffleSeed)
            sample = shuffle(sample, count, *shuffleSeed, taken / count);
          samples->read(i, sample,
                        std::span(*content).subspan(s * bytes, bytes));
        }
      }
  } catch (...) {
    batches.failure = std::current_exception();
  }
}

void Data::Impl::next(RankRange ranks) {
  helper.wait();
  auto set = [&](Batches &batches) {
    batches.position = position;
    batches.ranks = ranks;
  };
  if (!ahead.isRead || ahead.ranks.first != ranks.first ||
      ahead.ranks.count != ranks.count) {
    set(ahead);
    read(ahead);
  }
  ahead.isRead = false;
  if (ahead.failure)
    std::rethrow_exception(ahead.failure);
  std::swap(current, ahead);
  position += step;
  set(ahead);
  if (samples->mayReadAhead())
    helper.start([this] { read(ahead); });
}

Data::Data(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Data::Data(Data &&) noexcept = default;
Data &Data::operator=(Data &&) noexcept = default;
Data::~Data() = default;

Data Data::open(const std::string &path, const planfile::PlanFile &plan,
                const DataOptions &options) {
  unsigned ranks = planfile::getRankCount(plan.plan());
  std::vector<InputSpec> inputs = getInputs(plan, options.program);
  std::uint64_t rows = plan->token_rows();
  std::unique_ptr<Samples> samples =
      path == standardInput
          ? openStream(STDIN_FILENO, "standard input", inputs, rows, ranks)
      : path.ends_with(".safetensors")
          ? openTensors(path, inputs, rows)
          : openTokens(path, inputs, rows, options.tokenBits);
  Data data(std::make_unique<Impl>(std::move(inputs), ranks, std::move(samples),
                                   options.shuffleSeed));
  if (data.impl->inputs.empty())
    return data;
  if (data.batches() < ranks)
    throw Error(path + ": expected at least " + std::to_string(ranks) +
                " batches, one for each rank, found " +
                std::to_string(data.batches()));
  data.impl->samples->check();
  return data;
}

std::uint64_t Data::batches() const {
  return impl->samples->count() / impl->samples->inBatch();
}

std::uint64_t Data::leftOver() const {
  return impl->samples->count() % impl->samples->inBatch();
}

std::uint64_t Data::position() const { return impl->position; }

void Data::seek(std::uint64_t position) { impl->seek(position); }

void Data::next(RankRange ranks) { impl->next(ranks); }

TensorView Data::input(unsigned rank, std::size_t index) const {
  const InputSpec &spec = impl->inputs[index];
  const Impl::Batches &batches = impl->current;
  return {spec.type, spec.sizes,
          batches.contents[(rank - batches.ranks.first) * impl->inputs.size() +
                           index]};
}
