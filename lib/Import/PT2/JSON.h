//===- JSON.h - JSON values that know where they are ------------*- C++ -*-===//
//
// A cursor is a JSON value and the way to it from the root of the document. The
// way is made into text only when something is wrong with the value:
// `model.pt2: graph_module.graph.nodes[3].name: expected text, found 17`.
// Cursors live on the stack: a child points to its parent.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_IMPORT_PT2_JSON_H
#define FSDP_LIB_IMPORT_PT2_JSON_H

#include "mlir/IR/Diagnostics.h"

#include <optional>
#include <simdjson.h>
#include <string>

namespace fsdp::pt2 {

/// Text of a file for an error: in quotes, not long, and without characters
/// that a terminal would obey.
std::string quote(llvm::StringRef text);

/// Where errors of a document go: the file's name, and a context.
struct Document {
  llvm::StringRef file;
  mlir::MLIRContext *context;

  /// An error about the file.
  mlir::InFlightDiagnostic error() const;
};

class Cursor {
public:
  struct Field;

  Cursor() = default;
  Cursor(const Document &document, simdjson::dom::element root)
      : document(&document), element(root) {}

  /// The root of a document that `text` holds: it has the path of the text.
  Cursor(const Cursor &text, simdjson::dom::element root) : Cursor(text) {
    element = root;
  }

  /// Reads a value of one kind, or reports that it is of another.
  mlir::LogicalResult read(int64_t &value) const;
  mlir::LogicalResult read(bool &value) const;
  mlir::LogicalResult read(llvm::StringRef &value) const;
  /// A number, or one of the texts "Infinity", "-Infinity" and "NaN".
  mlir::LogicalResult read(double &value) const;
  /// Fills in the fields of an object, all of which have to be there, once;
  /// others are ignored, since newer writers add them.
  mlir::LogicalResult read(std::initializer_list<Field> fields) const;
  /// Reads an object with exactly one member.
  mlir::LogicalResult readUnion(llvm::StringRef &variant, Cursor &value) const;

  /// The member called `key` of an object that has one.
  std::optional<Cursor> find(llvm::StringRef key) const &;
  // The member would point to a parent that is gone.
  std::optional<Cursor> find(llvm::StringRef key) const && = delete;

  /// Calls `visit` for each element of an array.
  mlir::LogicalResult forEachElement(
      llvm::function_ref<mlir::LogicalResult(const Cursor &)> visit) const;
  /// Calls `visit` for each member of an object.
  mlir::LogicalResult forEachMember(
      llvm::function_ref<mlir::LogicalResult(llvm::StringRef, const Cursor &)>
          visit) const;

  bool isNull() const { return element.is_null(); }
  simdjson::dom::element get() const { return element; }
  const Document &getDocument() const { return *document; }

  /// Reports something about this value.
  mlir::InFlightDiagnostic error() const;
  /// Reports that the value is not `what`.
  mlir::LogicalResult expected(const llvm::Twine &what) const;

  /// The element of an array.
  Cursor(const Cursor &parent, simdjson::dom::element element, size_t index)
      : document(parent.document), parent(&parent), element(element),
        index(index) {}

private:
  Cursor(const Cursor &parent, simdjson::dom::element element,
         llvm::StringRef key)
      : document(parent.document), parent(&parent), element(element), key(key) {
  }
  void printPath(llvm::raw_ostream &os) const;

  const Document *document = nullptr;
  const Cursor *parent = nullptr;
  simdjson::dom::element element;
  llvm::StringRef key;
  size_t index = 0;
};

/// A field of an object, and where to put it.
struct Cursor::Field {
  llvm::StringRef name;
  Cursor &value;
};

} // namespace fsdp::pt2

#endif // FSDP_LIB_IMPORT_PT2_JSON_H
