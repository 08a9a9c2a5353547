//===- Operators.cpp - The plan's operators and constants -----------------===//
#include "Operators.h"

#include "../Comm/Mesh.h"
#include "../Support/DTypes.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <sstream>

using namespace fsdp;
using c10::IValue;
using c10::TypeKind;
using planfile::Constant;
using planfile::Value;

static void rejectUnsafe(const std::string &name,
                         std::span<const std::string> trusted) {
  using operators::Safety;
  constexpr std::string_view space = "aten::";
  Safety safety = Safety::Unknown;
  if (name.starts_with(space))
    if (const auto *facts = operators::lookupOpFacts(
            std::string_view(name).substr(space.size())))
      safety = facts->safety;
  if (safety == Safety::Never)
    throw Error("operator " + name + " may not be run from a plan");
  if (safety == Safety::Unknown &&
      std::ranges::find(trusted, name) == trusted.end())
    throw Error("operator " + name +
                " is not known to stay in its tensors' memory; if you trust "
                "the plan, name it with --trust " +
                name);
}

/// True if calls that fit one schema fit the other. The compiler knows a custom
/// operator only from its calls: neither names nor defaults of its arguments.
static bool isCalledAlike(std::string_view ours, std::string_view plans) {
  auto a = operators::parseOperatorSchema(ours);
  auto b = operators::parseOperatorSchema(plans);
  auto alike = [](const auto &x, const auto &y) {
    return x.isWritten == y.isWritten &&
           (x.kind == "Tensor") == (y.kind == "Tensor");
  };
  return a && b && a->numResults == b->numResults &&
         std::ranges::equal(a->arguments, b->arguments, alike);
}

c10::OperatorHandle
fsdp::resolveOperator(const std::string &name, std::string_view schema,
                      std::span<const std::string> trusted) {
  std::size_t space = name.find("::");
  std::size_t dot = name.find('.', space == std::string::npos ? 0 : space);
  std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  auto op =
      c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  if (!op)
    throw Error("operator " + name +
                " is not known here; if a library registers it, name the "
                "library with --load");
  rejectUnsafe(name, trusted);
  std::ostringstream text;
  text << op->schema();
  bool known = name.starts_with("aten::");
  if (known ? text.str() != schema : !isCalledAlike(text.str(), schema))
    throw Error("operator " + name +
                " has another schema here: the plan says " +
                std::string(schema) + ", this LibTorch says " + text.str());
  return *op;
}

namespace {

/// Turns one launch's constants into values of the types that the schema
/// asks for.
class Converter {
public:
  Converter(const planfile::Plan &plan, Memory &memory, c10::Device device,
            const at::Generator &generator, bool allF32)
      : plan(plan), memory(memory), device(device), generator(generator),
        allF32(allF32) {}

  IValue argument(std::int32_t arg, const c10::Argument &formal) {
    c10::TypePtr type = formal.type();
    bool optional = type->kind() == TypeKind::OptionalType;
    if (optional)
      type = type->castRaw<c10::OptionalType>()->getElementType();
    if (arg >= 0) {
      if (type->kind() != TypeKind::TensorType)
        mismatch("a buffer", *type);
      return memory.tensor(static_cast<std::uint32_t>(arg));
    }
    const Constant &constant =
        *plan.constants()->Get(static_cast<std::uint32_t>(~arg));
    if (constant.value_type() == Value::None) {
      if (type->kind() == TypeKind::GeneratorType)
        return generator;
      if (optional)
        return {};
      if (!operators::mayBeUndefined(formal.name()))
        mismatch("None", *type);
      return at::Tensor();
    }
    IValue value = type->kind() == TypeKind::ListType
                       ? list(constant, *type->castRaw<c10::ListType>())
                       : single(constant, *type);
    if (value.isNone())
      mismatch(EnumNameValue(constant.value_type()), *type);
    return value;
  }

private:
  [[noreturn]] static void mismatch(const std::string &found,
                                    const c10::Type &type) {
    throw Error(found + " where the schema has " + type.str());
  }

  /// A number where the operator takes a tensor. It must not take part in
  /// type promotion; and in f64 among f32 tensors it costs a temporary, while
  /// the sum of all that the kernel does with it is to round it to f32.
  IValue wrapped(const c10::Scalar &number) const {
    c10::ScalarType type = number.type();
    if (allF32 && !number.isBoolean())
      type = c10::ScalarType::Float;
    at::Tensor tensor = at::scalar_tensor(number, type);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  IValue single(const Constant &constant, const c10::Type &type) const {
    const auto *integer = constant.value_as_Int();
    const auto *real = constant.value_as_Float();
    const auto *boolean = constant.value_as_Bool();
    switch (type.kind()) {
    case TypeKind::IntType:
      if (integer)
        return integer->value();
      if (const auto *dtype = constant.value_as_Type())
        return static_cast<std::int64_t>(scalarType(dtype->value()));
      if (constant.value_type() == Value::Layout)
        return static_cast<std::int64_t>(c10::Layout::Strided);
      if (const auto *format = constant.value_as_MemoryFormat())
        return static_cast<std::int64_t>(format->value());
      return {};
    case TypeKind::FloatType:
      if (real)
        return real->value();
      return integer ? IValue(static_cast<double>(integer->value())) : IValue();
    case TypeKind::BoolType:
      return boolean ? IValue(boolean->value()) : IValue();
    case TypeKind::NumberType:
    case TypeKind::TensorType: {
      c10::Scalar number;
      if (integer)
        number = integer->value();
      else if (real)
        number = real->value();
      else if (boolean)
        number = boolean->value();
      else
        return {};
      return type.kind() == TypeKind::NumberType ? IValue(number)
                                                 : wrapped(number);
    }
    case TypeKind::StringType:
      if (const auto *text = constant.value_as_Text())
        return text->value()->str();
      return {};
    case TypeKind::DeviceObjType:
      return constant.value_type() == Value::Device ? IValue(device) : IValue();
    default:
      return {};
    }
  }

  IValue list(const Constant &constant, const c10::ListType &type) {
    const c10::Type &element = *type.getElementType();
    switch (element.kind()) {
    case TypeKind::IntType:
      if (const auto *ints = constant.value_as_Ints())
        return std::vector<std::int64_t>(ints->values()->begin(),
                                         ints->values()->end());
      return {};
    case TypeKind::FloatType:
      if (const auto *reals = constant.value_as_Floats())
        return std::vector<double>(reals->values()->begin(),
                                   reals->values()->end());
      return {};
    case TypeKind::BoolType:
      if (const auto *booleans = constant.value_as_Bools()) {
        c10::List<bool> values;
        for (bool value : *booleans->values())
          values.push_back(value);
        return values;
      }
      return {};
    case TypeKind::TensorType:
      if (const auto *refs = constant.value_as_Refs()) {
        c10::List<at::Tensor> tensors;
        for (std::int32_t ref : *refs->values()) {
          if (ref < 0)
            mismatch("None in a list", element);
          tensors.push_back(memory.tensor(static_cast<std::uint32_t>(ref)));
        }
        return tensors;
      }
      return {};
    case TypeKind::OptionalType:
      if (const auto *refs = constant.value_as_Refs()) {
        c10::List<std::optional<at::Tensor>> tensors;
        for (std::int32_t ref : *refs->values())
          tensors.push_back(ref < 0 ? std::nullopt
                                    : std::optional<at::Tensor>(memory.tensor(
                                          static_cast<std::uint32_t>(ref))));
        return tensors;
      }
      return {};
    default:
      return {};
    }
  }

  const planfile::Plan &plan;
  Memory &memory;
  c10::Device device;
  const at::Generator &generator;
  bool allF32;
};

} // namespace

/// Calls `visit` with every buffer that argument `arg` names.
template <typename Visitor>
static void visitBuffers(const planfile::Plan &plan, std::int32_t arg,
                         Visitor visit) {
  if (arg >= 0)
    return visit(static_cast<std::uint32_t>(arg));
  const auto *refs =
      plan.constants()->Get(static_cast<std::uint32_t>(~arg))->value_as_Refs();
  if (refs)
    for (std::int32_t ref : *refs->values())
      if (ref >= 0)
        visit(static_cast<std::uint32_t>(ref));
}

/// Ranks that are threads would share the generator of an operator that takes
/// none. Attention is tagged as random for the sake of its dropout.
static void rejectOtherGenerator(const c10::OperatorHandle &op,
                                 const planfile::Plan &plan,
                                 const planfile::Launch &launch) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded))
    return;
  const auto &arguments = op.schema().arguments();
  for (unsigned i = 0; i != arguments.size(); ++i) {
    if (arguments[i].type()->str().starts_with("Generator"))
      return;
    std::int32_t arg = launch.args()->Get(i);
    if (arguments[i].name() != "dropout_p" || arg >= 0)
      continue;
    const auto *p = plan.constants()
                        ->Get(static_cast<std::uint32_t>(~arg))
                        ->value_as_Float();
    if (p && p->value() == 0)
      return;
  }
  throw Error("draws random numbers, but takes no generator");
}

std::vector<IValue> fsdp::makeArguments(const c10::OperatorHandle &op,
                                        const planfile::Plan &plan,
                                        const planfile::Launch &launch,
                                        Memory &memory, Device &device,
                                        const at::Generator &generator) {
  const auto &arguments = op.schema().arguments();
  std::string prefix = c10::toString(op.operator_name());
  if (launch.args()->size() != arguments.size())
    throw Error(prefix + ": takes " + std::to_string(arguments.size()) +
                " arguments, the plan has " +
                std::to_string(launch.args()->size()));
  bool allF32 = true;
  Accesses accesses = accessesOf(op.schema(), plan, launch);
  for (const auto *buffers : {&accesses.reads, &accesses.writes})
    for (std::uint32_t buffer : *buffers)
      allF32 &= memory.type(buffer) == planfile::DType::F32;
  Converter converter(plan, memory, device.torchDevice(), generator, allF32);
  std::vector<IValue> values;
  values.reserve(arguments.size());
  for (unsigned i = 0; i != arguments.size(); ++i) {
    try {
      values.push_back(converter.argument(launch.args()->Get(i), arguments[i]));
    } catch (const Error &error) {
      throw Error(prefix + ": argument " + arguments[i].name() + ": " +
                  error.what());
    }
  }
  try {
    rejectOtherGenerator(op, plan, launch);
  } catch (const Error &error) {
    throw Error(prefix + ": " + error.what());
  }
  return values;
}

Accesses fsdp::accessesOf(const c10::FunctionSchema &schema,
                          const planfile::Plan &plan,
                          const planfile::Launch &launch) {
  Accesses accesses;
  for (unsigned i = 0; i != schema.arguments().size(); ++i) {
    const c10::AliasInfo *alias = schema.arguments()[i].alias_info();
    bool writes = alias && alias->isWrite();
    visitBuffers(plan, launch.args()->Get(i), [&](std::uint32_t buffer) {
      (writes ? accesses.writes : accesses.reads).push_back(buffer);
    });
  }
  if (launch.results())
    for (std::uint32_t result : *launch.results())
      if (result != none)
        accesses.writes.push_back(result);
  return accesses;
}
