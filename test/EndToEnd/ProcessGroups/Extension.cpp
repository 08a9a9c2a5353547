//===- Extension.cpp - Process groups of Python, for tests ----------------===//
//
// What a Python package would do with a process group: single collectives on
// tensors, and a training as fsdp-run does it.
//
//===----------------------------------------------------------------------===//
#include "Runtime/Comm/C10d/World.h"
#include "Runtime/Support/Text.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"
#include "fsdp/Runtime/Comm/C10d.h"
#include "fsdp/Runtime/Data/Data.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

using namespace fsdp;
namespace py = pybind11;
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;
using planfile::DType;

namespace {

std::chrono::milliseconds spanOf(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

DType typeOf(const at::Tensor &tensor) {
  switch (tensor.scalar_type()) {
  case at::kHalf:
    return DType::F16;
  case at::kBFloat16:
    return DType::BF16;
  case at::kFloat:
    return DType::F32;
  case at::kDouble:
    return DType::F64;
  case at::kLong:
    return DType::I64;
  default:
    throw Error("a type that the tests do not use");
  }
}

using Messages = std::vector<at::Tensor>;

/// Messages are counted, and go to PyTorch's group of one process that claims
/// to be many.
class CountedGroup : public c10d::Backend {
public:
  CountedGroup(int rank, int size)
      : Backend(rank, size),
        fake(c10d::FakeProcessGroup::_create_internal(rank, size)) {}

  c10::intrusive_ptr<c10d::Work> send(Messages &messages, int to,
                                      int tag) override {
    sent += messages.front().nbytes();
    ++count;
    return fake->send(messages, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(Messages &messages, int from,
                                      int tag) override {
    received += messages.front().nbytes();
    return fake->recv(messages, from, tag);
  }

  std::size_t count = 0;              ///< Of messages sent.
  std::size_t sent = 0, received = 0; ///< Bytes.

private:
  c10::intrusive_ptr<c10d::Backend> fake;
};

/// A communicator of some ranks of a group; its collectives are given one by
/// one.
class Communicator {
public:
  Communicator(const c10::intrusive_ptr<c10d::Backend> &group,
               const std::vector<unsigned> &members, unsigned communicator,
               double timeout, std::size_t messageBytes,
               std::size_t workspaceBytes)
      : world(group, {messageBytes, workspaceBytes}) {
    auto rank = static_cast<unsigned>(group->getRank());
    auto own = std::find(members.begin(), members.end(), rank);
    comm = world.openComm(
        communicator, {members, static_cast<unsigned>(own - members.begin())},
        spanOf(timeout));
  }

  void run(const std::string &kind, const at::Tensor &source,
           at::Tensor &target, const at::Tensor &via, double pre, double post,
           const std::string &reduce) {
    using Kind = Collective::Kind;
    using planfile::ReduceKind;
    Collective collective{
        .kind = kind == "all_gather"       ? Kind::AllGather
                : kind == "reduce_scatter" ? Kind::ReduceScatter
                                           : Kind::AllReduce,
        .sourceType = typeOf(source),
        .targetType = typeOf(target),
        .via = typeOf(via),
        .source = static_cast<const std::byte *>(source.const_data_ptr()),
        .target = static_cast<std::byte *>(target.mutable_data_ptr()),
        .count = static_cast<std::size_t>(
            kind == "all_gather" ? source.numel() : target.numel()),
        .pre = pre,
        .post = post,
        .reduce = reduce == "max"     ? ReduceKind::Max
                  : reduce == "first" ? ReduceKind::First
                                      : ReduceKind::Sum};
    comm->prepare(std::span(&collective, 1));
    comm->run(0, 1);
    comm->drain(0, 1);
  }

  void barrier() { comm->barrier(); }
  std::size_t workspace() const { return comm->workspaceBytes(); }
  void abort() { world.abort(); }

private:
  C10dWorld world;
  std::unique_ptr<Comm> comm;
};

/// One rank of a training.
class Trainer {
public:
  Trainer(const ProcessGroup &group, const std::string &planPath,
          const std::string &weights, const std::string &dataPath, bool overlap,
          double timeout)
      : plan(take(planfile::PlanFile::open(planPath))),
        programs(getStepPrograms(plan, "step")),
        data(Data::open(dataPath, plan)) {
    SessionOptions options;
    options.backend = makeC10dBackend(group, spanOf(timeout));
    World world = options.backend->world();
    options.store = world.store;
    options.timeout = spanOf(timeout);
    options.processes = world.size();
    options.overlap = overlap;
    hosts = world.hosts();
    session.emplace(plan.plan(), RankRange(world.rank, 1), std::move(options));
    Weights file = Weights::open(weights);
    file.load(file.match(plan), *session);
  }

  double step() {
    double loss = 0;
    unsigned rank = session->ranks().first;
    for (const std::string &program : programs) {
      data.next(session->ranks());
      for (unsigned i = 0; i != session->inputCount(program); ++i)
        session->setInput(rank, i, data.input(rank, i), program);
      session->run(program);
      loss += session->loss(program) / static_cast<double>(programs.size());
    }
    return loss;
  }

  /// Whole, by name.
  std::map<std::string, HostTensor> parameters() const {
    std::map<std::string, HostTensor> result;
    for (const TensorName &tensor :
         session->tensors(TensorName::Kind::Parameter))
      result.emplace(tensor.name, session->read(tensor));
    return result;
  }

  std::size_t workspace() const { return session->report().workspaceBytes; }

  std::vector<std::string> hosts; ///< Of all ranks.

private:
  planfile::PlanFile plan;
  std::vector<std::string> programs;
  Data data;
  std::optional<Session> session;
};

} // namespace

PYBIND11_MODULE(fsdp_test_c10d, module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  py::class_<CountedGroup, c10d::Backend, c10::intrusive_ptr<CountedGroup>>(
      module, "CountedGroup")
      .def(py::init([](int rank, int size) {
        return c10::make_intrusive<CountedGroup>(rank, size);
      }))
      .def_readonly("count", &CountedGroup::count)
      .def_readonly("sent", &CountedGroup::sent)
      .def_readonly("received", &CountedGroup::received);
  py::class_<Communicator>(module, "Communicator")
      .def(py::init<const c10::intrusive_ptr<c10d::Backend> &,
                    const std::vector<unsigned> &, unsigned, double,
                    std::size_t, std::size_t>(),
           py::arg("group"), py::arg("members"), py::arg("communicator") = 0,
           py::arg("timeout") = 60., py::arg("message_bytes") = 1 << 30,
           py::arg("workspace_bytes") = 4 << 20, Released())
      .def("run", &Communicator::run, py::arg("kind"), py::arg("source"),
           py::arg("target"), py::arg("via"), py::arg("pre") = 1.,
           py::arg("post") = 1., py::arg("reduce") = "sum", Released())
      .def("barrier", &Communicator::barrier, Released())
      .def("abort", &Communicator::abort, Released())
      .def_property_readonly("workspace", &Communicator::workspace);
  py::class_<Trainer>(module, "Trainer")
      .def(py::init<const ProcessGroup &, const std::string &,
                    const std::string &, const std::string &, bool, double>(),
           py::arg("group"), py::arg("plan"), py::arg("weights"),
           py::arg("data"), py::arg("overlap") = false,
           py::arg("timeout") = 60., Released())
      .def("step", &Trainer::step, Released())
      .def("parameters",
           [](const Trainer &trainer) {
             std::map<std::string, HostTensor> values;
             {
               py::gil_scoped_release released;
               values = trainer.parameters();
             }
             py::dict result;
             for (const auto &[name, value] : values)
               result[py::str(name)] =
                   py::bytes(reinterpret_cast<const char *>(value.bytes.data()),
                             value.bytes.size());
             return result;
           })
      .def_readonly("hosts", &Trainer::hosts)
      .def_property_readonly("workspace", &Trainer::workspace);
}
