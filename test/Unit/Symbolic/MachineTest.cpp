//===- MachineTest.cpp - Commands over numbers ----------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <deque>
#include <set>

using namespace fsdp::symbolic;
namespace planfile = fsdp::planfile;
using fsdp::planfile::Space;

namespace {

/// A machine with vectors of floats, each in memory of its own.
class MachineTest : public testing::Test {
protected:
  explicit MachineTest(std::vector<uint64_t> ranks = {2, 2})
      : machine(*Ranks::get(ranks)) {
    Clock done;
    done.fill(0);
    machine.memory.setActor({0, Stream::Compute}, done);
  }
  const Window &place(Layout layout, DType dtype = DType::F32) {
    auto root = static_cast<uint32_t>(windows.size());
    layouts.push_back(std::make_unique<Layout>(std::move(layout)));
    windows.push_back(std::make_unique<Window>(
        Window{root, root, Space::Device, dtype, next, layouts.back().get()}));
    next = (windows.back()->end() + 63) / 64 * 64;
    return *windows.back();
  }
  const Window &vector(uint64_t size, DType dtype = DType::F32) {
    return place(Layout::vector(size), dtype);
  }
  Number numberOf(const Window &window) {
    return machine.getOperand(window, machine.memory.read(window));
  }
  Number numberOf(const Content &content) {
    return machine.values.getNumber(content);
  }
  void write(const Window &window, Number base) {
    machine.memory.write(
        window, Content::vector(base, window.layout->numel, everywhere));
  }
  std::optional<Problem::Kind> problem() const {
    if (!machine.memory.getProblem())
      return {};
    return machine.memory.getProblem()->kind;
  }

  Machine machine;
  std::vector<std::unique_ptr<Layout>> layouts;
  std::vector<std::unique_ptr<Window>> windows;
  uint64_t next = 0;
};

} // namespace

// What is copied through any layout and back is what it was.
TEST_F(MachineTest, CopiesKeepTheElements) {
  const Window &source = place(Layout({2, 3}, {3, 1})),
               &turned = place(Layout({2, 3}, {1, 2})),
               &back = place(Layout({2, 3}, {3, 1}));
  write(source, 7);
  machine.copy(source, turned);
  machine.copy(turned, back);
  EXPECT_EQ(numberOf(back), numberOf(source));
  EXPECT_EQ(numberOf(turned), numberOf(source));
  EXPECT_FALSE(problem());
}

// The pieces of all ranks, put together again, are the flat parameter.
TEST_F(MachineTest, GathersWhatWasCut) {
  Unit unit;
  unit.name = "u";
  unit.storage = unit.reduce = DType::F32;
  unit.numel = 12, unit.shards = 2, unit.axes = 1;
  unit.parameters = {{"w", 0, 8, true}, {"b", 8, 2, true}};
  const Window &shard = vector(6), &full = vector(12);
  machine.writeFlat(unit, shard, machine.initial(unit, "parameter"));
  machine.allGather(shard, full, 1);
  EXPECT_EQ(numberOf(machine.readFlat(unit, shard)),
            numberOf(machine.initial(unit, "parameter")));
  EXPECT_EQ(numberOf(machine.memory.read(full)),
            numberOf(machine.initial(unit, "parameter")));
  // Along another axis it is something else.
  const Window &other = vector(12);
  machine.allGather(shard, other, 2);
  EXPECT_NE(numberOf(other), numberOf(full));
}

// What is kept of the whole makes it again, among the ranks that have sharded
// it.
TEST_F(MachineTest, GathersWhatWasKept) {
  const Window &whole = vector(12), &piece = vector(6), &again = vector(12),
               &other = vector(12);
  write(whole, 7);
  machine.keepPiece(whole, piece, 2);
  machine.allGather(piece, again, 2);
  machine.allGather(piece, other, 1);
  EXPECT_EQ(numberOf(again), numberOf(whole));
  EXPECT_NE(numberOf(other), numberOf(whole));
  EXPECT_FALSE(problem());
}

// Scatter, then sum over replicas, is a sum over all.
TEST_F(MachineTest, ReductionsOverTwoAxesAreOne) {
  Unit unit;
  unit.name = "u";
  unit.storage = unit.reduce = DType::F32;
  unit.numel = 8, unit.shards = 2, unit.axes = 1;
  unit.parameters = {{"w", 0, 8, true}};
  const Window &flat = vector(8), &piece = vector(4), &sum = vector(4),
               &all = vector(8);
  write(flat, 7);
  machine.reduceScatter(flat, piece, 1, {2, 1}, DType::F32);
  machine.allReduce(piece, sum, 2, {1, 3}, DType::F32);
  machine.allReduce(flat, all, 3, {2, 3}, DType::F32);
  EXPECT_EQ(numberOf(machine.readFlat(unit, sum)),
            numberOf(machine.memory.read(all)));
}

// An update touches its intervals and nothing else.
TEST_F(MachineTest, UpdatesLeaveWhatIsNotTheirs) {
  EXPECT_TRUE(rc::check([] {
    Machine machine;
    Unit unit;
    unit.name = "u";
    unit.storage = unit.reduce = DType::F32;
    unit.numel = 20;
    unit.parameters = {{"a", 0, 7, true}, {"b", 8, 12, true}};
    auto begin = *rc::gen::inRange<uint64_t>(0, 20);
    auto end = *rc::gen::inRange<uint64_t>(begin + 1, 21);
    Content before = Content::vector(7, 20), gradient = Content::vector(8, 20);
    Content after = machine.update(unit, "sgd", gradient, {before},
                                   machine.hyper(0), {}, {{begin, end}})[0];
    for (uint64_t i = 0; i != 20; ++i) {
      auto at = [&](const Content &flat) {
        return machine.values.getNumber(machine.values.slice(flat, i, i + 1));
      };
      bool isKept = at(after) == at(before);
      RC_ASSERT(isKept == (i < begin || i >= end));
    }
  }));
}

// By other numbers, or from another gradient, it is another update.
TEST_F(MachineTest, UpdatesByOtherNumbersDiffer) {
  Unit unit;
  unit.storage = unit.reduce = DType::F32;
  unit.numel = 8;
  unit.parameters = {{"a", 0, 8, true}};
  Content before = Content::vector(7, 8), one = Content::vector(1, 1),
          other = Content::vector(2, 1);
  std::set<Number> numbers;
  std::optional<Content> none;
  const Machine::ScalarContents scalars[] = {
      {},         {one},           {other}, {none, one}, {none, none, one},
      {one, one}, {one, none, one}};
  for (Number gradient : {8, 9})
    for (uint64_t group : {0, 1})
      for (const Machine::ScalarContents &by : scalars)
        for (const char *rule : {"sgd", "adamw"})
          numbers.insert(numberOf(
              machine.update(unit, rule, Content::vector(gradient, 8), {before},
                             machine.hyper(group), by, {{0, 8}})[0]));
  EXPECT_EQ(numbers.size(), 2 * 2 * 7 * 2u);
}

// What scales a gradient leaves another one behind; found_inf alone does not.
TEST_F(MachineTest, AScaledGradientIsAnotherValue) {
  Unit unit;
  unit.storage = unit.reduce = DType::F32;
  unit.numel = 8;
  unit.parameters = {{"a", 0, 8, true}};
  const Window &gradient = vector(8), &parameter = vector(8);
  const Window &scalar = vector(1), &hyper = vector(7);
  auto scale = [&](const Machine::Scalars &scalars) {
    write(gradient, 7);
    write(parameter, 8);
    write(scalar, 9);
    machine.memory.write(hyper, machine.hyper(0));
    machine.update(unit, "sgd", gradient, {&parameter}, hyper, scalars,
                   {{0, 8}});
    EXPECT_FALSE(problem());
    return numberOf(machine.memory.read(gradient));
  };
  Number before = numberOf(Content::vector(7, 8));
  EXPECT_EQ(scale({}), before);
  EXPECT_EQ(scale({nullptr, nullptr, &scalar}), before);
  Number clipped = scale({&scalar});
  EXPECT_NE(clipped, before);
  EXPECT_NE(scale({nullptr, &scalar}), before);
  EXPECT_NE(scale({nullptr, &scalar}), clipped);
}

// Padding adds nothing; other elements, another unit or kind is another number.
TEST_F(MachineTest, MeasuresAreOfTheirElements) {
  auto measure = [&](const char *kind, std::vector<Range> ranges,
                     uint64_t shards, bool isPadded = false,
                     bool hasInitial = false) {
    Unit unit;
    unit.storage = unit.reduce = DType::F32;
    unit.numel = 8 * shards;
    unit.shards = shards;
    unit.axes = shards - 1;
    unit.parameters = {{"a", 0, 4, true}, {"b", 6, 2, true}};
    const Window &piece = vector(8), &target = vector(1);
    Content flat = Content::vector(7, unit.numel);
    if (isPadded)
      Values::place(flat, Values::zero(DType::F32, 2), 4);
    machine.writeFlat(unit, piece, flat);
    const Window &before = vector(1);
    write(before, 9);
    machine.measure(unit, kind, piece, hasInitial ? &before : nullptr, target,
                    ranges);
    EXPECT_FALSE(problem());
    return numberOf(machine.memory.read(target));
  };
  Number all = measure("norm", {{0, 8}}, 1);
  EXPECT_EQ(measure("norm", {{0, 8}}, 1), all);
  EXPECT_NE(measure("norm", {{0, 4}, {6, 8}}, 1), all);
  EXPECT_NE(measure("norm", {{0, 7}}, 1), all);
  EXPECT_NE(measure("inf", {{0, 8}}, 1), all);
  EXPECT_NE(measure("norm", {{0, 8}}, 2), all);
  EXPECT_NE(measure("norm", {{0, 8}}, 1, false, true), all);
}

// What is scaled is so where the update is: another one may follow beside it.
TEST_F(MachineTest, TwoUpdatesOfAScaledGradient) {
  Unit unit;
  unit.storage = unit.reduce = DType::F32;
  unit.numel = 8;
  unit.parameters = {{"a", 0, 4, true}, {"b", 4, 4, true}};
  const Window &gradient = vector(8), &parameter = vector(8);
  const Window &scalar = vector(1), &hyper = vector(7);
  auto update = [&](std::vector<std::vector<Range>> steps) {
    write(gradient, 7);
    write(parameter, 8);
    write(scalar, 9);
    machine.memory.write(hyper, machine.hyper(0));
    for (const std::vector<Range> &ranges : steps)
      machine.update(unit, "sgd", gradient, {&parameter}, hyper, {&scalar},
                     ranges);
    EXPECT_FALSE(problem());
    return numberOf(machine.memory.read(parameter));
  };
  EXPECT_EQ(update({{{0, 4}}, {{4, 8}}}), update({{{0, 8}}}));
  EXPECT_NE(update({{{0, 8}}, {{4, 8}}}), update({{{0, 8}}}));
}

// Only what goes element by element may write over what it reads.
TEST_F(MachineTest, RejectsResultsOnOperands) {
  const Window &x = place(Layout({2, 2}, {2, 1}));
  write(x, 7);
  Argument argument{nullptr, {&x}};
  const Operator &negate = machine.getOperator(
      "aten::neg.out",
      "aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)");
  machine.launch(negate, {argument, argument}, {});
  EXPECT_FALSE(problem());
  const Operator &product = machine.getOperator(
      "aten::mm.out", "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) "
                      "out) -> Tensor(a!)");
  machine.launch(product, {argument, argument, argument}, {});
  EXPECT_EQ(problem(), Problem::Overlap);
}

// The first power is the number itself, the second a product; no other is.
TEST_F(MachineTest, PowersThatAreNone) {
  const Window &x = vector(4), &y = vector(4);
  const Window &small = vector(4, DType::BF16), &power = vector(4, DType::BF16);
  write(x, 7);
  write(small, 8);
  auto call = [&](const char *name, const char *schema, const Window &of,
                  Argument other, const Window &target) {
    machine.launch(machine.getOperator(name, schema),
                   {Argument{nullptr, {&of}}, other, {nullptr, {&target}}}, {});
    return numberOf(target);
  };
  auto pow = [&](double exponent, const Window &of, const Window &target) {
    Literal literal{planfile::Value::Float, {}, {exponent}};
    return call("aten::pow.Tensor_Scalar_out",
                "aten::pow.Tensor_Scalar_out(Tensor self, Scalar exponent, *, "
                "Tensor(a!) out) -> Tensor(a!)",
                of, {&literal, {}}, target);
  };
  auto square = [&](const Window &of, const Window &target) {
    return call("aten::mul.out",
                "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) "
                "-> Tensor(a!)",
                of, {nullptr, {&of}}, target);
  };
  EXPECT_EQ(pow(1, x, y), numberOf(x));
  EXPECT_EQ(pow(1, small, power), numberOf(small));
  EXPECT_EQ(pow(2, x, y), square(x, y));
  EXPECT_NE(pow(2, small, power), square(small, power));
  EXPECT_NE(pow(3, x, y), square(x, y));
  EXPECT_FALSE(problem());
}

// Calls are numbered by what they do: the same call has the same number, unless
// it draws random numbers.
TEST_F(MachineTest, EqualCallsAreEqual) {
  const Window &x = vector(4), &y = vector(4), &z = vector(4);
  write(x, 7);
  auto call = [&](const char *name, const char *schema, const Window &target) {
    machine.launch(machine.getOperator(name, schema),
                   {Argument{nullptr, {&x}}, Argument{nullptr, {&target}}}, {});
    return numberOf(target);
  };
  const char *neg =
      "aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
  const char *exp =
      "aten::exp.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
  EXPECT_EQ(call("aten::neg.out", neg, y), call("aten::neg.out", neg, z));
  EXPECT_NE(call("aten::neg.out", neg, y), call("aten::exp.out", exp, z));
}

// Where a draw stands among all draws is part of its number; what was in the
// tensor that it fills is not.
TEST_F(MachineTest, DrawsHaveAnOrder) {
  const Window &x = vector(4), &y = vector(4), &unwritten = vector(4);
  Literal zero{planfile::Value::Float, {}, {0}},
      one{planfile::Value::Float, {}, {1}}, none;
  auto fill = [&](std::string name, const Window &target) {
    machine.launch(
        machine.getOperator("aten::" + name,
                            "aten::" + name +
                                "(Tensor(a!) self, float from=0., float "
                                "to=1., *, Generator? generator=None) -> "
                                "Tensor(a!)"),
        {{nullptr, {&target}}, {&zero}, {&one}, {&none}}, {});
    return numberOf(target);
  };
  auto draw = [&](const Window &self, const Window &target) {
    machine.launch(
        machine.getOperator(
            "aten::uniform",
            "aten::uniform(Tensor self, float from=0., float to=1., *, "
            "Generator? generator=None) -> Tensor"),
        {{nullptr, {&self}}, {&zero}, {&one}, {&none}}, {&target});
    return numberOf(target);
  };
  auto restart = [&] {
    Meanings meanings;
    machine.describeEffects(meanings);
    machine.effects = {};
    return meanings.empty() ? 0 : meanings["sequence of effects"].number;
  };
  EXPECT_EQ(restart(), 0u);
  Number first = fill("uniform_", x), second = fill("uniform_", y);
  EXPECT_NE(first, second);
  Number two = restart();
  EXPECT_EQ(draw(unwritten, x), first);
  EXPECT_EQ(draw(x, y), second);
  EXPECT_EQ(restart(), two);
  // One more, one less, and others at their place.
  EXPECT_EQ(draw(x, x), first);
  EXPECT_NE(restart(), two);
  fill("cauchy_", x);
  EXPECT_EQ(fill("uniform_", y), second);
  EXPECT_NE(restart(), two);
  EXPECT_FALSE(problem());
}

// Buckets: units that are copied into one buffer, and out of it. Two units over
// three ranks, with shards of 4 and of 2 elements.
class BucketTest : public MachineTest {
protected:
  using Windows = std::vector<const Window *>;

  BucketTest() : MachineTest({ranks, 2}) {
    for (auto [name, length] : {std::pair("u", 4), std::pair("v", 2)}) {
      Unit &unit = units.emplace_back();
      unit.name = name;
      unit.storage = DType::F32, unit.reduce = DType::BF16;
      unit.numel = uint64_t(ranks * length), unit.shards = ranks;
      unit.axes = 1;
      unit.parameters = {{name, 0, unit.numel, true}};
    }
  }
  const Window &matrix(const Window &vector, int64_t rows) {
    int64_t columns = int64_t(vector.layout->numel) / rows;
    layouts.push_back(
        std::make_unique<Layout>(Layout({rows, columns}, {columns, 1})));
    return *windows.emplace_back(
        std::make_unique<Window>(vector.at(0, *layouts.back())));
  }
  void concatenate(const Windows &sources, int64_t dim, const Window &target) {
    literals.push_back({fsdp::planfile::Value::Int, {dim}});
    machine.launch(
        machine.getOperator(
            "aten::cat.out",
            "aten::cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> "
            "Tensor(a!)"),
        {{nullptr, sources}, {&literals.back(), {}}, {nullptr, {&target}}}, {});
  }
  void split(const Window &source, std::vector<int64_t> lengths, int64_t dim,
             const Windows &targets) {
    literals.push_back({fsdp::planfile::Value::Ints, std::move(lengths)});
    const Literal &list = literals.back();
    literals.push_back({fsdp::planfile::Value::Int, {dim}});
    machine.launch(machine.getOperator(
                       "aten::split_with_sizes_copy.out",
                       "aten::split_with_sizes_copy.out(Tensor self, SymInt[] "
                       "split_sizes, int dim=0, *, Tensor(a!)[] out) -> ()"),
                   {{nullptr, {&source}},
                    {&list, {}},
                    {&literals.back(), {}},
                    {nullptr, targets}},
                   {});
  }
  /// The flat parameters, cast.
  Number getWhole(const Unit &unit) {
    return numberOf(
        machine.values.cast(machine.initial(unit, "parameter"), DType::BF16));
  }
  Number read(const Window &window) {
    return numberOf(machine.memory.read(window));
  }

  static constexpr int64_t ranks = 3;
  std::vector<Unit> units;
  std::deque<Literal> literals;
};

TEST_F(BucketTest, GathersSeveralUnitsAsOne) {
  const Window &u = vector(4), &v = vector(2);
  machine.writeFlat(units[0], u, machine.initial(units[0], "parameter"));
  machine.writeFlat(units[1], v, machine.initial(units[1], "parameter"));
  auto gather = [&](const Windows &shards, std::vector<int64_t> lengths,
                    int64_t rows, uint64_t axes) {
    const Window &source = vector(6, DType::BF16),
                 &whole = vector(18, DType::BF16),
                 &x = vector(uint64_t(lengths[0] * rows), DType::BF16),
                 &y = vector(uint64_t(lengths[1] * rows), DType::BF16);
    concatenate(shards, 0, source);
    machine.allGather(source, whole, axes);
    split(matrix(whole, rows), lengths, 1,
          {&matrix(x, rows), &matrix(y, rows)});
    return std::pair(read(x), read(y));
  };
  auto expected = std::pair(getWhole(units[0]), getWhole(units[1]));
  EXPECT_EQ(gather({&u, &v}, {4, 2}, 3, 1), expected);
  EXPECT_FALSE(problem());
  // In another order, cut elsewhere, as other rows, over other ranks.
  auto isOther = [&](std::pair<Number, Number> found) {
    return found.first != expected.first && found.second != expected.second;
  };
  EXPECT_TRUE(isOther(gather({&v, &u}, {4, 2}, 3, 1)));
  EXPECT_TRUE(isOther(gather({&u, &v}, {2, 4}, 3, 1)));
  EXPECT_TRUE(isOther(gather({&u, &v}, {5, 1}, 3, 1)));
  EXPECT_TRUE(isOther(gather({&u, &v}, {8, 1}, 2, 1)));
  EXPECT_TRUE(isOther(gather({&u, &v}, {4, 2}, 3, 2)));
  EXPECT_TRUE(isOther(gather({&u, &u}, {4, 2}, 3, 1)));
}

TEST_F(BucketTest, ReducesSeveralUnitsAsOne) {
  const Window &u = vector(12), &v = vector(6);
  write(u, 7);
  write(v, 8);
  auto reduce = [&](int64_t rows, std::vector<int64_t> lengths,
                    double divisor) {
    const Window &flat = vector(18), &sums = vector(6),
                 &x = vector(uint64_t(lengths[0])),
                 &y = vector(uint64_t(lengths[1]));
    concatenate({&matrix(u, rows), &matrix(v, rows)}, 1, matrix(flat, rows));
    machine.reduceScatter(flat, sums, 1, {1, divisor}, DType::F32);
    split(sums, lengths, 0, {&x, &y});
    return std::pair(read(x), read(y));
  };
  const Window &x = vector(4), &y = vector(2);
  machine.reduceScatter(u, x, 1, {1, 3}, DType::F32);
  machine.reduceScatter(v, y, 1, {1, 3}, DType::F32);
  auto expected = std::pair(read(x), read(y));
  EXPECT_EQ(reduce(3, {4, 2}, 3), expected);
  EXPECT_FALSE(problem());
  // Chunks of other numbers, cut elsewhere, divided otherwise; of one chunk,
  // the first rank would get all of its sums from the first unit.
  auto isOther = [&](std::pair<Number, Number> found) {
    return found.first != expected.first && found.second != expected.second;
  };
  for (int64_t rows : {1, 2, 6})
    EXPECT_TRUE(isOther(reduce(rows, {4, 2}, 3))) << rows;
  EXPECT_TRUE(isOther(reduce(3, {2, 4}, 3)));
  EXPECT_TRUE(isOther(reduce(3, {4, 2}, 4)));
}

// A copy out of a matrix that stands among others is a copy of the matrix.
TEST_F(BucketTest, CopiesOutOfARow) {
  const Window &u = vector(12), &v = vector(6), &both = vector(18),
               &copied = vector(6), &shifted = vector(6);
  write(u, 7);
  write(v, 8);
  concatenate({&matrix(u, 3), &matrix(v, 3)}, 1, matrix(both, 3));
  Layout part({3, 2}, {6, 1});
  machine.copy(both.at(4, part), copied);
  machine.copy(both.at(3, part), shifted);
  EXPECT_EQ(read(copied), read(v));
  EXPECT_NE(read(shifted), read(v));
}

// What is split must not be written.
TEST_F(BucketTest, SplitsIntoOtherMemory) {
  const Window &both = vector(6), &other = vector(2);
  write(both, 7);
  Layout four = Layout::vector(4);
  Window part = both.at(0, four);
  split(both, {2, 4}, 0, {&other, &part});
  EXPECT_EQ(problem(), Problem::Overlap);
}

// Whatever a plan says that the operator takes, it is numbered, not followed.
TEST_F(BucketTest, NeedsTheArgumentsOfTheOperator) {
  const Window &x = vector(4), &y = vector(4);
  write(x, 7);
  for (const char *name : {"cat.out", "split_with_sizes_copy.out"}) {
    std::string full = std::string("aten::") + name;
    machine.launch(
        machine.getOperator(full, full + "(Tensor x, *, Tensor(a!) out) -> ()"),
        {{nullptr, {&x}}, {nullptr, {&y}}}, {});
    EXPECT_NE(read(y), read(x));
  }
}
