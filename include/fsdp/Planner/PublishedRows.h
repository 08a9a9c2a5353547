//===- PublishedRows.h - Measurements of others -----------------*- C++ -*-===//
//
// A file of runs that somebody has measured and published, and what the model
// of a step predicts for them: benchmarks/rows.toml.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_PUBLISHEDROWS_H
#define FSDP_PLANNER_PUBLISHEDROWS_H

#include "fsdp/Archive/Expected.h"
#include "fsdp/Planner/Baselines.h"
#include "fsdp/Planner/Transformer.h"

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::planner {

struct PublishedRow {
  int64_t line = 0;   ///< Of the file.
  std::string source; ///< Who has published it, by its name in the file.
  std::string modelName, hardware;
  Transformer model;
  TrainingSetup setup;
  Policy policy = Policy::Fsdp2;
  bool keep = false;     ///< Weights stay gathered from forward to backward.
  double tokens = 0;     ///< A second and a rank, measured.
  double gib = 0;        ///< Of memory, measured; 0: not published.
  bool isFitted = false; ///< The factor of its cluster is fitted to it.

  /// Hardware and source: what has one factor.
  std::string getCluster() const { return hardware + ", " + source; }
};

/// Errors are one sentence and name `path`, and the line where there is one.
archive::Expected<std::vector<PublishedRow>>
readPublishedRows(std::string_view text, const std::string &path);

struct Prediction {
  double tokens = 0; ///< A second and a rank.
  double gib = 0;    ///< The peak of what the model counts.
};

/// What a run takes if its computations take `factor` times as long as the
/// hardware says. An error if the model cannot hold it.
archive::Expected<Prediction>
predict(const PublishedRow &row, const Hardware &hardware, double factor = 1);

/// The factor, from 1/16 to 16, with which the prediction is what was measured,
/// or as near to it as it comes.
archive::Expected<double> fitFactor(const PublishedRow &row,
                                    const Hardware &hardware);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_PUBLISHEDROWS_H
