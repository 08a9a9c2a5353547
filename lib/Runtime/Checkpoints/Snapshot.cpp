//===- Snapshot.cpp - A training as it was after an update ----------------===//

#include "fsdp/Runtime/Checkpoints/Snapshot.h"

#include "../Comm/Mesh.h"
#include "../Support/Text.h"
#include "States.h"
#include "fsdp/Archive/WriteFile.h"

#include <algorithm>
#include <cstring>
#include <set>

using namespace fsdp;
using archive::CheckedFile;
using planfile::BufferRole;

static constexpr const char *generatorKey = "generator";
static constexpr std::string_view bufferPrefix = "buffer.";

std::string fsdp::spellMesh(const planfile::PlanFile &plan) {
  std::string text;
  for (const planfile::MeshAxis *axis : *plan->mesh())
    text += (text.empty() ? "" : " ") + std::string(plan.string(axis->name())) +
            "=" + std::to_string(axis->size());
  return text;
}

/// Units whose gradients no all-reduce makes equal on all replicas.
static std::set<std::uint32_t> findPrivateUnits(const planfile::Plan &plan) {
  std::set<std::uint32_t> units;
  for (std::uint32_t u = 0; u != plan.units()->size(); ++u)
    units.insert(u);
  for (const planfile::Program *program : *plan.programs())
    for (const planfile::Command *command : *program->commands())
      if (const auto *reduce = command->step_as_AllReduce())
        units.erase(reduce->unit());
  return units;
}

/// What a rank alone holds so of a tensor that others hold, too.
static std::string spellReplica(const std::string &key,
                                const std::vector<Box> &boxes) {
  std::string text = "replica." + key;
  for (const Box &box : boxes)
    for (std::size_t axis = 0; axis != box.sizes.size(); ++axis)
      text += (axis ? "," : " ") + std::to_string(box.offsets[axis]) + "+" +
              std::to_string(box.sizes[axis]);
  return text;
}

/// Calls `function` with each model buffer that has a name.
template <typename Function>
static void forEachBuffer(const planfile::Plan &plan,
                          const Function &function) {
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    const planfile::Buffer &buffer = *plan.buffers()->Get(i);
    if (buffer.role() == BufferRole::ModelBuffer && buffer.root() == i &&
        buffer.name() != none)
      function(buffer);
  }
}

/// How many updates a parameter has had, by parameter with a state.
static std::set<std::string> stepKeys(const planfile::Plan &plan) {
  std::set<std::string> keys;
  forEachState(plan, [&](std::uint32_t, const planfile::Parameter &parameter,
                         const planfile::Buffer &) {
    keys.insert(spellState(stringOf(plan, parameter.name()), "step"));
  });
  return keys;
}

//===----------------------------------------------------------------------===//
// What there is
//===----------------------------------------------------------------------===//

void Snapshot::add(const Session &session, unsigned rank, std::string key,
                   const TensorName &tensor, planfile::DType type, bool isOwn,
                   std::string_view embedded) {
  Part part{rank, std::move(key), tensor,  archive::DType(type), {}, 0,
            0,    isOwn,          embedded};
  part.boxes = session.heldBoxes(tensor, rank);
  std::uint64_t numel = 0;
  for (const Box &box : part.boxes)
    numel += box.numel();
  part.at = total;
  part.bytes = numel * planfile::getItemSize(type);
  std::vector<std::int64_t> sizes = session.sizes(tensor);
  // Nobody holds an element of what has none.
  if (part.boxes.empty() && rank == 0 && Box::whole(sizes).numel() == 0)
    part.boxes.push_back(Box::whole(sizes));
  if (part.boxes.empty())
    return;
  total += part.bytes;
  parts.push_back(std::move(part));
}

void Snapshot::addParameters(const Session &session, unsigned rank) {
  std::set<std::uint32_t> privateUnits = findPrivateUnits(plan.plan());
  std::vector<bool> isFirst;
  for (const planfile::Unit *unit : *plan->units())
    isFirst.push_back(
        firstHolders(plan.plan(),
                     *unit)[shardIndex(plan.plan(), *unit, rank)] == rank);
  auto addTensor = [&](std::uint32_t unit, std::string key,
                       const TensorName &tensor, planfile::DType type) {
    if (isFirst[unit])
      add(session, rank, std::move(key), tensor, type, false);
    else if (privateUnits.contains(unit))
      add(session, rank, spellReplica(key, session.heldBoxes(tensor, rank)),
          tensor, type, true);
  };
  for (std::uint32_t u = 0; u != plan->units()->size(); ++u) {
    const planfile::Unit &unit = *plan->units()->Get(u);
    for (const planfile::Parameter *parameter : *unit.parameters()) {
      std::string_view name = plan.string(parameter->name());
      addTensor(u, std::string(name), TensorName::parameter(name),
                unit.storage());
    }
  }
  forEachState(plan.plan(), [&](std::uint32_t unit,
                                const planfile::Parameter &parameter,
                                const planfile::Buffer &buffer) {
    std::string_view name = plan.string(parameter.name());
    std::string_view state = plan.string(buffer.name());
    addTensor(unit, spellState(name, state),
              TensorName::optimizerState(name, state), buffer.dtype());
  });
}

void Snapshot::addBuffers(const Session &session, unsigned rank) {
  forEachBuffer(plan.plan(), [&](const planfile::Buffer &buffer) {
    std::string_view name = plan.string(buffer.name());
    TensorName tensor = TensorName::buffer(name);
    std::string_view embedded;
    if (const auto *bytes = buffer.bytes())
      embedded = {reinterpret_cast<const char *>(bytes->data()), bytes->size()};
    else if (rank == 0)
      add(session, rank, std::string(name), tensor, buffer.dtype(), false);
    add(session, rank, std::string(bufferPrefix).append(name), tensor,
        buffer.dtype(), true, embedded);
  });
}

Snapshot::Snapshot(const planfile::PlanFile &plan, Session &session)
    : plan(plan), ranks(session.ranks()), generators(ranks.count) {
  for (unsigned rank = ranks.first; rank != ranks.end(); ++rank) {
    addParameters(session, rank);
    addBuffers(session, rank);
  }
  memory.resize(total); // At once: to grow, it would be there twice.
  session.pin(memory);
}

/// Who holds the elements of each parameter of a plan.
static std::map<const planfile::Parameter *, archive::HeldTensor>
findHolders(const planfile::PlanFile &plan) {
  std::map<const planfile::Parameter *, archive::HeldTensor> result;
  for (const planfile::Unit *unit : *plan->units()) {
    std::vector<unsigned> holders = firstHolders(plan.plan(), *unit);
    std::uint64_t length = unit->numel() / unit->shards();
    for (const planfile::Parameter *parameter : *unit->parameters()) {
      archive::HeldTensor &tensor = result[parameter];
      const auto &sizes = plan.shape(parameter->sizes());
      tensor.shape.assign(sizes.begin(), sizes.end());
      tensor.order = storageOrder(plan.plan(), *parameter);
      std::uint64_t begin = parameter->offset();
      std::uint64_t end = begin + Box::whole(tensor.shape).numel();
      for (std::uint64_t at = begin; at < end; at = (at / length + 1) * length)
        tensor.add(holders[at / length],
                   std::min(end, (at / length + 1) * length) - at);
    }
  }
  return result;
}

std::map<std::string, archive::HeldTensor>
Snapshot::tensors(const planfile::PlanFile &plan) {
  std::map<std::string, archive::HeldTensor> result;
  auto holders = findHolders(plan);
  auto add = [&](std::string key, planfile::DType type,
                 archive::HeldTensor tensor) {
    tensor.dtype = archive::DType(type);
    result[std::move(key)] = std::move(tensor);
  };
  auto addWhole = [&](std::string key, planfile::DType type,
                      std::uint32_t shape) {
    archive::HeldTensor tensor{};
    if (shape != none)
      tensor.shape.assign(plan.shape(shape).begin(), plan.shape(shape).end());
    tensor.order = archive::rowMajor(tensor.shape.size());
    tensor.add(0, Box::whole(tensor.shape).numel());
    add(std::move(key), type, std::move(tensor));
  };
  for (const planfile::Unit *unit : *plan->units())
    for (const planfile::Parameter *parameter : *unit->parameters())
      add(std::string(plan.string(parameter->name())), unit->storage(),
          holders[parameter]);
  forEachState(plan.plan(),
               [&](std::uint32_t, const planfile::Parameter &parameter,
                   const planfile::Buffer &buffer) {
                 std::string_view name = plan.string(parameter.name());
                 add(spellState(name, plan.string(buffer.name())),
                     buffer.dtype(), holders[&parameter]);
               });
  for (const std::string &key : stepKeys(plan.plan()))
    addWhole(key, planfile::DType::F32, none);
  forEachBuffer(plan.plan(), [&](const planfile::Buffer &buffer) {
    if (!buffer.bytes())
      addWhole(std::string(plan.string(buffer.name())), buffer.dtype(),
               buffer.sizes());
  });
  return result;
}

//===----------------------------------------------------------------------===//
// Copying and writing
//===----------------------------------------------------------------------===//

void Snapshot::take(const Session &session) {
  for (const Part &part : parts)
    session.readHeld(part.tensor, part.rank,
                     std::span(memory).subspan(part.at, part.bytes));
  for (unsigned i = 0; i != ranks.count; ++i)
    generators[i] = session.generatorState(ranks.first + i);
  updates = session.updates();
}

float Snapshot::countUpdates() const {
  float count = static_cast<float>(updates), skipped = 0;
  for (const Part &part : parts)
    if (part.tensor.name == planfile::skippedUpdates &&
        part.bytes == sizeof skipped)
      std::memcpy(&skipped, contentOf(part).data(), sizeof skipped);
  return count - skipped;
}

std::string_view Snapshot::contentOf(const Part &part) const {
  return {reinterpret_cast<const char *>(memory.data()) + part.at, part.bytes};
}

/// Writes a file and returns its checksums.
static CheckedFile writeTensors(const std::string &folder,
                                const std::string &name,
                                const std::vector<archive::TensorRef> &tensors,
                                const archive::SafetensorsMetadata &metadata) {
  CheckedFile file{name, {}};
  auto written = archive::writeSafetensors(folder + "/" + name, tensors,
                                           metadata, &file.sums);
  if (!written)
    throw Error(written.error().message, Failure::RankFailed);
  return file;
}

// A file has one box of a tensor: box i of each is in file i.
std::vector<CheckedFile> Snapshot::writeBoxes(const std::string &folder,
                                              unsigned rank) const {
  std::vector<std::vector<archive::TensorRef>> tensors;
  std::vector<std::vector<std::pair<std::string, Box>>> boxes;
  auto addBox = [&](std::size_t file, const std::string &key,
                    archive::DType type, const Box &box,
                    std::string_view content) {
    tensors.resize(std::max(tensors.size(), file + 1));
    boxes.resize(tensors.size());
    tensors[file].push_back({key, type, box.sizes, content});
    boxes[file].emplace_back(key, box);
  };
  for (const Part &part : parts) {
    if (part.rank != rank || part.isOwn)
      continue;
    std::string_view rest = contentOf(part);
    for (std::size_t i = 0; i != part.boxes.size(); ++i) {
      std::size_t size =
          part.boxes[i].numel() * archive::getItemSize(part.type);
      addBox(i, part.key, part.type, part.boxes[i], rest.substr(0, size));
      rest.remove_prefix(size);
    }
  }
  // PyTorch keeps it for each parameter.
  float step = countUpdates();
  if (rank == 0)
    for (const std::string &key : stepKeys(plan.plan()))
      addBox(0, key, archive::DType::F32, {},
             {reinterpret_cast<const char *>(&step), sizeof step});
  std::vector<CheckedFile> files;
  for (std::size_t i = 0; i != tensors.size(); ++i)
    files.push_back(writeTensors(
        folder,
        archive::getShardFile(rank, static_cast<unsigned>(i),
                              static_cast<unsigned>(tensors.size())),
        tensors[i], archive::makeShardingMetadata(boxes[i])));
  return files;
}

// Of what the plan embeds, the content may never have changed.
CheckedFile Snapshot::writeOwn(const std::string &folder, unsigned rank) const {
  std::vector<archive::TensorRef> tensors;
  for (const Part &part : parts) {
    std::string_view content = contentOf(part);
    if (part.rank != rank || !part.isOwn || content == part.embedded)
      continue;
    tensors.push_back({part.key,
                       part.type,
                       {static_cast<std::int64_t>(
                           content.size() / archive::getItemSize(part.type))},
                       content});
  }
  const std::vector<std::byte> &state = generators[rank - ranks.first];
  tensors.push_back(
      {generatorKey,
       archive::DType::U8,
       {static_cast<std::int64_t>(state.size())},
       {reinterpret_cast<const char *>(state.data()), state.size()}});
  return writeTensors(folder, archive::getRankFile(rank), tensors, {});
}

std::vector<std::uint64_t> Snapshot::write(const std::string &folder) const {
  unsigned worldSize = planfile::getRankCount(plan.plan());
  std::vector<std::uint64_t> lists;
  for (unsigned rank = ranks.first; rank != ranks.end(); ++rank) {
    std::string part = archive::getPart(rank, worldSize);
    std::string own = part.empty() ? folder : folder + "/" + part;
    std::vector<CheckedFile> files = writeBoxes(own, rank);
    files.push_back(writeOwn(own, rank));
    std::string list = archive::spellRankList(files);
    lists.push_back(archive::checksum(list));
    auto written =
        archive::writeFile(own + "/" + archive::getRankList(rank), {list});
    if (!written)
      throw Error(written.error().message, Failure::RankFailed);
  }
  return lists;
}

//===----------------------------------------------------------------------===//
// Loading
//===----------------------------------------------------------------------===//

namespace {
/// A file of a rank, and what is put where.
class OwnFile {
public:
  OwnFile(const archive::Safetensors &file, Session &session)
      : file(file), session(session) {}

  /// What `rank` holds of a tensor. False if the file does not have it.
  bool load(const std::string &key, const TensorName &tensor,
            planfile::DType type, unsigned rank) {
    const archive::TensorInfo *info = file.find(key);
    if (!info)
      return false;
    std::uint64_t bytes = planfile::getItemSize(type);
    std::uint64_t numel = 0;
    for (const Box &box : session.heldBoxes(tensor, rank))
      numel += box.numel();
    if (info->dtype != archive::DType(type) || info->bytes != numel * bytes)
      throw Error(file.path() + ": " + key + ": expected " +
                  std::to_string(numel) + " elements of " +
                  std::string(archive::getMLIRName(archive::DType(type))) +
                  ", found " + spellTensor(info->shape, info->dtype));
    session.writeHeld(tensor, rank, read(*info));
    return true;
  }
  void loadReplica(const std::string &key, const TensorName &tensor,
                   planfile::DType type, unsigned rank) {
    load(spellReplica(key, session.heldBoxes(tensor, rank)), tensor, type,
         rank);
  }

  void loadGenerator(unsigned rank) {
    const archive::TensorInfo *info = file.find(generatorKey);
    if (!info)
      throw Error(file.path() + ": expected a tensor " + generatorKey +
                  ", found none");
    session.setGeneratorState(rank, read(*info));
  }

private:
  std::span<const std::byte> read(const archive::TensorInfo &info) {
    content.resize(info.bytes);
    if (auto error = file.read(
            info, 0, reinterpret_cast<char *>(content.data()), content.size()))
      throw Error(*error);
    return content;
  }

  const archive::Safetensors &file;
  Session &session;
  std::vector<std::byte> content;
};
} // namespace

bool fsdp::loadOwn(const archive::Checkpoint &checkpoint,
                   const planfile::PlanFile &plan, Session &session) {
  bool isSame = checkpoint.state.mesh == spellMesh(plan);
  for (unsigned rank = session.ranks().first; rank != session.ranks().end();
       ++rank) {
    auto file = checkpoint.ranks->openOwn(isSame ? rank : 0);
    if (!file)
      throw Error(file.error());
    OwnFile own(*file, session);
    forEachBuffer(plan.plan(), [&](const planfile::Buffer &buffer) {
      std::string_view name = plan.string(buffer.name());
      TensorName tensor = TensorName::buffer(name);
      // Of what had not changed, an attempt to load another checkpoint may
      // have.
      if (!own.load(std::string(bufferPrefix).append(name), tensor,
                    buffer.dtype(), rank) &&
          buffer.bytes())
        session.writeHeld(tensor, rank,
                          std::as_bytes(std::span(buffer.bytes()->data(),
                                                  buffer.bytes()->size())));
    });
    if (!isSame)
      continue;
    own.loadGenerator(rank);
    for (const planfile::Unit *unit : *plan->units())
      for (const planfile::Parameter *parameter : *unit->parameters()) {
        std::string_view name = plan.string(parameter->name());
        own.loadReplica(std::string(name), TensorName::parameter(name),
                        unit->storage(), rank);
      }
    forEachState(plan.plan(),
                 [&](std::uint32_t, const planfile::Parameter &parameter,
                     const planfile::Buffer &buffer) {
                   std::string_view name = plan.string(parameter.name());
                   std::string_view state = plan.string(buffer.name());
                   own.loadReplica(spellState(name, state),
                                   TensorName::optimizerState(name, state),
                                   buffer.dtype(), rank);
                 });
  }
  return isSame;
}
