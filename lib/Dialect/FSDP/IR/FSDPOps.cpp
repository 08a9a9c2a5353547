//===- FSDPOps.cpp - Operations of the fsdp dialect -----------------------===//
//
// Text of operations, and the check of what they say against the unit or mesh
// that they name. A launch is made of the logical operation that it launches,
// and is checked as that.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

/// `["replicate" = 1, "shard" = 4]`.
static ParseResult parseAxes(OpAsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> list;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        StringAttr name;
        int64_t size = 0;
        if (parser.parseAttribute(name) || parser.parseEqual() ||
            parser.parseInteger(size))
          return failure();
        list.push_back(AxisAttr::get(parser.getContext(), name, size));
        return success();
      }))
    return failure();
  axes = parser.getBuilder().getArrayAttr(list);
  return success();
}

static void printAxes(OpAsmPrinter &printer, MeshOp, ArrayAttr axes) {
  printer << '[';
  llvm::interleaveComma(axes.getAsRange<AxisAttr>(), printer,
                        [&](AxisAttr axis) {
                          printer << axis.getName() << " = " << axis.getSize();
                        });
  printer << ']';
}

/// `<forward>`.
static ParseResult parsePhase(OpAsmParser &parser, aten::PhaseAttr &phase) {
  StringRef name;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseKeyword(&name) || parser.parseGreater())
    return failure();
  std::optional<aten::Phase> value = aten::symbolizePhase(name);
  if (!value)
    return parser.emitError(loc, "unknown phase '") << name << "'";
  phase = aten::PhaseAttr::get(parser.getContext(), *value);
  return success();
}

static void printPhase(OpAsmPrinter &printer, Operation *,
                       aten::PhaseAttr phase) {
  printer << '<' << aten::stringifyPhase(phase.getValue()) << '>';
}

/// `%g0, none, %g1`.
static ParseResult
parsePlaces(OpAsmParser &parser, DenseBoolArrayAttr &present,
            SmallVectorImpl<OpAsmParser::UnresolvedOperand> &gradients) {
  SmallVector<bool> places;
  if (parser.parseCommaSeparatedList([&]() -> ParseResult {
        places.push_back(failed(parser.parseOptionalKeyword("none")));
        return places.back() ? parser.parseOperand(gradients.emplace_back())
                             : success();
      }))
    return failure();
  present = parser.getBuilder().getDenseBoolArrayAttr(places);
  return success();
}

static void printPlaces(OpAsmPrinter &printer, FlattenGradsOp,
                        DenseBoolArrayAttr present, OperandRange gradients) {
  OperandRange::iterator gradient = gradients.begin();
  llvm::interleaveComma(present.asArrayRef(), printer, [&](bool here) {
    if (here)
      printer << *gradient++;
    else
      printer << "none";
  });
}

/// `[0 to 64, 128 to 192]`.
static ParseResult parseIntervals(OpAsmParser &parser,
                                  DenseI64ArrayAttr &intervals) {
  SmallVector<int64_t> list;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        return failure(parser.parseInteger(list.emplace_back()) ||
                       parser.parseKeyword("to") ||
                       parser.parseInteger(list.emplace_back()));
      }))
    return failure();
  intervals = parser.getBuilder().getDenseI64ArrayAttr(list);
  return success();
}

static void printIntervals(OpAsmPrinter &printer, Operation *,
                           DenseI64ArrayAttr intervals) {
  printer << '[';
  for (unsigned i = 0, e = intervals.size(); i + 1 < e; i += 2)
    printer << (i ? ", " : "") << intervals[i] << " to " << intervals[i + 1];
  printer << ']';
}

/// Nothing, or `-> !fsdp.shard<..>`: the type of the momentum.
static ParseResult parseMomentum(OpAsmParser &parser, Type &momentum,
                                 Type &newMomentum) {
  if (failed(parser.parseOptionalArrow()))
    return success();
  if (parser.parseType(momentum))
    return failure();
  newMomentum = momentum;
  return success();
}

static void printMomentum(OpAsmPrinter &printer, SGDOp, Type momentum, Type) {
  if (momentum)
    printer << "-> " << momentum;
}

// Of collectives and copies at both levels.
static LogicalResult verifyAllGather(CollectiveOpInterface op,
                                     SymbolTableCollection &symbols);
static LogicalResult verifyReduceScatter(CollectiveOpInterface op,
                                         SymbolTableCollection &symbols);
template <typename Op>
static LogicalResult verifyAllReduce(Op op, SymbolTableCollection &symbols);
template <typename Op>
static LogicalResult verifyCopy(Op op, SymbolTableCollection &symbols);

} // namespace fsdp

#define GET_OP_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPOps.cpp.inc"

namespace fsdp {

RankedTensorType getHyperType(MLIRContext *context) {
  return RankedTensorType::get({7}, Float64Type::get(context));
}

//===----------------------------------------------------------------------===//
// Symbols
//===----------------------------------------------------------------------===//

std::optional<int64_t> MeshOp::getAxisSize(StringRef axis) {
  for (auto candidate : getAxes().getAsRange<AxisAttr>())
    if (candidate.getName() == axis)
      return candidate.getSize();
  return std::nullopt;
}

int64_t MeshOp::getGroupSize(ArrayAttr axes) {
  int64_t ranks = 1;
  for (auto axis : axes.getAsRange<StringAttr>())
    ranks *= *getAxisSize(axis);
  return ranks;
}

bool RankGroup::overlaps(const RankGroup &other) const {
  return mesh == other.mesh && llvm::any_of(axes, [&](AxisAttr axis) {
           return llvm::is_contained(other.axes, axis);
         });
}

int64_t RankGroup::getNumRanks() const {
  int64_t ranks = 1;
  for (AxisAttr axis : axes)
    ranks *= axis.getSize();
  return ranks;
}

RankGroup getRankGroup(MeshOp mesh, ArrayRef<StringRef> axes) {
  RankGroup group = {mesh, {}};
  for (auto axis : mesh.getAxes().getAsRange<AxisAttr>())
    if (axis.getSize() > 1 &&
        llvm::is_contained(axes, axis.getName().getValue()))
      group.axes.push_back(axis);
  return group;
}

RankGroup getRankGroup(CollectiveOpInterface collective,
                       SymbolTableCollection &symbols) {
  FlatSymbolRefAttr name = collective.getMeshAttr();
  if (FlatSymbolRefAttr unit = collective.getUnitAttr(); unit && !name)
    if (auto op = symbols.lookupNearestSymbolFrom<UnitOp>(collective, unit))
      name = op.getMeshAttr();
  MeshOp mesh;
  if (name)
    mesh = symbols.lookupNearestSymbolFrom<MeshOp>(collective, name);
  if (!mesh)
    return {};
  return getRankGroup(mesh, collective.getGroupAxes());
}

bool isCopy(Operation *op) {
  auto launch = dyn_cast<LaunchOpInterface>(op);
  return launch ? launch.isCopy() : isa<CopyOp>(op);
}

Value skipCopies(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (auto wait = dyn_cast<AsyncWaitOp>(op))
      op = wait.getFuture().getDefiningOp();
    if (!op || !isCopy(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

LaunchOpInterface createLaunch(OpBuilder &builder, Operation *logical) {
  OperationState launch(
      logical->getLoc(),
      ("fsdp.async." + logical->getName().stripDialect()).str());
  launch.addOperands(logical->getOperands());
  launch.addTypes(
      FutureType::get(logical->getContext(), logical->getResult(0).getType()));
  launch.addAttributes(
      cast<DictionaryAttr>(logical->getPropertiesAsAttribute()).getValue());
  return cast<LaunchOpInterface>(builder.create(launch));
}

int64_t MeshOp::getNumRanks() {
  int64_t ranks = 1;
  for (auto axis : getAxes().getAsRange<AxisAttr>())
    ranks *= axis.getSize();
  return ranks;
}

LogicalResult MeshOp::verify() {
  llvm::SmallPtrSet<Attribute, 4> names;
  int64_t ranks = 1;
  for (auto axis : getAxes().getAsRange<AxisAttr>()) {
    if (llvm::MulOverflow(ranks, axis.getSize(), ranks) ||
        ranks > std::numeric_limits<int32_t>::max())
      return emitOpError("expected less than 2^31 ranks, got more");
    if (!names.insert(axis.getName()).second)
      return emitOpError("axis ") << axis.getName() << " occurs twice";
    if (axis.getSize() < 1)
      return emitOpError("expected a positive size of axis ")
             << axis.getName() << ", got " << axis.getSize();
  }
  return success();
}

ShardType UnitOp::getShardType(int64_t shards) {
  return ShardType::get(getContext(), getLayout().getPadded(), getStorage(),
                        shards);
}

GatheredType UnitOp::getGatheredType(Type compute) {
  return GatheredType::get(getContext(), getLayout().getPadded(), compute);
}

bool UnitOp::mayKeepPieces(ArrayAttr axes) {
  const Attribute *next = getShardAxes().begin(), *end = getShardAxes().end();
  for (Attribute axis : axes) {
    next = std::find(next, end, axis);
    if (next == end)
      return false;
    ++next;
  }
  return !axes.empty() && axes.size() < getShardAxes().size();
}

ShardType UnitOp::getPieceType(int64_t pieces, Type compute) {
  return ShardType::get(getContext(), getLayout().getPadded(), compute, pieces);
}

RankedTensorType UnitOp::getFlatGradientType(Type compute) {
  return RankedTensorType::get({getLayout().getPadded()}, compute);
}

RankedTensorType UnitOp::getViewType(ParameterAttr parameter, Type compute) {
  if (parameter.getStrides().empty())
    return RankedTensorType::get(parameter.getSizes(), compute);
  return aten::getTensorType(parameter.getSizes(), compute,
                             parameter.getStrides());
}

static LogicalResult verifyAxes(Operation *op, ArrayAttr axes, MeshOp mesh) {
  llvm::SmallPtrSet<Attribute, 4> seen;
  for (auto axis : axes.getAsRange<StringAttr>()) {
    if (!mesh.getAxisSize(axis))
      return op->emitOpError("mesh '")
             << mesh.getSymName() << "' has no axis " << axis;
    if (!seen.insert(axis).second)
      return op->emitOpError("axis ") << axis << " occurs twice";
  }
  return success();
}

LogicalResult UnitOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto mesh = symbols.lookupNearestSymbolFrom<MeshOp>(*this, getMeshAttr());
  if (!mesh)
    return emitOpError("no mesh is called '") << getMesh() << "'";
  SmallVector<Attribute> all(getShardAxes().begin(), getShardAxes().end());
  llvm::append_range(all, getReplicateAxes());
  if (failed(verifyAxes(*this, ArrayAttr::get(getContext(), all), mesh)))
    return failure();
  auto place = [&](Attribute name) {
    ptrdiff_t index = 0;
    for (auto axis : mesh.getAxes().getAsRange<AxisAttr>()) {
      if (axis.getName() == name)
        break;
      ++index;
    }
    return index;
  };
  if (!llvm::is_sorted(getShardAxes(), [&](Attribute left, Attribute right) {
        return place(left) < place(right);
      }))
    return emitOpError("expected the axes in the order of mesh '")
           << getMesh() << "', got " << getShardAxes();
  int64_t shards = mesh.getGroupSize(getShardAxes());
  if (getLayout().getPadded() % shards != 0)
    return emitOpError("expected a padded size that is a multiple of the ")
           << shards << " shards, got " << getLayout().getPadded();
  for (Type type : {getStorage(), getReduce()})
    if (!isa<FloatType>(type))
      return emitOpError("expected a float type, got ") << type;
  if (getReshardAfterForward() && getKeptAfterBackward())
    return emitOpError("expected a unit that is kept after the backward not to "
                       "be resharded after the forward");
  ArrayAttr pieces = getPieceAxesAttr();
  if (pieces && !(getReshardAfterForward() && mayKeepPieces(pieces)))
    return emitOpError("expected pieces of a unit that is resharded after the "
                       "forward, over some of its axes ")
           << getShardAxes() << ", got " << pieces;
  return success();
}

//===----------------------------------------------------------------------===//
// Checks against a unit
//===----------------------------------------------------------------------===//

namespace {
/// What an op says, against the unit that it names.
struct UnitCheck {
  UnitCheck(Operation *op, FlatSymbolRefAttr name,
            SymbolTableCollection &symbols)
      : op(op), unit(symbols.lookupNearestSymbolFrom<UnitOp>(op, name)) {
    if (unit)
      mesh = symbols.lookupNearestSymbolFrom<MeshOp>(unit, unit.getMeshAttr());
    else
      op->emitOpError("no unit is called '") << name.getValue() << "'";
    // A unit without a mesh is an error of its own.
    valid = unit && mesh;
  }

  LogicalResult type(StringRef what, Type found, Type expected) {
    if (found == expected)
      return success();
    return op->emitOpError("expected ")
           << what << " of type " << expected << ", as unit '"
           << unit.getSymName() << "' has it, got " << found;
  }

  LogicalResult shard(StringRef what, Type found) {
    return type(what, found, unit.getShardType(getShards()));
  }

  /// A shard of the unit in any memory.
  LogicalResult shardAnywhere(StringRef what, Type found) {
    ShardType expected = unit.getShardType(getShards());
    return type(what, found,
                isOnHost(found) ? expected.in(MemorySpace::Host) : expected);
  }

  /// A flat gradient, of whatever type was computed in.
  LogicalResult flat(StringRef what, Type found) {
    auto tensor = dyn_cast<RankedTensorType>(found);
    Type compute = tensor ? tensor.getElementType() : unit.getReduce();
    if (!isa<FloatType>(compute))
      return op->emitOpError("expected ")
             << what << " of floats, got " << found;
    return type(what, found, unit.getFlatGradientType(compute));
  }

  /// A sum is rounded to a type of floats.
  LogicalResult sum(Type via) {
    if (isa<FloatType>(via))
      return success();
    return op->emitOpError("expected a sum of floats, got ") << via;
  }

  int64_t getShards() { return mesh.getGroupSize(unit.getShardAxes()); }

  Operation *op;
  UnitOp unit;
  MeshOp mesh;
  bool valid = false;
};
} // namespace

/// Axes of a collective: there is at least one.
static LogicalResult verifyGroup(Operation *op, ArrayAttr axes, MeshOp mesh) {
  if (axes.empty())
    return op->emitOpError("expected at least one axis");
  return verifyAxes(op, axes, mesh);
}

/// True if the axes are all those over which the unit is sharded; whether one
/// with a single rank is among them makes no difference.
static bool isWhole(ArrayAttr axes, UnitOp unit, MeshOp mesh) {
  return llvm::all_of(
      mesh.getAxes().getAsRange<AxisAttr>(), [&](AxisAttr axis) {
        return axis.getSize() == 1 ||
               llvm::is_contained(unit.getShardAxes(), axis.getName()) ==
                   llvm::is_contained(axes, axis.getName());
      });
}

/// Pieces are those of the ranks along axes over which the unit is sharded, in
/// the unit's order: along others, all ranks have the same.
static LogicalResult verifyShardAxes(UnitCheck &check, ArrayAttr axes) {
  bool isSharded = !check.unit.getShardAxes().empty();
  if (isSharded && failed(verifyGroup(check.op, axes, check.mesh)))
    return failure();
  auto next = check.unit.getShardAxes().begin();
  auto end = check.unit.getShardAxes().end();
  for (Attribute axis : axes) {
    next = std::find(next, end, axis);
    if (next == end)
      return check.op->emitOpError("expected axes over which unit '")
             << check.unit.getSymName() << "' is sharded, in its order, got "
             << axis;
    ++next;
  }
  return success();
}

/// The compute type: that of a gathered unit, a piece or a flat gradient; or
/// any, for a value that is none and has been rejected.
static Type getCompute(Type type) {
  Type element = getElementType(type);
  return element ? element : Float32Type::get(type.getContext());
}

/// The type of a piece of the unit among the ranks along the axes.
static LogicalResult verifyPiece(UnitCheck &check, StringRef what, Type found,
                                 ArrayAttr axes, Type compute) {
  int64_t ranks = check.mesh.getGroupSize(axes);
  return check.type(what, found, check.unit.getPieceType(ranks, compute));
}

/// A shard of what is reduced: of the storage type, or of the reduce type where
/// another reduction follows.
static LogicalResult verifyReduced(UnitCheck &check, StringRef what, Type found,
                                   bool mayBeOnHost = false) {
  if (mayBeOnHost && isOnHost(found))
    return check.shardAnywhere(what, found);
  auto shard = dyn_cast<ShardType>(found);
  Type expected = check.unit.getShardType(check.getShards());
  if (shard && shard.getElementType() == check.unit.getReduce())
    expected =
        ShardType::get(found.getContext(), check.unit.getLayout().getPadded(),
                       shard.getElementType(), check.getShards());
  return check.type(what, found, expected);
}

static LogicalResult verifyAllGather(CollectiveOpInterface op,
                                     SymbolTableCollection &symbols) {
  UnitCheck check(op, op.getUnitAttr(), symbols);
  if (!check.valid || failed(verifyShardAxes(check, op.getAxes())))
    return failure();
  Type shard = getArrived(op->getOperand(0).getType()),
       full = getArrived(op->getResult(0).getType());
  LogicalResult operand =
      op.getAxes().size() == check.unit.getShardAxes().size()
          ? check.shard("an operand", shard)
          : verifyPiece(check, "an operand", shard, op.getAxes(),
                        getCompute(full));
  return success(
      succeeded(operand) &&
      succeeded(check.type("a result", full,
                           check.unit.getGatheredType(getCompute(full)))));
}

template <typename Op>
static LogicalResult verifyCopy(Op op, SymbolTableCollection &symbols) {
  UnitCheck check(op, op.getUnitAttr(), symbols);
  Type source = getArrived(op.getSource().getType());
  if (!check.valid || failed(check.shardAnywhere("an operand", source)))
    return failure();
  MemorySpace other =
      isOnHost(source) ? MemorySpace::Device : MemorySpace::Host;
  return check.type("a result", getArrived(op->getResult(0).getType()),
                    cast<ShardType>(source).in(other));
}

static LogicalResult verifyReduceScatter(CollectiveOpInterface op,
                                         SymbolTableCollection &symbols) {
  UnitCheck check(op, op.getUnitAttr(), symbols);
  if (!check.valid || failed(verifyGroup(op, op.getAxes(), check.mesh)))
    return failure();
  if (!isWhole(op.getAxes(), check.unit, check.mesh))
    return op->emitOpError("expected all axes over which unit '")
           << op.getUnitAttr().getValue() << "' is sharded, got "
           << op.getAxes();
  return success(
      succeeded(check.sum(op.getWireType())) &&
      succeeded(check.flat("an operand", op->getOperand(0).getType())) &&
      succeeded(verifyReduced(check, "a result",
                              getArrived(op->getResult(0).getType()))));
}

template <typename Op>
static LogicalResult verifyAllReduce(Op op, SymbolTableCollection &symbols) {
  Type input = op.getInput().getType(),
       output = getArrived(op->getResult(0).getType());
  if (op.getUnit().has_value() == op.getMesh().has_value())
    return op.emitOpError("expected either a unit or a mesh");
  if (op.getMesh().has_value() != op.getRole().has_value())
    return op.emitOpError("expected a role of a reduction on a mesh, and of no "
                          "other");
  if (op.getMesh()) {
    auto mesh = symbols.lookupNearestSymbolFrom<MeshOp>(op, op.getMeshAttr());
    if (!mesh)
      return op.emitOpError("no mesh is called '") << *op.getMesh() << "'";
    bool isDivided =
        op.getDivide().getPre() != 1 || op.getDivide().getPost() != 1;
    if (op.getMax() && (*op.getRole() != ReductionRole::Norm || isDivided))
      return op.emitOpError("expected 'max' of a norm that is not divided");
    if (op.getFirst() &&
        (*op.getRole() != ReductionRole::Buffer || isDivided || op.getMax()))
      return op.emitOpError("expected 'first' of a buffer that is not divided");
    if (!isa<RankedTensorType>(input) || input != output)
      return op.emitOpError("expected operand and result to be tensors of the "
                            "same type, got ")
             << input << " and " << output;
    return verifyGroup(op, op.getAxes(), mesh);
  }
  if (op.getMax() || op.getFirst())
    return op.emitOpError("expected a sum of what is of a unit");
  input = getArrived(input); // what is of a unit may be in flight
  UnitCheck check(op, op.getUnitAttr(), symbols);
  if (!check.valid)
    return failure();
  // What is ignored is reduced over the rank alone.
  bool isIgnored = check.unit.getShardAxes().empty() &&
                   check.unit.getReplicateAxes().empty();
  if (failed(isIgnored ? verifyAxes(op, op.getAxes(), check.mesh)
                       : verifyGroup(op, op.getAxes(), check.mesh)) ||
      failed(check.sum(op.getVia())))
    return failure();
  // Along other axes, ranks have different elements.
  for (auto axis : op.getAxes().template getAsRange<StringAttr>())
    if (*check.mesh.getAxisSize(axis) != 1 &&
        !llvm::is_contained(check.unit.getReplicateAxes(), axis))
      return op.emitOpError("expected axes over which unit '")
             << *op.getUnit() << "' is replicated, got " << axis;
  bool whole = check.getShards() == 1 && isa<RankedTensorType>(input);
  LogicalResult operand = whole ? check.flat("an operand", input)
                                : verifyReduced(check, "an operand", input);
  return success(succeeded(operand) &&
                 succeeded(verifyReduced(check, "a result", output)));
}

static LogicalResult verifyIntervals(Operation *op, LayoutAttr layout,
                                     ArrayRef<int64_t> intervals) {
  if (intervals.size() % 2)
    return op->emitOpError("expected pairs of begin and end as intervals");
  int64_t last = 0;
  for (unsigned i = 0; i < intervals.size(); i += 2) {
    int64_t begin = intervals[i], end = intervals[i + 1];
    if (begin < last || end <= begin || end > layout.getPadded())
      return op->emitOpError("expected ascending intervals inside the ")
             << layout.getPadded() << " elements, got " << begin << " to "
             << end;
    last = end;
  }
  return success();
}

static LogicalResult verifyUpdate(UpdateOpInterface op,
                                  SymbolTableCollection &symbols) {
  UnitCheck check(op, op.getUnitAttr(), symbols);
  if (!check.valid ||
      failed(check.shardAnywhere("a parameter", op->getOperand(0).getType())))
    return failure();
  ArrayRef<int64_t> intervals = op.getIntervals();
  LayoutAttr layout = check.unit.getLayout();
  if (failed(verifyIntervals(op, layout, intervals)))
    return failure();
  for (unsigned i = 0; i < intervals.size(); i += 2) {
    int64_t begin = intervals[i], end = intervals[i + 1];
    for (ParameterAttr parameter : layout.getParameters())
      if (parameter.getFrozen() && parameter.getOffset() < end &&
          parameter.getEnd() > begin)
        return op->emitOpError("interval ")
               << begin << " to " << end << " touches the frozen parameter "
               << parameter.getName();
  }
  RankedTensorType hyper = getHyperType(op->getContext());
  if (op.getHyper().getType() != hyper)
    return op->emitOpError("expected hyper-parameters of type ")
           << hyper << ", got " << op.getHyper().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Logical level
//===----------------------------------------------------------------------===//

LogicalResult ViewOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  Type full = getFull().getType();
  if (!check.valid ||
      failed(check.type("an operand", full,
                        check.unit.getGatheredType(getCompute(full)))))
    return failure();
  ParameterAttr parameter = check.unit.getLayout().find(getParameter());
  if (!parameter)
    return emitOpError("unit '")
           << getUnit() << "' has no parameter " << getParameterAttr();
  return check.type("a result", getTensor().getType(),
                    check.unit.getViewType(parameter, getCompute(full)));
}

LogicalResult PieceOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  Type full = getFull().getType();
  if (!check.valid ||
      failed(check.type("an operand", full,
                        check.unit.getGatheredType(getCompute(full)))) ||
      failed(verifyShardAxes(check, getAxes())))
    return failure();
  return verifyPiece(check, "a result", getPiece().getType(), getAxes(),
                     getCompute(full));
}

LogicalResult FlattenGradsOp::verify() {
  auto present = llvm::count(getPresent(), true);
  if (present != static_cast<int64_t>(getGradients().size()))
    return emitOpError("expected ")
           << present << " gradients, one per place, got "
           << getGradients().size();
  return success();
}

LogicalResult FlattenGradsOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  if (!check.valid)
    return failure();
  ArrayRef<ParameterAttr> parameters = check.unit.getLayout().getParameters();
  if (getPresent().size() != parameters.size())
    return emitOpError("expected ")
           << parameters.size() << " places, one per parameter, got "
           << getPresent().size();
  auto gradient = getGradients().getTypes().begin();
  for (auto [parameter, present] : llvm::zip_equal(parameters, getPresent())) {
    if (parameter.getFrozen() == present)
      return emitOpError("parameter ")
             << parameter.getName()
             << (present ? " is frozen, but has a gradient"
                         : " is not frozen, but has no gradient");
    if (!present)
      continue;
    auto type = cast<RankedTensorType>(*gradient++);
    if (type.getShape() != parameter.getSizes() ||
        !isa<FloatType>(type.getElementType()))
      return emitOpError("expected a gradient of parameter ")
             << parameter.getName() << " with the sizes of "
             << check.unit.getViewType(parameter, check.unit.getReduce())
             << ", of floats, got " << type;
  }
  return check.flat("a result", getFlat().getType());
}

LogicalResult AccumulateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  Type type = getSum().getType();
  if (!check.valid)
    return failure();
  return isa<RankedTensorType>(type)
             ? check.type(
                   "an operand", type,
                   check.unit.getFlatGradientType(check.unit.getReduce()))
             : verifyReduced(check, "an operand", type, /*mayBeOnHost=*/true);
}

LogicalResult MeasureOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  if (!check.valid ||
      failed(verifyReduced(check, "an operand", getShard().getType(),
                           /*mayBeOnHost=*/true)))
    return failure();
  return verifyIntervals(*this, check.unit.getLayout(), getIntervals());
}

LogicalResult ClipFactorOp::verify() {
  if (getKind() == MeasureKind::FoundInf)
    return emitOpError("expected measures of a norm, got '")
           << stringifyMeasureKind(getKind()) << "'";
  if (!getMaxNorm().isFinite() || !(getMaxNorm().convertToDouble() > 0))
    return emitOpError("expected a largest norm that is finite and above 0, "
                       "got ")
           << getMaxNormAttr();
  if (getMeasures().empty())
    return emitOpError("expected at least one measure");
  return success();
}

LogicalResult ScaleOp::verifySymbolUses(SymbolTableCollection &symbols) {
  UnitCheck check(*this, getUnitAttr(), symbols);
  return success(check.valid && succeeded(verifyReduced(check, "an operand",
                                                        getShard().getType())));
}

LogicalResult AdamWOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUpdate(*this, symbols);
}

LogicalResult SGDOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (bool(getMomentum()) != bool(getNewMomentum()) ||
      (getMomentum() &&
       (getMomentum().getType() != getNewMomentum().getType() ||
        getMomentum().getType() != getParameter().getType())))
    return emitOpError("expected old and new momentum, both of the parameter's "
                       "type, or neither");
  return verifyUpdate(*this, symbols);
}

} // namespace fsdp
