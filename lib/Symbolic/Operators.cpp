//===- Operators.cpp - Operators that are the same ------------------------===//
//
// An overload that writes its result and the one that returns it are the same
// operator; so are a `clone` and a copy, and the gradient of a slice and zeros
// with a copy in them. Here all of them become one of a few.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include <algorithm>

using namespace fsdp;
using namespace fsdp::symbolic;
using fsdp::operators::Equivalent;
using fsdp::operators::OpFacts;

static constexpr std::string_view prefix = "aten::";

/// The operator of which `out` is the overload that writes its results, and
/// reads nothing in their place.
static const OpFacts *getFunctional(std::string_view out) {
  static const auto table = [] {
    std::unordered_map<std::string_view, const OpFacts *> result;
    for (const OpFacts &facts : fsdp::operators::getAllOpFacts())
      for (std::string_view name : {facts.outOverload, facts.drawOverload})
        if (!name.empty())
          result.try_emplace(name, &facts);
    return result;
  }();
  auto found = table.find(out);
  return found == table.end() ? nullptr : found->second;
}

/// What returns what an operator writes: of `mm.out` and `add_.Tensor`, `mm`
/// and `add.Tensor`.
static const OpFacts *getFunctional(const OpFacts &facts) {
  if (!facts.isMutating())
    return &facts;
  if (const OpFacts *functional = getFunctional(facts.name))
    return functional;
  std::string name(facts.name);
  size_t end = std::min(name.find('.'), name.size());
  if (end == 0 || name[end - 1] != '_')
    return nullptr;
  return fsdp::operators::lookupOpFacts(name.erase(end - 1, 1));
}

/// The one overload that stands for all that are the same as `facts`.
static const OpFacts *getCanonical(const OpFacts &facts) {
  std::string name(facts.outOverload);
  if (facts.equivalent == Equivalent::TensorScalar)
    name = std::string(facts.name.substr(0, facts.name.find('.'))) + ".out";
  const OpFacts *out = fsdp::operators::lookupOpFacts(name);
  return out ? out : &facts;
}

Number Literal::number() const {
  Key key("literal", kind, integers.size(), floats.size(), hashText(text));
  for (int64_t integer : integers)
    key.add(static_cast<uint64_t>(integer));
  for (double number : floats)
    key.add(hashDouble(number));
  return key.number();
}

int Operator::find(std::string_view name) const {
  for (size_t i = 0; i != schema.arguments.size(); ++i)
    if (schema.arguments[i].name == name)
      return static_cast<int>(i);
  return -1;
}

/// Sets the kind, and where its arguments stand.
static void setKind(Operator &op, const OpFacts &facts) {
  using Kind = symbolic::Operator;
  std::string_view name = facts.name;
  auto isOneOf = [&](std::string_view base) {
    return name.substr(0, name.find('.')).find(base) != name.npos;
  };
  if (name == "cat" || name == "split_with_sizes_copy") {
    bool isSplit = name != "cat";
    op.source = op.find(isSplit ? "self" : "tensors");
    op.value = op.find("split_sizes");
    op.dim = op.find("dim");
    // The schema of a plan says what it likes.
    if (op.source >= 0 && (op.value >= 0) == isSplit)
      op.kind = isSplit ? Kind::Split : Kind::Concatenate;
    return;
  }
  switch (facts.equivalent) {
  case Equivalent::None:
  case Equivalent::TensorScalar:
  case Equivalent::Draw:
    return;
  case Equivalent::Copy:
    op.kind = Kind::Copy;
    op.source = op.find("self");
    return;
  case Equivalent::CopySource:
    op.kind = Kind::Copy;
    op.source = op.find("src");
    return;
  case Equivalent::ScalarTensor:
    op.kind = Kind::Fill;
    op.value = op.find("s");
    return;
  case Equivalent::Fill:
    op.kind = name == "fill.Tensor" ? Kind::FillTensor : Kind::Fill;
    op.value = std::max(op.find("value"), op.find("fill_value"));
    op.constant = isOneOf("ones");
    if (op.value < 0 && !isOneOf("zero") && !isOneOf("ones"))
      op.kind = Kind::Plain;
    return;
  case Equivalent::Embedding:
    op.kind = Kind::Embedding;
    op.source = op.find("weight");
    op.index = op.find("indices");
    return;
  case Equivalent::SliceBackward:
  case Equivalent::SelectBackward:
    op.source = op.find("grad_output");
    break;
  case Equivalent::SliceScatter:
  case Equivalent::SelectScatter:
    op.source = op.find("src");
    op.base = op.find("self");
    break;
  case Equivalent::MeanAsSum:
    op.kind = Kind::Mean;
    op.source = op.find("self");
    op.dim = op.find("dim");
    op.keepdim = op.find("keepdim");
    return;
  case Equivalent::Power:
    op.kind = Kind::Power;
    op.source = op.find("self");
    op.value = op.find("exponent");
    return;
  }
  op.kind = Kind::WindowWrite;
  op.dim = op.find("dim");
  op.start = op.find("start");
  op.step = op.find("step");
  op.index = op.find("index");
}

const Operator &Machine::getOperator(std::string_view name,
                                     std::string_view schema) {
  std::string id(name);
  id.append(" ").append(schema);
  auto [entry, isNew] = operators.try_emplace(std::move(id));
  Operator &op = entry->second;
  if (!isNew)
    return op;
  if (auto parsed = operators::parseOperatorSchema(schema))
    op.schema = std::move(*parsed);
  const auto &arguments = op.schema.arguments;
  const OpFacts *facts = nullptr;
  if (name.substr(0, prefix.size()) == prefix)
    facts = operators::lookupOpFacts(name.substr(prefix.size()));
  const OpFacts *functional = facts ? getFunctional(*facts) : nullptr;
  if (!functional) {
    op.number = hashText(name);
    op.hasEffect = true;
    for (size_t i = 0; i != arguments.size(); ++i)
      op.places.push_back(static_cast<int>(i));
    op.numPlaces = arguments.size();
    return op;
  }

  const OpFacts &canonical = *getCanonical(*functional);
  op.number = hashText(canonical.name);
  // Attention draws for its dropout, which the file check rejects.
  op.hasEffect = !functional->isPure() &&
                 functional->cost != operators::CostClass::Attention;
  op.isPointwise = functional->hasTag(operators::TagPointwise);
  op.isExact = canonical.isExact;
  setKind(op, *functional);
  auto target = operators::parseOperatorSchema(canonical.schema);
  for (const operators::OperatorSchema::Argument &argument : arguments) {
    // What is written in place is an operand as well; `out` is none.
    bool isOut = argument.isWritten && getFunctional(facts->name);
    // Of what is filled with draws, the content plays no part.
    isOut |=
        functional->equivalent == Equivalent::Draw && argument.name == "self";
    int place = -1;
    for (size_t i = 0; target && !isOut && i != target->arguments.size(); ++i)
      if (target->arguments[i].name == argument.name &&
          !target->arguments[i].isWritten)
        place = static_cast<int>(i);
    op.places.push_back(place);
  }
  op.numPlaces = target ? target->arguments.size() : 0;
  return op;
}
