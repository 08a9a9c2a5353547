//===- Module.cpp - fsdp_mlir._runtime ------------------------------------===//
//
// What _trainer.py stands on. Its types are in _runtime.pyi.
//
//===----------------------------------------------------------------------===//

#include "PlanSession.h"

#include "Runtime/Support/DTypes.h"
#include "fsdp/Runtime/Support/Error.h"

#include <torch/csrc/utils/pybind.h>

using namespace fsdp;
namespace py = pybind11;

/// A list of what `spell` makes of each.
template <typename Results, typename Spell>
static py::list listOf(const Results &results, const Spell &spell) {
  py::list list;
  for (const auto &each : results)
    list.append(spell(each));
  return list;
}

static HyperParameters makeHyperParameters(double lr, double beta1,
                                           double beta2, double eps,
                                           double weightDecay,
                                           double momentum) {
  return {lr, beta1, beta2, eps, weightDecay, momentum};
}

PYBIND11_MODULE(_runtime, module) {
  // Never freed: the interpreter goes before static objects do.
  static PyObject *errorType =
      py::object(py::module_::import("fsdp_mlir.errors").attr("FSDPError"))
          .release()
          .ptr();
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer)
        std::rethrow_exception(pointer);
    } catch (const Error &error) {
      py::set_error(errorType, error.what());
    }
  });

  py::class_<HyperParameters>(module, "HyperParameters")
      .def(py::init(&makeHyperParameters), py::arg("lr"), py::arg("beta1"),
           py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"),
           py::arg("momentum"));

  py::class_<ParameterFacts>(module, "ParameterFacts")
      .def_readonly("name", &ParameterFacts::name)
      .def_readonly("aliases", &ParameterFacts::aliases)
      .def_property_readonly("shape",
                             [](const ParameterFacts &facts) {
                               return py::tuple(py::cast(facts.sizes));
                             })
      .def_readonly("dtype", &ParameterFacts::dtype)
      .def_readonly("trains", &ParameterFacts::trains)
      .def_readonly("states", &ParameterFacts::states)
      .def_readonly("group", &ParameterFacts::decayGroup);

  py::class_<Measurement>(module, "Measurement")
      .def_readonly("seconds", &Measurement::seconds)
      .def_readonly("exposed", &Measurement::exposed)
      .def_readonly("operators", &Measurement::operators)
      .def_readonly("collectives", &Measurement::collectives);

  py::class_<planfile::StepPrediction>(module, "StepPrediction")
      .def_readonly("seconds", &planfile::StepPrediction::seconds)
      .def_readonly("exposed", &planfile::StepPrediction::exposed)
      .def_readonly("flops", &planfile::StepPrediction::flops)
      .def("mfu", &planfile::StepPrediction::mfu, py::arg("seconds"));

  py::class_<PlanSession>(module, "PlanSession")
      .def(py::init<const std::string &>(), py::arg("plan"))
      .def_property_readonly("device", &PlanSession::device)
      .def(
          "start",
          [](PlanSession &session, std::optional<PlanSession::Group> group,
             double timeout, bool overlap, std::vector<std::string> trusted,
             std::string libraries, std::optional<unsigned> gpu) {
            session.start({std::move(group), timeout, overlap,
                           std::move(trusted), std::move(libraries), gpu});
          },
          py::arg("group"), py::arg("timeout"), py::arg("overlap"),
          py::arg("trusted"), py::arg("libraries"), py::arg("gpu"))
      .def(
          "measure",
          [](PlanSession &session, std::optional<PlanSession::Group> group,
             double timeout, bool overlap, std::vector<std::string> trusted,
             std::string libraries, std::optional<unsigned> gpu, bool computes,
             bool communicates, unsigned steps) {
            return session.measure({std::move(group), timeout, overlap,
                                    std::move(trusted), std::move(libraries),
                                    gpu},
                                   computes, communicates, steps);
          },
          py::arg("group"), py::arg("timeout"), py::arg("overlap"),
          py::arg("trusted"), py::arg("libraries"), py::arg("gpu"),
          py::arg("computes"), py::arg("communicates"), py::arg("steps"))
      .def_property_readonly("prediction", &PlanSession::prediction)
      .def("close", &PlanSession::close)
      .def_property_readonly("rank", &PlanSession::rank)
      .def_property_readonly("world_size", &PlanSession::worldSize)
      .def_property_readonly("step_programs", &PlanSession::stepPrograms)
      .def(
          "inputs",
          [](PlanSession &session, const std::string &program) {
            return listOf(session.inputs(program), [](const InputSpec &input) {
              return py::make_tuple(input.name,
                                    py::tuple(py::cast(input.sizes)),
                                    scalarType(input.type));
            });
          },
          py::arg("program"))
      .def("parameters", &PlanSession::parameters)
      .def("decay_groups", &PlanSession::decayGroups)
      .def("buffers", &PlanSession::buffers)
      .def("has_buffer", &PlanSession::hasBuffer, py::arg("name"))
      .def_property_readonly("update_rule", &PlanSession::updateRule)
      .def("set_hyper_parameters", &PlanSession::setHyperParameters,
           py::arg("group"), py::arg("values"))
      .def("set_seed", &PlanSession::setSeed, py::arg("seed"))
      .def("generator_state", &PlanSession::generatorState)
      .def("step", &PlanSession::step, py::arg("batches"))
      .def("backward", &PlanSession::backward, py::arg("batch"),
           py::arg("part"))
      .def("observe", &PlanSession::observe, py::arg("observer").none(true))
      .def("update", &PlanSession::update)
      .def("evaluate", &PlanSession::evaluate, py::arg("batch"),
           py::arg("program"))
      .def_property_readonly("steps", &PlanSession::steps)
      .def_property_readonly("grad_norm", &PlanSession::gradientNorm)
      .def_property_readonly("updates", &PlanSession::updates)
      .def("set_updates", &PlanSession::setUpdates, py::arg("count"))
      .def("read", &PlanSession::read, py::arg("kind"), py::arg("name"),
           py::arg("rank0_only") = false)
      .def("write", &PlanSession::write, py::arg("kind"), py::arg("name"),
           py::arg("value"))
      .def("views", &PlanSession::views, py::arg("kind"), py::arg("name"))
      .def("load_weights", &PlanSession::loadWeights, py::arg("path"))
      .def("save", &PlanSession::save, py::arg("folder"), py::arg("values"))
      .def("load", &PlanSession::load, py::arg("folder"));
}
