//===- Machine.h - Commands over numbers ------------------------*- C++ -*-===//
//
// What each command of a plan does to a symbolic memory. The same machine runs
// the model before it was sharded, operator by operator, each value in memory
// of its own: operators that kernel selection replaces are brought to one form
// here, whichever of them is met.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_MACHINE_H
#define FSDP_SYMBOLIC_MACHINE_H

#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"
#include "fsdp/PlanFile/Steps.h"
#include "fsdp/Symbolic/Memory.h"

#include <array>
#include <memory>
#include <optional>
#include <string>

namespace fsdp::symbolic {

/// A constant argument. Truth values and enumerations are integers.
struct Literal {
  planfile::Value kind = planfile::Value::None;
  std::vector<int64_t> integers = {};
  std::vector<double> floats = {};
  std::string text = {};

  Number number() const;
};

/// An operator, and what it is the same as.
struct Operator {
  enum Kind {
    Plain,
    Copy,        // the elements of `source`
    Fill,        // equal elements, of the literal `value` or of `constant`
    FillTensor,  // the element of `value`
    Embedding,   // a choice of rows
    WindowWrite, // `source` in a window, `base` or zeros around it
    Mean,        // a sum, divided
    Power,       // `source` to the literal `value`
    Concatenate, // all of `source` along `dim`
    Split,       // `source` along `dim`, cut into lengths `value`
  } kind = Plain;
  operators::OperatorSchema schema;
  Number number = 0;
  /// Of each argument: which one it is of the operator that stands for all
  /// that are the same; -1 if that has none such, or it is only written.
  std::vector<int> places;
  size_t numPlaces = 0;
  /// Draws random numbers, or is not known: equal calls differ.
  bool hasEffect = false;
  /// Result i depends on the elements i of the operands only.
  bool isPointwise = false;
  /// The same bits for all strides. What other kernels do with strides that are
  /// not those of the model is not known: some ignore them.
  bool isExact = false;
  // Arguments by position, -1 if there is none.
  int source = -1, base = -1, value = -1, dim = -1, start = -1, step = -1,
      index = -1, keepdim = -1;
  double constant = 0;

  int find(std::string_view name) const;
};

/// An argument: a literal, or tensors (null: none).
struct Argument {
  const Literal *literal = nullptr;
  std::vector<const Window *> tensors = {};
};

/// A flat parameter.
struct Unit {
  struct Parameter {
    std::string_view name;
    uint64_t offset, numel; // elements
    bool isTrainable;
  };
  std::string_view name;
  DType storage, reduce;
  uint64_t numel = 0, shards = 1;
  uint64_t axes = 0; // along which it is sharded, as bits
  /// Along the others, each rank has a flat parameter of its own.
  uint64_t same = everywhere;
  std::vector<Parameter> parameters = {};
};

/// Elements [begin, end) of a flat parameter.
using Range = std::pair<uint64_t, uint64_t>;

/// What is there at the end: its number, and if they were asked for, what it is
/// in words, and why it may differ from its equal.
struct Meaning {
  Number number;
  std::string words = {}, unknown = {};
};
/// By name.
using Meanings = std::map<std::string, Meaning>;

class Machine {
public:
  explicit Machine(const Ranks &ranks = {}) : values(ranks) {}
  Machine(const Machine &) = delete;

  Values values;
  Memory memory{values};
  /// Draws, and what else is not known, of the program so far, in their order.
  struct Effects {
    Number latest = 0;
    uint64_t count = 0;
  } effects;

  /// The operator of a qualified name, "aten::mm"; the reference stays valid.
  /// The schema must be one.
  const Operator &getOperator(std::string_view name, std::string_view schema);

  /// `results`: of an operator that writes no argument; null: unused.
  void launch(const Operator &op, const std::vector<Argument> &arguments,
              const std::vector<const Window *> &results);
  void copy(const Window &source, const Window &target);
  void zero(const Window &target);
  void allGather(const Window &source, const Window &target, uint64_t axes);
  void keepPiece(const Window &source, const Window &target, uint64_t axes);
  void reduceScatter(const Window &source, const Window &target, uint64_t axes,
                     Values::Divisors divisors, DType via);
  void allReduce(const Window &source, const Window &target, uint64_t axes,
                 Values::Divisors divisors, DType via,
                 ReduceKind kind = ReduceKind::Sum);

  // Flat parameters. A window is that of a rank's piece.
  Content readFlat(const Unit &unit, const Window &window);
  void writeFlat(const Unit &unit, const Window &window, const Content &flat);
  /// The number of a parameter, or of a state of it, before all commands, in a
  /// type. Stored in one, a cast to another is the parameter in that: programs
  /// compute in types of their own, and models cast parameters themselves.
  Number stored(std::string_view kind, std::string_view name, DType storage);
  /// What a flat parameter, or a state of it, is before all commands.
  Content initial(const Unit &unit, std::string_view kind);
  /// The hyper-parameters of a decay group, which the caller writes.
  Content hyper(uint64_t group, std::string_view name = {});
  /// The sums of gradients of two micro-batches, of a whole flat parameter; and
  /// the same in place, of two windows that are whole or a rank's pieces.
  Content accumulate(const Unit &unit, const Content &left,
                     const Content &right, DType dtype);
  void accumulate(const Unit &unit, const Window &source, const Window &target);
  /// What the micro-batches before have summed, by its name in the plan file.
  Content accumulated(const Unit &unit, std::string_view kind);
  /// The whole flat parameter at the start, as it is gathered in a type.
  Content unsharded(const Unit &unit, DType dtype);

  /// The scalars of an update, by their numbers; those that are absent are
  /// null.
  using Scalars = std::array<const Window *, planfile::numUpdateScalars>;
  using ScalarContents =
      std::array<std::optional<Content>, planfile::numUpdateScalars>;
  /// One update of the elements in `ranges`: what the states become.
  std::vector<Content>
  update(const Unit &unit, std::string_view rule, const Content &gradient,
         const std::vector<Content> &states, const Content &hyper,
         const ScalarContents &scalars, const std::vector<Range> &ranges);
  /// The same in place. A gradient that is scaled is so in its place.
  void update(const Unit &unit, std::string_view rule, const Window &gradient,
              const std::vector<const Window *> &states, const Window &hyper,
              const Scalars &scalars, const std::vector<Range> &ranges);
  /// One number of each rank: of the elements in `ranges` that its piece of the
  /// flat parameter has, which is of type `dtype`; and of what is measured so
  /// far.
  Content measure(const Unit &unit, std::string_view kind, const Content &flat,
                  DType dtype, const std::optional<Content> &initial,
                  const std::vector<Range> &ranges);
  void measure(const Unit &unit, std::string_view kind, const Window &source,
               const Window *initial, const Window &target,
               const std::vector<Range> &ranges);
  /// Adds "<what> <parameter>" for each parameter, and whether padding is zero.
  void describe(const Unit &unit, std::string_view what, const Content &flat,
                bool skipsZeros, Meanings &meanings);
  Meaning describe(const Content &content, std::optional<Number> number = {});

  /// Of a content as an operand, with sizes and type.
  Number getOperand(const Window &window, const Content &content) const;

  /// All draws, and what else is not known, in their order, if there are any:
  /// the next program's draws go on from there.
  void describeEffects(Meanings &meanings);

private:
  void beginCommand() {
    operands.clear();
    taken.clear();
    same = everywhere;
  }
  Content read(const Window &window);
  void write(const Window &window, const Content &content,
             bool mayOverlap = false);
  void checkOverlap(const Window &window, bool mayBeSame);
  void checkTargets(const std::vector<const Window *> &targets);
  /// An operand of the next call.
  Number take(const Operator &op, const Window &window);
  Number call(const Operator &op, const std::vector<Number> &arguments,
              const std::vector<const Window *> &targets);
  Content result(const Operator &op, Number call, size_t index,
                 const Layout &layout, DType dtype);
  bool launchAsSimpler(const Operator &op,
                       const std::vector<Argument> &arguments,
                       const std::vector<const Window *> &targets);
  bool writeWindow(const Operator &op, const std::vector<Argument> &arguments,
                   const Window &target);
  bool embed(const Operator &op, const std::vector<Argument> &arguments,
             const Window &target);
  bool average(const Operator &op, const std::vector<Argument> &arguments,
               const Window &target);
  bool raise(const Operator &op, const std::vector<Argument> &arguments,
             const Window &target);
  bool concatenate(const Argument &sources, int64_t dim, const Window &target);
  bool split(const Window &source, int64_t dim,
             const std::vector<int64_t> &lengths,
             const std::vector<const Window *> &targets);
  void move(const Window &source, const Window &target);
  template <typename Change>
  void communicate(const Window &source, const Window &target, bool mayOverlap,
                   const Change &change);

  std::map<std::string, Operator, std::less<>> operators;
  std::vector<const Window *> operands; // of the command
  uint64_t same = everywhere;           // of what it has taken
  std::vector<Number> taken;            // the vectors of that, for words
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_MACHINE_H
