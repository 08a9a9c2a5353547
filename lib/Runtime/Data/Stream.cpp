//===- Stream.cpp - Samples that another program sends --------------------===//

#include "../Support/Text.h"
#include "Samples.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

using namespace fsdp;

namespace {

/// The names and sizes of a message; what follows them is the samples.
constexpr std::uint64_t mostHeader = 1 << 20;

/// A file in memory.
class MemoryFile {
public:
  MemoryFile() : descriptor(::memfd_create("fsdp-message", MFD_CLOEXEC)) {
    if (descriptor < 0)
      throw Error(std::string("cannot make a file in memory: ") +
                  std::strerror(errno));
  }
  ~MemoryFile() { ::close(descriptor); }
  MemoryFile(const MemoryFile &) = delete;
  MemoryFile &operator=(const MemoryFile &) = delete;

  std::string path() const {
    return "/proc/self/fd/" + std::to_string(descriptor);
  }
  void assign(std::span<const char> content) const {
    if (::ftruncate(descriptor, 0) != 0)
      fail();
    for (std::size_t done = 0; done != content.size();) {
      ssize_t count = ::pwrite(descriptor, content.data() + done,
                               content.size() - done, static_cast<off_t>(done));
      if (count <= 0 && errno != EINTR)
        fail();
      done += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }

private:
  [[noreturn]] static void fail() {
    throw Error(std::string("cannot write to a file in memory: ") +
                std::strerror(errno));
  }
  int descriptor;
};

class StreamSamples final : public Samples {
public:
  StreamSamples(int descriptor, const std::string &name,
                std::span<const InputSpec> inputs, std::uint64_t rows,
                unsigned ranks)
      : descriptor(descriptor), name(name),
        inputs(inputs.begin(), inputs.end()), rows(rows), ranks(ranks),
        most(mostHeader) {
    for (const InputSpec &input : inputs)
      most += ranks * input.bytes();
  }

  /// As many as there may be.
  std::uint64_t count() const override { return INT64_MAX; }
  std::uint64_t inBatch() const override { return 1; }
  void check() override {}
  /// The last step would wait for a message that nobody sends.
  bool mayReadAhead() const override { return false; }

  void read(std::size_t index, std::uint64_t sample,
            std::span<std::byte> to) override {
    while (sample >= received * ranks)
      receive();
    try {
      message->read(index, sample - (received - 1) * ranks, to);
    } catch (const Error &error) {
      reject(error);
    }
  }

private:
  std::string place() const {
    return name + ": message " + std::to_string(received);
  }
  [[noreturn]] void reject(const Error &error) const {
    std::string text = error.what(), path = file.path();
    if (text.starts_with(path))
      text.replace(0, path.size(), place());
    throw Error(text);
  }

  /// All of `to`; false if the stream ends before its first byte.
  bool receive(std::span<char> to) const {
    for (std::size_t done = 0; done != to.size();) {
      ssize_t count = ::read(descriptor, to.data() + done, to.size() - done);
      if (count < 0 && errno == EINTR)
        continue;
      if (count < 0)
        throw Error(place() + ": cannot read: " + std::strerror(errno));
      if (count == 0 && done == 0)
        return false;
      if (count == 0)
        throw Error(place() + ": expected " + std::to_string(to.size()) +
                    " bytes, found the end of the stream after " +
                    std::to_string(done));
      done += static_cast<std::size_t>(count);
    }
    return true;
  }

  void receive() {
    ++received;
    unsigned char length[8];
    if (!receive({reinterpret_cast<char *>(length), sizeof length}))
      throw Error(place() +
                  ": expected 8 bytes of a length and a batch for "
                  "each of " +
                  std::to_string(ranks) +
                  " ranks, found the end of the stream");
    std::uint64_t size = 0;
    for (std::size_t i = 0; i != sizeof length; ++i)
      size |= std::uint64_t{length[i]} << (8 * i);
    if (size == 0 || size > most)
      throw Error(place() + ": expected a length from 1 to " +
                  std::to_string(most) + " bytes, found " +
                  std::to_string(size));
    content.resize(size);
    if (!receive(content))
      throw Error(place() + ": expected " + std::to_string(size) +
                  " bytes, found the end of the stream");
    file.assign(content);
    message.reset();
    try {
      message = openTensors(file.path(), inputs, rows);
    } catch (const Error &error) {
      reject(error);
    }
    if (message->count() != ranks)
      throw Error(place() + ": expected " + std::to_string(ranks) +
                  " batches, one for each rank, found " +
                  std::to_string(message->count()));
  }

  int descriptor;
  std::string name;
  std::vector<InputSpec> inputs;
  std::uint64_t rows;
  unsigned ranks;
  std::uint64_t most, received = 0; ///< Bytes of a message; messages.
  std::vector<char> content;
  MemoryFile file;
  std::unique_ptr<Samples> message;
};

} // namespace

std::unique_ptr<Samples> fsdp::openStream(int descriptor,
                                          const std::string &name,
                                          std::span<const InputSpec> inputs,
                                          std::uint64_t rows, unsigned ranks) {
  return std::make_unique<StreamSamples>(descriptor, name, inputs, rows, ranks);
}
