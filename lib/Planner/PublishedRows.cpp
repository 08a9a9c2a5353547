//===- PublishedRows.cpp - Measurements of others -------------------------===//

#include "fsdp/Planner/PublishedRows.h"

#include "Toml.h"
#include "fsdp/Planner/Evaluator.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <sstream>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;
using Attention = TrainingSetup::Attention;

static constexpr int64_t rowsVersion = 1;
static constexpr size_t mostRowsBytes = size_t(1) << 20;
/// With the limits of single numbers, no product of any overflows.
static constexpr int64_t mostTokens = int64_t(1) << 30;

namespace {

/// Reads tables and keeps the first error.
class RowsReader {
public:
  explicit RowsReader(std::string path) : path(std::move(path)) {}
  Expected<std::vector<PublishedRow>> read(const toml::table &root);

private:
  void fail(const toml::node &at, const std::string &message) {
    if (error.empty())
      error = path + ": line " + std::to_string(at.source().begin.line) + ": " +
              message;
  }
  void expectKeys(const toml::table &table,
                  std::initializer_list<std::string_view> known) {
    if (std::optional<UnknownKey> unknown = findUnknownKey(table, known))
      fail(unknown->value,
           unknown->expected + ", found '" + unknown->name + "'");
  }
  /// The table under a key of the file, or an empty one.
  const toml::table &getTable(const toml::table &root, std::string_view key);
  double getNumber(const toml::table &table, const char *key, double least,
                   double most);
  int64_t getWhole(const toml::table &table, const char *key, int64_t most);
  bool getFlag(const toml::table &table, const char *key);
  std::string getText(const toml::table &table, const char *key);
  /// The value that `key` names, of those in `values`.
  template <typename T>
  T getName(const toml::table &table, const char *key,
            const std::map<std::string, T> &values);

  Transformer readModel(const toml::table &table);
  PublishedRow readRow(const toml::table &table);
  void readSetup(const toml::table &table, TrainingSetup &setup);

  std::string path, error;
  std::map<std::string, Transformer> models;
  std::map<std::string, std::string> sources;
};

} // namespace

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

const toml::table &RowsReader::getTable(const toml::table &root,
                                        std::string_view key) {
  static const toml::table none;
  const toml::node *node = root.get(key);
  if (node && node->is_table())
    return *node->as_table();
  if (error.empty())
    error = path + ": expected a table [" + std::string(key) + "]";
  return none;
}

double RowsReader::getNumber(const toml::table &table, const char *key,
                             double least, double most) {
  const toml::node *node = table.get(key);
  double value = node ? node->value<double>().value_or(NAN) : NAN;
  if (value >= least && value <= most)
    return value;
  std::ostringstream expected;
  expected << "expected " << key << " to be a number from " << least << " to "
           << most << ", found ";
  if (std::isnan(value))
    expected << (node ? "something else" : "nothing");
  else
    expected << value;
  fail(node ? *node : table, expected.str());
  return least;
}

int64_t RowsReader::getWhole(const toml::table &table, const char *key,
                             int64_t most) {
  const toml::node *node = table.get(key);
  std::optional<int64_t> value;
  if (node && node->is_integer())
    value = node->value<int64_t>();
  if (value && *value >= 1 && *value <= most)
    return *value;
  fail(node ? *node : table, "expected " + std::string(key) +
                                 " to be a whole number from 1 to " +
                                 std::to_string(most) + ", found " +
                                 (value  ? std::to_string(*value)
                                  : node ? "something else"
                                         : "nothing"));
  return 1;
}

bool RowsReader::getFlag(const toml::table &table, const char *key) {
  const toml::node *node = table.get(key);
  if (node && !node->is_boolean())
    fail(*node, "expected " + std::string(key) + " to be true or false");
  return node && node->value_or(false);
}

std::string RowsReader::getText(const toml::table &table, const char *key) {
  const toml::node *node = table.get(key);
  if (node && node->is_string())
    return node->value_or(std::string());
  fail(node ? *node : table, "expected " + std::string(key) + " to be a text" +
                                 (node ? "" : ", found nothing"));
  return "";
}

template <typename T>
T RowsReader::getName(const toml::table &table, const char *key,
                      const std::map<std::string, T> &values) {
  std::string name = getText(table, key), known;
  auto found = values.find(name);
  if (found != values.end())
    return found->second;
  for (const auto &[each, value] : values)
    known += (known.empty() ? "" : ", ") + each;
  const toml::node *node = table.get(key);
  fail(node ? *node : table, "expected " + std::string(key) + " to be one of " +
                                 known + "; found '" + name + "'");
  return T();
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

Transformer RowsReader::readModel(const toml::table &table) {
  expectKeys(table, {"layers", "hidden", "ffn", "heads", "kv_heads",
                     "vocabulary", "gated", "tied"});
  Transformer model;
  model.layers = getWhole(table, "layers", 1 << 12);
  model.hidden = getWhole(table, "hidden", 1 << 18);
  model.ffn = getWhole(table, "ffn", 1 << 20);
  model.heads = getWhole(table, "heads", model.hidden);
  model.kvHeads = getWhole(table, "kv_heads", model.heads);
  model.vocabulary = getWhole(table, "vocabulary", 1 << 22);
  model.isGated = getFlag(table, "gated");
  model.isTied = getFlag(table, "tied");
  return model;
}

void RowsReader::readSetup(const toml::table &table, TrainingSetup &setup) {
  setup.ranks = getWhole(table, "ranks", 1 << 20);
  setup.sequence = getWhole(table, "sequence", 1 << 24);
  setup.batch = getWhole(table, "batch", mostTokens / setup.sequence);
  if (table.contains("micro_batches"))
    setup.microBatches = getWhole(table, "micro_batches", 1 << 16);
  setup.gradientBytes =
      getName<int64_t>(table, "reduce", {{"bf16", 2}, {"f32", 4}});
  setup.isCompiled = getFlag(table, "compiled");
  if (table.contains("attention"))
    setup.attention = getName<Attention>(table, "attention",
                                         {{"flash", Attention::Flash},
                                          {"triton", Attention::Triton},
                                          {"cudnn", Attention::Cudnn}});
  setup.recompute = getName<TrainingSetup::Recompute>(
      table, "recompute",
      {{"full", TrainingSetup::Recompute::Full},
       {"none", TrainingSetup::Recompute::None},
       {"selective", TrainingSetup::Recompute::Selective},
       {"whole", TrainingSetup::Recompute::Whole}});
}

PublishedRow RowsReader::readRow(const toml::table &table) {
  expectKeys(table,
             {"source", "model", "hardware", "ranks", "sequence", "batch",
              "micro_batches", "policy", "keep", "reduce", "recompute",
              "compiled", "attention", "tokens", "gib", "fit"});
  PublishedRow row;
  row.line = table.source().begin.line;
  row.source = getText(table, "source");
  getName(table, "source", sources);
  row.modelName = getText(table, "model");
  row.model = getName(table, "model", models);
  row.hardware = getText(table, "hardware");
  readSetup(table, row.setup);
  std::map<std::string, Policy> policies;
  for (Policy policy : allPolicies)
    policies[fsdp::planner::getName(policy)] = policy;
  row.policy = getName(table, "policy", policies);
  row.keep = getFlag(table, "keep");
  row.tokens = getNumber(table, "tokens", 1e-3, 1e9);
  if (table.contains("gib"))
    row.gib = getNumber(table, "gib", 1e-3, 1e6);
  row.isFitted = getFlag(table, "fit");
  return row;
}

Expected<std::vector<PublishedRow>> RowsReader::read(const toml::table &root) {
  expectKeys(root, {"version", "sources", "models", "rows"});
  if (root["version"].value<int64_t>() != rowsVersion)
    return Error{path + ": expected version = " + std::to_string(rowsVersion)};
  const toml::table &texts = getTable(root, "sources");
  for (auto &&[name, value] : texts)
    sources[std::string(name.str())] =
        getText(texts, std::string(name.str()).c_str());
  for (auto &&[name, value] : getTable(root, "models")) {
    if (!value.is_table()) {
      fail(value, "expected the dimensions of a model");
      break;
    }
    models[std::string(name.str())] = readModel(*value.as_table());
  }
  const toml::node *list = root.get("rows");
  if (error.empty() && (!list || !list->is_array_of_tables()))
    error = path + ": expected rows to be a list of tables";
  std::vector<PublishedRow> rows;
  std::map<std::string, int64_t> fitted; // by cluster: the line
  for (size_t i = 0; error.empty() && i != list->as_array()->size(); ++i) {
    const toml::table &table = *list->as_array()->get(i)->as_table();
    rows.push_back(readRow(table));
    const PublishedRow &row = rows.back();
    if (!row.isFitted)
      continue;
    auto [first, isNew] = fitted.try_emplace(row.getCluster(), row.line);
    if (!isNew)
      fail(table, "expected one row to fit for " + row.getCluster() +
                      ", found another in line " +
                      std::to_string(first->second));
  }
  if (!error.empty())
    return Error{error};
  return rows;
}

Expected<std::vector<PublishedRow>>
fsdp::planner::readPublishedRows(std::string_view text,
                                 const std::string &path) {
  Expected<toml::table> root =
      parseToml(text, path, "file of published rows", mostRowsBytes);
  return root ? RowsReader(path).read(*root) : root.error();
}

//===----------------------------------------------------------------------===//
// Predictions
//===----------------------------------------------------------------------===//

/// What FSDP of PyTorch 2 does with whole units on the compute stream. FSDP1:
/// views of a flat parameter have their gradients concatenated; the sum is cast
/// (`_post_backward_hook`) and divided (`_reduce_grad`). FSDP2: a gathered
/// buffer is split into parameters, and gradients are cast as they are
/// concatenated
/// (`foreach_all_gather_copy_out`, `foreach_reduce_scatter_copy_in`).
static void setCopies(Policy policy, TrainingSetup &setup) {
  int64_t half = 2, sum = setup.gradientBytes;
  if (policy == Policy::Fsdp1)
    setup.gradientCopyBytes =
        2 * half + (sum == half ? 0 : half + sum) + 2 * sum;
  if (policy == Policy::Fsdp2) {
    setup.gatherCopyBytes = 2 * half;
    setup.gradientCopyBytes = half + sum;
  }
}

Expected<Prediction> fsdp::planner::predict(const PublishedRow &row,
                                            const Hardware &hardware,
                                            double factor) {
  TrainingSetup setup = row.setup;
  setup.computeFactor = factor;
  setCopies(row.policy, setup);
  StepModel model = makeTransformer(row.model, setup, hardware);
  if (std::string wrong = check(model); !wrong.empty())
    return Error{"line " + std::to_string(row.line) + ": " + wrong};
  Outcome outcome = evaluate(
      model, makeBaseline(model, row.policy, row.keep ? Keep::All : Keep::None,
                          setup.recompute == TrainingSetup::Recompute::None
                              ? Recompute::None
                              : Recompute::All));
  double tokens = double(setup.getTokens()) * double(setup.microBatches);
  return Prediction{tokens / (double(std::max<int64_t>(outcome.time, 1)) / 1e9),
                    double(outcome.peakBytes) / double(1 << 30)};
}

Expected<double> fsdp::planner::fitFactor(const PublishedRow &row,
                                          const Hardware &hardware) {
  double least = 1.0 / 16, most = 16;
  while (most / least > 1.0001) {
    double factor = std::sqrt(least * most);
    Expected<Prediction> prediction = predict(row, hardware, factor);
    if (!prediction)
      return prediction.error();
    (prediction->tokens > row.tokens ? least : most) = factor;
  }
  return std::sqrt(least * most);
}
