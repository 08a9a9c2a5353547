//===- PlanCommands.cpp - Commands of a plan ------------------------------===//
//
// Syntax and verification of what a program consists of.
//
//===----------------------------------------------------------------------===//

#include "CommandSyntax.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

// Both dialects have a view, a unit, ...: here these are of this one.
namespace fsdp::plan {

//===----------------------------------------------------------------------===//
// Syntax
//===----------------------------------------------------------------------===//

ParseResult
parseOutputs(OpAsmParser &parser,
             SmallVectorImpl<OpAsmParser::UnresolvedOperand> &outputs,
             DenseBoolArrayAttr &present) {
  if (parser.parseOptionalArrow())
    return success();
  SmallVector<bool> places;
  auto parseOutput = [&]() -> ParseResult {
    places.push_back(parser.parseOptionalKeyword("none").failed());
    return places.back() ? parser.parseOperand(outputs.emplace_back())
                         : success();
  };
  if (parser.parseCommaSeparatedList(parseOutput))
    return failure();
  if (outputs.size() != places.size())
    present = parser.getBuilder().getDenseBoolArrayAttr(places);
  return success();
}

void printOutputs(OpAsmPrinter &printer, Operation *, OperandRange outputs,
                  DenseBoolArrayAttr present) {
  if (outputs.empty() && !present)
    return;
  printer << " -> ";
  if (!present) {
    printer.printOperands(outputs);
    return;
  }
  auto next = outputs.begin();
  llvm::interleaveComma(present.asArrayRef(), printer, [&](bool isPresent) {
    if (isPresent)
      printer.printOperand(*next++);
    else
      printer << "none";
  });
}

ParseResult parsePlace(OpAsmParser &parser, RoleAttr &role,
                       StreamAttr &stream) {
  StringRef keyword;
  SMLoc loc;
  auto parseWord = [&] {
    loc = parser.getCurrentLocation();
    return parser.parseKeyword(&keyword);
  };
  if (parser.parseLess() || parseWord())
    return failure();
  std::optional<Role> roleValue = symbolizeRole(keyword);
  if (!roleValue)
    return parser.emitError(loc, "expected a role, got '") << keyword << "'";
  std::optional<Stream> streamValue = Stream::Compute;
  if (parser.parseGreater())
    return failure();
  if (parser.parseOptionalKeyword("on").succeeded()) {
    if (parseWord())
      return failure();
    streamValue = symbolizeStream(keyword);
    if (!streamValue)
      return parser.emitError(loc, "expected a stream, got '")
             << keyword << "'";
  }
  role = RoleAttr::get(parser.getContext(), *roleValue);
  stream = StreamAttr::get(parser.getContext(), *streamValue);
  return success();
}

void printPlace(OpAsmPrinter &printer, Operation *, RoleAttr role,
                StreamAttr stream) {
  printer << '<' << stringifyRole(role.getValue()) << '>';
  if (stream.getValue() != Stream::Compute)
    printer << " on " << stringifyStream(stream.getValue());
}

//===----------------------------------------------------------------------===//
// LaunchOp
//===----------------------------------------------------------------------===//

OperandRange LaunchOp::getArgInputs(unsigned index) {
  ArrayRef<Attribute> values = getArgs().getValues();
  unsigned first = 0;
  for (Attribute value : values.take_front(index))
    first += aten::ArgsAttr::countPlaces(value);
  return getInputs().slice(first, aten::ArgsAttr::countPlaces(values[index]));
}

LogicalResult LaunchOp::verify() {
  unsigned places = getArgs().countPlaces();
  if (places != getInputs().size())
    return emitOpError() << "C1: expected " << places
                         << " operands, one per place among the arguments, got "
                         << getInputs().size();
  if (std::optional<ArrayRef<bool>> present = getPresent()) {
    size_t count = llvm::count(*present, true);
    if (count != getOutputs().size())
      return emitOpError() << "C2: expected " << count
                           << " buffers to write, got " << getOutputs().size();
  }
  return aten::verifyArguments(*this, getCalleeAttr(), getArgs(), getInputs());
}

//===----------------------------------------------------------------------===//
// Collectives and updates
//===----------------------------------------------------------------------===//

/// The communicator and the unit exist, and a collective is on the
/// communicator's stream; the size of a group.
static FailureOr<int64_t> verifyGroup(Operation *op,
                                      SymbolTableCollection &symbols,
                                      FlatSymbolRefAttr communicator,
                                      FlatSymbolRefAttr unit) {
  auto group =
      symbols.lookupNearestSymbolFrom<CommunicatorOp>(op, communicator);
  if (!group)
    return op->emitOpError("C1: expected a communicator called '")
           << communicator.getValue() << "', found none";
  Stream stream = cast<CommandOpInterface>(op).getStream();
  if (!isa<PieceOp>(op) && stream != group.getStream())
    return op->emitOpError("C1: expected the stream of communicator '")
           << communicator.getValue() << "', "
           << stringifyStream(group.getStream()) << ", found "
           << stringifyStream(stream);
  if (unit && !symbols.lookupNearestSymbolFrom<UnitOp>(op, unit))
    return op->emitOpError("C1: expected a unit called '")
           << unit.getValue() << "', found none";
  return group.getGroupSize();
}

static LogicalResult verifyCounts(Operation *op, Value source, Value target,
                                  int64_t factor) {
  int64_t piece = getTensorType(source).getNumElements();
  int64_t found = getTensorType(target).getNumElements();
  int64_t expected = 0;
  if (llvm::MulOverflow(piece, factor, expected))
    return op->emitOpError("C2: expected less than 2^63 elements, got more");
  if (expected == found)
    return success();
  return op->emitOpError("C2: expected ")
         << expected << " elements, got " << found;
}

static LogicalResult verifyElements(Operation *op, Value source, Value target) {
  Type expected = getTensorType(source).getElementType();
  Type found = getTensorType(target).getElementType();
  if (expected == found)
    return success();
  return op->emitOpError("C2: expected elements of ")
         << expected << ", got " << found;
}

LogicalResult AllGatherOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<int64_t> size =
      verifyGroup(*this, symbols, getCommunicatorAttr(), getUnitAttr());
  if (failed(size) ||
      failed(verifyCounts(*this, getSource(), getTarget(), *size)))
    return failure();
  return verifyElements(*this, getSource(), getTarget());
}

LogicalResult PieceOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<int64_t> size =
      verifyGroup(*this, symbols, getCommunicatorAttr(), getUnitAttr());
  if (failed(size) ||
      failed(verifyCounts(*this, getTarget(), getSource(), *size)))
    return failure();
  return verifyElements(*this, getSource(), getTarget());
}

/// C3 of a reduction.
template <typename Op> static LogicalResult verifyTypes(Op op) {
  for (Value buffer : {op.getSource(), op.getTarget()})
    if (Type found = getTensorType(buffer).getElementType();
        found != op.getVia())
      return op.emitOpError("C3: expected elements of ")
             << op.getVia() << ", got " << found;
  return success();
}

LogicalResult
ReduceScatterOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<int64_t> size =
      verifyGroup(*this, symbols, getCommunicatorAttr(), getUnitAttr());
  if (failed(size) ||
      failed(verifyCounts(*this, getTarget(), getSource(), *size)))
    return failure();
  return verifyTypes(*this);
}

LogicalResult AllReduceOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (failed(
          verifyGroup(*this, symbols, getCommunicatorAttr(), getUnitAttr())) ||
      failed(verifyCounts(*this, getSource(), getTarget(), 1)))
    return failure();
  bool isDivided = getDivide().getPre() != 1 || getDivide().getPost() != 1;
  if ((getMax() && getFirst()) || ((getMax() || getFirst()) && isDivided))
    return emitOpError("C4: expected one of 'max' and 'first', not divided");
  return verifyTypes(*this);
}

/// C1 of what looks at elements of a unit.
static FailureOr<UnitOp> verifyIntervals(Operation *op,
                                         SymbolTableCollection &symbols,
                                         FlatSymbolRefAttr name,
                                         ArrayRef<int64_t> intervals) {
  auto unit = symbols.lookupNearestSymbolFrom<UnitOp>(op, name);
  if (!unit)
    return op->emitOpError("C1: expected a unit called '")
           << name.getValue() << "', found none";
  int64_t last = 0;
  for (int64_t bound : intervals) {
    if (bound < last)
      return op->emitOpError("C1: expected ascending intervals, got ")
             << bound << " after " << last;
    last = bound;
  }
  if (intervals.size() % 2 != 0 || last > unit.getLayout().getPadded())
    return op->emitOpError("C1: expected pairs of bounds up to ")
           << unit.getLayout().getPadded() << ", got " << intervals.size()
           << " bounds up to " << last;
  return unit;
}

static LogicalResult verifyScalar(Operation *op, Value value, Type element) {
  auto scalar = RankedTensorType::get({}, element);
  if (getTensorType(value) == scalar)
    return success();
  return op->emitOpError("C3: expected a buffer of type ")
         << scalar << ", got " << getTensorType(value);
}

static LogicalResult verifyUpdate(UpdateOpInterface op,
                                  SymbolTableCollection &symbols) {
  if (failed(verifyIntervals(op, symbols, op.getUnitAttr(), op.getIntervals())))
    return failure();
  auto hyper = op.getHyper().getDefiningOp<BufferOp>();
  if (!hyper || hyper.getRole() != BufferRole::Hyper)
    return op->emitOpError(
        "C2: expected the hyper-parameters in a buffer of the role 'hyper'");
  for (Value value : op.getScalars())
    if (value &&
        failed(verifyScalar(op, value, Float32Type::get(op->getContext()))))
      return failure();
  return success();
}

LogicalResult MeasureOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FailureOr<UnitOp> unit =
      verifyIntervals(*this, symbols, getUnitAttr(), getIntervals());
  if (failed(unit))
    return failure();
  int64_t expected = unit->getLayout().getPadded() / unit->getShards();
  int64_t found = getTensorType(getSource()).getNumElements();
  if (found != expected)
    return emitOpError("C2: expected a source of ")
           << expected << " elements, got " << found;
  Type element = Float64Type::get(getContext());
  if (getInitial() && failed(verifyScalar(*this, getInitial(), element)))
    return failure();
  return verifyScalar(*this, getTarget(), element);
}

LogicalResult AccumulateOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto unit = symbols.lookupNearestSymbolFrom<UnitOp>(*this, getUnitAttr());
  if (!unit)
    return emitOpError("C1: expected a unit called '")
           << getUnit() << "', found none";
  RankedTensorType source = getTensorType(getSource()),
                   target = getTensorType(getTarget());
  int64_t whole = unit.getLayout().getPadded();
  int64_t numel = target.getNumElements();
  if (source != target || !aten::isDense(target) ||
      (numel != whole && numel != whole / unit.getShards()))
    return emitOpError("C2: expected dense vectors of one type, with the ")
           << whole << " elements of the unit or those of a shard, got "
           << source << " and " << target;
  return success();
}

LogicalResult AdamWOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUpdate(*this, symbols);
}

LogicalResult SGDOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifyUpdate(*this, symbols);
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

LogicalResult ZeroOp::verify() {
  if (!isGapless(getTensorType(getTarget())))
    return emitOpError("C1: expected a dense buffer, got ")
           << getTensorType(getTarget());
  return success();
}

LogicalResult CopyOp::verify() {
  int64_t source = getTensorType(getSource()).getNumElements();
  int64_t target = getTensorType(getTarget()).getNumElements();
  if (source != target)
    return emitOpError("C1: expected ")
           << source << " elements, got " << target;
  return success();
}

} // namespace fsdp::plan
