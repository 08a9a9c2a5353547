//===- SessionPrograms.cpp - Inputs, outputs and losses of programs -------===//
#include "../Device/RankScope.h"
#include "../Support/DTypes.h"
#include "SessionImpl.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;
using planfile::BufferRole;

std::uint32_t Session::Impl::findProgram(std::string_view name) const {
  for (std::uint32_t p = 0; p != plan.programs()->size(); ++p)
    if (stringOf(plan, plan.programs()->Get(p)->name()) == name)
      return p;
  throw Error("the plan has no program " + std::string(name));
}

std::uint32_t Session::Impl::findNamed(std::string_view program,
                                       BufferRole role,
                                       std::uint32_t index) const {
  auto found = named.find({findProgram(program), role, index});
  if (found != named.end())
    return found->second;
  std::string what = "loss";
  if (role != BufferRole::Loss)
    what = (role == BufferRole::Input ? "input " : "output ") +
           std::to_string(index);
  throw Error("program " + std::string(program) + " has no " + what);
}

unsigned Session::inputCount(std::string_view program) const {
  std::uint32_t owner = impl->findProgram(program);
  unsigned count = 0;
  for (const planfile::Buffer *buffer : *impl->plan.buffers())
    if (buffer->role() == BufferRole::Input && buffer->owner() == owner &&
        buffer->index() != none)
      count = std::max(count, buffer->index() + 1);
  return count;
}

planfile::DType Session::inputType(unsigned index,
                                   std::string_view program) const {
  return impl->ranks[0].rank.memory->type(
      impl->findNamed(program, BufferRole::Input, index));
}

std::vector<std::int64_t> Session::inputSizes(unsigned index,
                                              std::string_view program) const {
  return impl->ranks[0]
      .rank.memory->sizes(impl->findNamed(program, BufferRole::Input, index))
      .vec();
}

void Session::setInput(unsigned rank, unsigned index, const TensorView &value,
                       std::string_view program) {
  setInput(rank, index, borrow(value), program);
}

void Session::setInput(unsigned rank, unsigned index, const at::Tensor &value,
                       std::string_view program) {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Input, index);
  const Impl::RankData &data = impl->local(rank);
  auto type = scalarType(data.rank.memory->type(buffer));
  if (value.scalar_type() != type)
    throw Error("input " + std::to_string(index) + ": expected " +
                c10::toString(type) + " as in the plan, found " +
                c10::toString(value.scalar_type()));
  c10::Device device = data.rank.device->torchDevice();
  if (!value.is_cpu() && value.device() != device)
    throw Error("input " + std::to_string(index) +
                ": expected a tensor in host memory or on " + device.str() +
                ", where the plan is, found one on " + value.device().str() +
                "; move it");
  impl->write(data, buffer, value);
}

void Session::Impl::enqueue(const std::function<void(Device &)> &job) {
  checkFailure();
  Device &device = *ranks[0].rank.device;
  RankScope scope(&device);
  job(device);
}

void Session::awaitCaller() {
  impl->enqueue([](Device &device) { device.awaitCaller(); });
}

void Session::letCallerAwait() {
  impl->enqueue([](Device &device) { device.letCallerAwait(); });
}

c10::Device Session::device() const {
  return impl->ranks[0].rank.device->torchDevice();
}

double Session::loss(std::string_view program) const {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Loss, none);
  double value = 0;
  impl->onRank(impl->ranks[0], [&] {
    value = impl->ranks[0].rank.memory->tensor(buffer).item().toDouble();
  });
  return value;
}

void Session::copyLoss(at::Tensor target, std::string_view program) const {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Loss, none);
  impl->enqueue([&](Device &) {
    target.copy_(impl->ranks[0].rank.memory->tensor(buffer));
  });
}

std::optional<double> Session::gradientNorm() const {
  const Impl::RankData &data = impl->ranks[0];
  if (!data.rank.gradientNorm)
    return std::nullopt;
  double value = 0;
  impl->onRank(data, [&] {
    data.rank.device->copy(planfile::Stream::Compute, &value,
                           data.rank.gradientNorm, sizeof value);
  });
  return value;
}

HostTensor Session::output(unsigned rank, unsigned index,
                           std::string_view program) const {
  std::uint32_t buffer = impl->findNamed(program, BufferRole::Output, index);
  if (impl->rendezvous.isAlone())
    return impl->read(impl->local(rank), buffer);
  std::vector<HostTensor> own;
  for (const Impl::RankData &data : impl->ranks)
    own.push_back(impl->read(data, buffer));
  HostTensor result = own.front();
  impl->exchange(
      "reading output " + std::to_string(index), result.bytes.size(),
      [&](const Impl::RankData &data) {
        return Impl::Piece(own[data.rank.rank - impl->here.first].bytes);
      },
      [&](unsigned from, std::uint64_t offset, Impl::Piece piece) {
        if (from == rank)
          std::memcpy(result.bytes.data() + offset, piece.data(), piece.size());
      });
  return result;
}
