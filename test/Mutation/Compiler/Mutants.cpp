//===- Mutants.cpp - Small mistakes in legal programs ---------------------===//

#include "Mutants.h"

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Dialect/FSDP/IR/Programs.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <map>
#include <random>

using namespace mlir;
using namespace fsdp;
using namespace fsdp::test;

SmallVector<Operation *> test::listOperations(ModuleOp module) {
  SmallVector<Operation *> ops;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) { ops.push_back(op); });
  return ops;
}

namespace {

class Mutator {
public:
  Mutator(ModuleOp module, unsigned seed)
      : context(module.getContext()), ops(listOperations(module)),
        random(seed) {
    for (auto [number, op] : llvm::enumerate(ops))
      numbers[op] = number;
  }

  std::vector<Mutant> run() {
    for (Operation *op : ops)
      if (isSubject(op))
        mutate(op);
    return std::move(mutants);
  }

private:
  using Ops = ArrayRef<Operation *>;

  static bool isSubject(Operation *op) {
    if (isa<ModuleOp, func::FuncOp, plan::ModuleOp, plan::ProgramOp,
            plan::MeaningOp>(op))
      return false;
    auto func = op->getParentOfType<func::FuncOp>();
    return !func || !isSource(func);
  }

  template <typename Apply>
  void add(StringRef mutation, const Twine &what, Apply apply) {
    unsigned number = numbers.lookup(current);
    mutants.push_back({current->getName().getStringRef().str(), mutation.str(),
                       describe(current) + ": " + what.str(),
                       [=](Ops ops) { apply(ops[number], ops); }});
  }

  void addAttribute(StringRef mutation, StringRef name, Attribute value) {
    std::string text;
    llvm::raw_string_ostream(text) << name << " = " << value;
    add(mutation, text, [name = name.str(), value](Operation *op, Ops) {
      op->setAttr(name, value);
    });
  }

  std::string describe(Operation *op) const {
    std::string text = op->getName().getStringRef().str() + " " +
                       std::to_string(numbers.lookup(op));
    if (auto name = dyn_cast<NameLoc>(op->getLoc()))
      text += " '" + name.getName().str() + "'";
    return text;
  }

  unsigned pick(unsigned count) { return random() % count; }

  void mutate(Operation *op) {
    current = op;
    if (!op->hasTrait<OpTrait::IsTerminator>()) {
      mutateExistence();
      // A table has no order.
      if (!isa<ModuleOp, plan::ModuleOp>(op->getParentOp()))
        mutatePlace();
    }
    mutateOperands();
    mutateCollective();
    mutatePhase();
    mutateOffset();
    mutateEvent();
    mutateStream();
    mutateUnit();
    mutateSpelling();
  }

  //===--------------------------------------------------------------------===//
  // Existence and place
  //===--------------------------------------------------------------------===//

  void mutateExistence() {
    add("duplicate", "twice", [](Operation *op, Ops) {
      OpBuilder builder(op->getContext());
      builder.setInsertionPointAfter(op);
      builder.clone(*op);
    });
    // Whoever used a result gets another value, for otherwise nothing parses.
    SmallVector<ValueName> others;
    for (Value result : current->getResults()) {
      SmallVector<ValueName> candidates;
      if (!result.use_empty())
        candidates = findOthers(result, current);
      if (!result.use_empty() && candidates.empty())
        return;
      others.push_back(candidates.empty() ? ValueName() : candidates.back());
    }
    add("delete", "gone", [others](Operation *op, Ops ops) {
      for (auto [result, other] : llvm::zip(op->getResults(), others))
        if (!result.use_empty())
          result.replaceAllUsesWith(other.find(ops));
      op->erase();
    });
  }

  void mutatePlace() {
    Operation *next = current->getNextNode();
    if (next && !next->hasTrait<OpTrait::IsTerminator>())
      add("swap", "after " + describe(next),
          [](Operation *op, Ops) { op->moveAfter(op->getNextNode()); });
    SmallVector<Operation *> before, behind;
    bool isBehind = false;
    for (Operation &other : *current->getBlock()) {
      isBehind |= &other == current;
      if (&other != current && !other.hasTrait<OpTrait::IsTerminator>())
        (isBehind ? behind : before).push_back(&other);
    }
    // As far as its operands and users let it, and anywhere.
    auto moveTo = [&](Operation *target, bool isBefore) {
      add("move", (isBefore ? "before " : "after ") + describe(target),
          [isBefore, to = numbers.lookup(target)](Operation *op, Ops ops) {
            isBefore ? op->moveBefore(ops[to]) : op->moveAfter(ops[to]);
          });
    };
    if (!before.empty()) {
      Operation *first = before.front();
      for (Value operand : current->getOperands())
        if (Operation *producer = operand.getDefiningOp();
            producer && producer->getBlock() == current->getBlock() &&
            (producer == first || first->isBeforeInBlock(producer)))
          first = producer->getNextNode();
      if (first != current && first->getPrevNode() != current)
        moveTo(first, true);
      moveTo(before[pick(before.size())], true);
    }
    if (!behind.empty()) {
      Operation *last = behind.back();
      for (Operation *user : current->getUsers())
        if (user->getBlock() == current->getBlock() &&
            (user->isBeforeInBlock(last) || user == last))
          last = user->getPrevNode();
      if (last != current)
        moveTo(last, false);
      moveTo(behind[pick(behind.size())], false);
    }
  }

  //===--------------------------------------------------------------------===//
  // Operands
  //===--------------------------------------------------------------------===//

  /// A value of the program, in any copy.
  struct ValueName {
    unsigned op = 0, number = 0;
    bool isArgument = false;
    Value find(Ops ops) const {
      return isArgument ? Value(ops[op]->getRegion(0).getArgument(number))
                        : Value(ops[op]->getResult(number));
    }
  };

  /// The sizes and type of what a value is.
  static Attribute getShape(Value value) {
    if (auto buffer = value.getDefiningOp<plan::BufferOp>())
      return buffer.getTypeAttr();
    if (auto view = value.getDefiningOp<plan::ViewOp>())
      return view.getTypeAttr();
    return TypeAttr::get(value.getType());
  }

  /// Values like `value` that `user` may name in its stead, the nearest last.
  SmallVector<ValueName> findOthers(Value value, Operation *user) {
    SmallVector<ValueName> found;
    Attribute shape = getShape(value);
    auto visit = [&](Value other, ValueName name) {
      if (other != value && getShape(other) == shape)
        found.push_back(name);
    };
    for (Operation *parent = user->getParentOp(); parent;
         parent = parent->getParentOp())
      if (auto func = dyn_cast<func::FuncOp>(parent))
        for (BlockArgument argument : func.getArguments())
          visit(argument,
                {numbers.lookup(parent), argument.getArgNumber(), true});
    for (Block *block = user->getBlock(); block;
         block = block->getParentOp() ? block->getParentOp()->getBlock()
                                      : nullptr) {
      bool isTable = isa<plan::ModuleOp>(block->getParentOp());
      for (Operation &op : *block) {
        if (&op == user && !isTable)
          break;
        for (OpResult result : op.getResults())
          if (&op != user)
            visit(result, {numbers.lookup(&op), result.getResultNumber()});
      }
    }
    return found;
  }

  void mutateOperands() {
    for (OpOperand &operand : current->getOpOperands()) {
      unsigned number = operand.getOperandNumber();
      bool isEvent = isa<plan::EventType, TokenType>(operand.get().getType());
      StringRef mutation = isEvent ? "event" : "operand";
      // One operation takes a wrong operand.
      auto use = [&](ValueName other) {
        add(mutation,
            "operand " + Twine(number) +
                (other.isArgument ? " is argument " + Twine(other.number)
                                  : " is of " + describe(ops[other.op])),
            [number, other](Operation *op, Ops ops) {
              op->setOperand(number, other.find(ops));
            });
      };
      SmallVector<ValueName> others = findOthers(operand.get(), current);
      if (!others.empty()) {
        unsigned random = pick(others.size());
        use(others.back());
        if (random + 1 != others.size())
          use(others[random]);
      }
      // Two of a kind take each other's.
      for (Operation *next = current->getNextNode(); next;
           next = next->getNextNode()) {
        if (next->getName() != current->getName() ||
            next->getNumOperands() <= number ||
            next->getOperand(number) == operand.get() ||
            getShape(next->getOperand(number)) != getShape(operand.get()))
          continue;
        add(mutation,
            "operand " + Twine(number) + " exchanged with " + describe(next),
            [number, to = numbers.lookup(next)](Operation *op, Ops ops) {
              Value mine = op->getOperand(number);
              op->setOperand(number, ops[to]->getOperand(number));
              ops[to]->setOperand(number, mine);
            });
        break;
      }
    }
  }

  //===--------------------------------------------------------------------===//
  // Groups and divisors
  //===--------------------------------------------------------------------===//

  template <typename Visit>
  static void forEachSubset(size_t size, Visit visit) {
    for (unsigned mask = 1; mask != 1u << size; ++mask) {
      SmallVector<int64_t> subset;
      for (unsigned i = 0; i != size; ++i)
        if (mask >> i & 1)
          subset.push_back(i);
      visit(subset);
    }
  }

  ArrayAttr findMesh() {
    for (Operation *op : ops) {
      if (auto mesh = dyn_cast<MeshOp>(op))
        return mesh.getAxes();
      if (auto plan = dyn_cast<plan::ModuleOp>(op))
        return plan.getMesh();
    }
    return ArrayAttr::get(context, {});
  }

  void mutateCollective() {
    Builder builder(context);
    ArrayAttr mesh = findMesh();
    auto nameOf = [&](int64_t axis) -> Attribute {
      return cast<AxisAttr>(mesh[axis]).getName();
    };
    if (auto op = dyn_cast<MeshOp>(current))
      for (auto [axis, value] : llvm::enumerate(mesh)) {
        SmallVector<Attribute> axes(mesh.getValue());
        auto old = cast<AxisAttr>(value);
        axes[axis] = AxisAttr::get(context, old.getName(), old.getSize() * 2);
        addAttribute("group", "axes", builder.getArrayAttr(axes));
      }
    if (auto axes = current->getAttrOfType<ArrayAttr>("axes");
        axes && !isa<MeshOp>(current))
      forEachSubset(mesh.size(), [&](ArrayRef<int64_t> subset) {
        auto other = builder.getArrayAttr(llvm::map_to_vector(subset, nameOf));
        if (other != axes)
          addAttribute("group", "axes", other);
      });
    if (auto axes = current->getAttrOfType<DenseI64ArrayAttr>("axes"))
      forEachSubset(mesh.size(), [&](ArrayRef<int64_t> subset) {
        auto other = builder.getDenseI64ArrayAttr(subset);
        if (other != axes)
          addAttribute("group", "axes", other);
      });
    if (current->hasAttr("communicator"))
      forEachSubset(mesh.size(), [&](ArrayRef<int64_t> subset) {
        std::vector<int64_t> axes(subset.begin(), subset.end());
        add("group",
            "over " + Twine(subset.size()) + " axes from " + Twine(subset[0]),
            [axes](Operation *op, Ops) {
              auto plan = op->getParentOfType<plan::ModuleOp>();
              OpBuilder builder =
                  OpBuilder::atBlockBegin(&plan.getBody().front());
              auto communicators =
                  plan.getBody().getOps<plan::CommunicatorOp>();
              auto old = plan.lookupSymbol<plan::CommunicatorOp>(
                  op->getAttrOfType<FlatSymbolRefAttr>("communicator"));
              auto found =
                  llvm::find_if(communicators, [&](plan::CommunicatorOp other) {
                    return other.getAxes() == ArrayRef(axes) &&
                           other.getStream() == old.getStream();
                  });
              auto mutant = found != communicators.end()
                                ? *found
                                : plan::CommunicatorOp::create(
                                      builder, op->getLoc(), "mutant", axes,
                                      old.getStream());
              op->setAttr("communicator", FlatSymbolRefAttr::get(mutant));
            });
      });
    if (auto divide = current->getAttrOfType<DivideAttr>("divide")) {
      auto use = [&](double factorPre, double factorPost) {
        double pre = divide.getPre() * factorPre;
        double post = divide.getPost() * factorPost;
        if (pre >= 1 && post >= 1) // others have no spelling
          addAttribute("divisor", "divide",
                       DivideAttr::get(context, pre, post));
      };
      use(2, 1);
      use(1, 2);
      use(0.5, 1);
      use(2, 0.5);
      use(0.5, 2);
    }
    for (StringRef name : {"bucket", "group"}) {
      if (auto group = current->getAttrOfType<IntegerAttr>(name)) {
        add("group", "no " + name,
            [name = name.str()](Operation *op, Ops) { op->removeAttr(name); });
        addAttribute("group", name,
                     builder.getI64IntegerAttr(group.getInt() + 1));
      } else if (isa<CollectiveOpInterface>(current)
                     ? name == "bucket"
                     : current->hasAttr("communicator") && name == "group") {
        addAttribute("group", name, builder.getI64IntegerAttr(0));
      }
    }
    if (current->hasAttr("via"))
      addAttribute("divisor", "via", TypeAttr::get(builder.getBF16Type()));
  }

  //===--------------------------------------------------------------------===//
  // Phases, streams, events
  //===--------------------------------------------------------------------===//

  void mutatePhase() {
    if (auto phase = current->getAttrOfType<aten::PhaseAttr>("phase"))
      for (uint32_t i = 0; i <= aten::getMaxEnumValForPhase(); ++i)
        if (auto other = aten::symbolizePhase(i);
            other && *other != phase.getValue())
          addAttribute("phase", "phase", aten::PhaseAttr::get(context, *other));
    if (auto role = current->getAttrOfType<plan::RoleAttr>("role"))
      for (uint32_t i = 0; i <= plan::getMaxEnumValForRole(); ++i)
        if (auto other = plan::symbolizeRole(i);
            other && *other != role.getValue())
          addAttribute("phase", "role", plan::RoleAttr::get(context, *other));
    if (auto role = current->getAttrOfType<plan::BufferRoleAttr>("role"))
      for (uint32_t i = 0; i <= plan::getMaxEnumValForBufferRole(); ++i)
        if (auto other = plan::symbolizeBufferRole(i);
            other && *other != role.getValue() && pick(4) == 0)
          addAttribute("phase", "role",
                       plan::BufferRoleAttr::get(context, *other));
  }

  void mutateStream() {
    if (auto stream = current->getAttrOfType<plan::StreamAttr>("stream"))
      for (uint32_t i = 0; i <= getMaxEnumValForStream(); ++i)
        if (auto other = symbolizeStream(i);
            other && *other != stream.getValue())
          addAttribute("stream", "stream",
                       plan::StreamAttr::get(context, *other));
  }

  /// What is waited for is an operand, see above; here it is forgotten.
  void mutateEvent() {
    auto forget = [&](auto op) {
      if (op)
        for (unsigned i = 0; i != op.getAfter().size(); ++i)
          add("event", "not after " + Twine(i), [i](Operation *copy, Ops) {
            cast<decltype(op)>(copy).getAfterMutable().erase(i);
          });
    };
    forget(dyn_cast<AsyncUnshardOp>(current));
    forget(dyn_cast<plan::BufferOp>(current));
  }

  //===--------------------------------------------------------------------===//
  // Offsets and units
  //===--------------------------------------------------------------------===//

  void mutateOffset() {
    Builder builder(context);
    if (auto offset = current->getAttrOfType<IntegerAttr>("offset")) {
      auto use = [&](int64_t other) {
        if (other >= 0 && other != offset.getInt())
          addAttribute("offset", "offset", builder.getI64IntegerAttr(other));
      };
      int64_t step = isa<plan::ViewOp>(current) ? 4 : 64;
      use(offset.getInt() + step);
      use(offset.getInt() - step);
      use(0);
      if (auto buffer = dyn_cast<plan::BufferOp>(current)) {
        SmallVector<int64_t> places;
        for (Operation *op : ops)
          if (auto other = dyn_cast<plan::BufferOp>(op))
            places.push_back(*other.getOffset());
        use(places[pick(places.size())]);
      }
    }
    if (auto intervals =
            current->getAttrOfType<DenseI64ArrayAttr>("intervals")) {
      auto use = [&](unsigned at, int64_t by) {
        SmallVector<int64_t> other(intervals.asArrayRef());
        other[at] += by;
        addAttribute("offset", "intervals",
                     builder.getDenseI64ArrayAttr(other));
      };
      for (unsigned i = 0; i != intervals.size(); ++i) {
        use(i, 1);
        use(i, -1);
      }
    }
    if (auto view = dyn_cast<ViewOp>(current))
      for (Operation *op : ops)
        if (auto unit = dyn_cast<UnitOp>(op);
            unit && unit.getSymName() == view.getUnit())
          for (ParameterAttr parameter : unit.getLayout().getParameters())
            if (parameter.getName() != view.getParameterAttr() &&
                unit.getViewType(parameter,
                                 view.getTensor().getType().getElementType()) ==
                    view.getType())
              addAttribute("offset", "parameter", parameter.getName());
    if (isa<UnitOp, plan::UnitOp>(current)) {
      auto layout = current->getAttrOfType<LayoutAttr>("layout");
      SmallVector<ParameterAttr> parameters(layout.getParameters());
      for (unsigned i = 0; i + 1 < parameters.size(); ++i) {
        // Two parameters of the same size change places.
        ParameterAttr first = parameters[i], second = parameters[i + 1];
        if (first.getSizes() != second.getSizes())
          continue;
        SmallVector<ParameterAttr> other = parameters;
        auto named = [&](ParameterAttr place, ParameterAttr name) {
          return ParameterAttr::get(context, name.getName(), place.getSizes(),
                                    place.getOffset(), place.getFrozen(),
                                    place.getStrides(), name.getAliases());
        };
        other[i] = named(first, second);
        other[i + 1] = named(second, first);
        addAttribute("offset", "layout",
                     LayoutAttr::get(context, other, layout.getNumel(),
                                     layout.getPadded()));
      }
    }
  }

  void mutateUnit() {
    for (StringRef name : {"unit", "owner"}) {
      auto unit = current->getAttrOfType<FlatSymbolRefAttr>(name);
      if (!unit)
        continue;
      for (Operation *op : ops)
        if (isa<UnitOp, plan::UnitOp>(op))
          if (StringAttr symbol = SymbolTable::getSymbolName(op);
              symbol != unit.getAttr())
            addAttribute("unit", name, FlatSymbolRefAttr::get(symbol));
      if (!isa<UnitOp>(current) &&
          current->getName().getDialectNamespace() == "plan")
        add("unit", "no " + name,
            [name = name.str()](Operation *op, Ops) { op->removeAttr(name); });
    }
  }

  //===--------------------------------------------------------------------===//
  // Whatever is written
  //===--------------------------------------------------------------------===//

  /// A number or an element type in the text is another one; empty if there is
  /// neither.
  std::string respell(StringRef text) {
    SmallVector<std::pair<size_t, size_t>> words; // begin and end
    for (size_t at = 0; at != text.size();) {
      size_t end = at;
      while (end != text.size() && llvm::isAlnum(text[end]))
        ++end;
      StringRef word = text.slice(at, end);
      // Sizes stand before an `x`, as in 4x8xf32.
      size_t begin = at;
      while (!word.empty()) {
        auto [head, tail] = word.split('x');
        bool isNumber = llvm::all_of(head, llvm::isDigit);
        if (!head.empty() && (isNumber || isElementType(head)))
          words.emplace_back(begin, begin + head.size());
        begin += head.size() + 1;
        word = tail;
      }
      at = end + (end != text.size());
    }
    if (words.empty())
      return {};
    auto [begin, end] = words[pick(words.size())];
    StringRef word = text.slice(begin, end);
    uint64_t number = 0;
    std::string other;
    if (word.getAsInteger(10, number)) {
      other = elementTypes[pick(std::size(elementTypes))].str();
    } else {
      auto [first, last] = words[pick(words.size())];
      std::string choices[] = {std::to_string(number + 1),
                               std::to_string(number ? number - 1 : 1),
                               std::to_string(number * 2),
                               "0",
                               "1",
                               text.slice(first, last).str()};
      other = choices[pick(std::size(choices))];
    }
    return (text.take_front(begin) + other + text.drop_front(end)).str();
  }

  static constexpr StringLiteral elementTypes[] = {"f16", "bf16", "f32", "f64",
                                                   "i32", "i64",  "i1"};
  static bool isElementType(StringRef word) {
    return llvm::is_contained(elementTypes, word);
  }

  /// Attributes of any kind, and the types of results, read again from a text
  /// in which one word is another.
  void mutateSpelling() {
    ScopedDiagnosticHandler silent(context,
                                   [](Diagnostic &) { return success(); });
    auto spell = [](auto value) {
      std::string text;
      llvm::raw_string_ostream(text) << value;
      return text;
    };
    for (NamedAttribute attr : current->getAttrs()) {
      if (attr.getName() == "scope" || attr.getName() == "notes")
        continue;
      std::string text = respell(spell(attr.getValue()));
      Attribute other =
          text.empty() ? Attribute() : parseAttribute(text, context);
      if (other && other != attr.getValue())
        addAttribute("spelling", attr.getName(), other);
    }
    for (OpResult result : current->getResults()) {
      std::string text = respell(spell(result.getType()));
      Type other = text.empty() ? Type() : parseType(text, context);
      if (other && other != result.getType())
        add("type", "result " + Twine(result.getResultNumber()) + " is " + text,
            [number = result.getResultNumber(), other](Operation *op, Ops) {
              op->getResult(number).setType(other);
            });
    }
  }

  MLIRContext *context;
  SmallVector<Operation *> ops;
  DenseMap<Operation *, unsigned> numbers;
  std::minstd_rand random;
  Operation *current = nullptr;
  std::vector<Mutant> mutants;
};

} // namespace

std::vector<Mutant> test::makeMutants(ModuleOp module, unsigned seed) {
  return Mutator(module, seed).run();
}

std::vector<Mutant> test::pairUp(const std::vector<Mutant> &mutants,
                                 unsigned count, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<Mutant> pairs;
  while (pairs.size() != count && !mutants.empty()) {
    const Mutant &first = mutants[random() % mutants.size()];
    const Mutant &second = mutants[random() % mutants.size()];
    // What is gone can't be damaged again.
    if (first.mutation == "delete")
      continue;
    pairs.push_back({first.op, "two", first.what + "; " + second.what,
                     [first, second](ArrayRef<Operation *> ops) {
                       first.apply(ops);
                       second.apply(ops);
                     }});
  }
  return pairs;
}

std::vector<Mutant> test::choose(std::vector<Mutant> mutants, unsigned every,
                                 unsigned seed) {
  std::map<std::pair<std::string, std::string>, std::vector<unsigned>> kinds;
  for (auto [number, mutant] : llvm::enumerate(mutants))
    kinds[{mutant.op, mutant.mutation}].push_back(number);
  std::minstd_rand random(seed);
  std::vector<unsigned> chosen;
  for (auto &[kind, numbers] : kinds)
    for (unsigned i = 0; i < numbers.size(); i += every) {
      unsigned count = std::min<unsigned>(every, numbers.size() - i);
      chosen.push_back(numbers[i + random() % count]);
    }
  llvm::sort(chosen);
  std::vector<Mutant> result;
  for (unsigned number : chosen)
    result.push_back(std::move(mutants[number]));
  return result;
}
