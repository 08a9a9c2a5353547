//===- Calibration.cpp - Links from measured collectives ------------------===//

#include "fsdp/Planner/Calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;
using fsdp::archive::Profile;

static constexpr double leastBytes = 1 << 20;
static constexpr double mostBandwidth = 1e6; // a petabyte a second
static constexpr int64_t mostRanks = 1 << 20;

//===----------------------------------------------------------------------===//
// Measured calls
//===----------------------------------------------------------------------===//

static std::vector<std::string> split(const std::string &line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;)
    words.push_back(word);
  return words;
}

/// A positive number that is all of `word`; 0 if it is something else.
static double toNumber(const std::string &word) {
  char *end = nullptr;
  double value = std::strtod(word.c_str(), &end);
  bool isNumber = end == word.c_str() + word.size() && std::isfinite(value);
  return isNumber && value > 0 ? value : 0;
}

namespace {
/// What of a log is known so far.
struct Log {
  std::set<std::string> ranks, hosts;
  std::string test; ///< That printed it, where it says so.
  std::vector<std::pair<double, double>> rows; ///< Bytes, nanoseconds.

  void readLine(std::string line);
};
} // namespace

void Log::readLine(std::string line) {
  if (size_t tag = line.find("<stdout>:"); tag != std::string::npos)
    line.erase(0, tag + 9); // of mpirun --tag-output
  std::vector<std::string> words = split(line);
  if (words.empty())
    return;
  if (words[0] == "#") {
    if (words.size() > 2 && words[1] == "Rank") {
      ranks.insert(words[2]);
      auto on = std::find(words.begin(), words.end(), "on");
      if (on != words.end() && on + 1 != words.end())
        hosts.insert(on[1]);
    }
    if (words.size() > 4 && words[1] == "Collective" && words[2] == "test")
      test = words[4];
    return;
  }
  // size count type [redop [root]], and twice: time algbw busbw #wrong.
  if (words.size() < 11 || words.size() > 13)
    return;
  double bytes = toNumber(words[0]);
  double microseconds = toNumber(words[words.size() - 8]);
  if (bytes > 0 && microseconds > 0)
    rows.emplace_back(bytes, 1e3 * microseconds);
}

Expected<std::vector<MeasuredCall>>
fsdp::planner::readNcclTests(std::string_view text, const std::string &path,
                             CollectiveKind kind) {
  static constexpr const char *tests[] = {
      "all_gather_perf", "reduce_scatter_perf", "all_reduce_perf"};
  Log log;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);)
    log.readLine(line);
  std::string test = tests[size_t(kind)];
  if (!log.test.empty() && log.test != test)
    return Error{path + ": expected a log of " + test + ", found one of " +
                 log.test};
  size_t ranks = log.ranks.size(),
         nodes = std::max<size_t>(log.hosts.size(), 1);
  if (ranks < 2 || log.rows.empty())
    return Error{path + ": expected a log of " + test +
                 " of nccl-tests, with lines such as '# Rank 0 ... on host' "
                 "and '1048576 262144 float ...', found " +
                 std::to_string(ranks) + " ranks and " +
                 std::to_string(log.rows.size()) + " sizes"};
  if (ranks % nodes)
    return Error{path + ": expected as many ranks on each host, found " +
                 std::to_string(ranks) + " on " + std::to_string(nodes)};
  std::vector<MeasuredCall> calls;
  for (auto [bytes, time] : log.rows)
    if (bytes >= leastBytes)
      calls.push_back({kind, bytes, int64_t(ranks), int64_t(nodes), time});
  if (calls.empty())
    return Error{path +
                 ": expected sizes of 1 MiB and more (-b 1M -e 8G -f 2)"};
  return calls;
}

std::vector<MeasuredCall> fsdp::planner::getCalls(const Profile &profile,
                                                  int64_t nodeRanks) {
  std::vector<MeasuredCall> calls;
  for (const Profile::Collective &row : profile.collectives) {
    if (row.ranks < 2 || row.ranks > mostRanks || row.duration < 1)
      continue;
    MeasuredCall call{CollectiveKind::AllReduce, double(row.bytes), row.ranks};
    if (row.kind == Profile::Collective::Kind::AllGather) {
      call.kind = CollectiveKind::AllGather;
      call.bytes *= double(row.ranks); // a profile has one rank's piece
    } else if (row.kind == Profile::Collective::Kind::ReduceScatter) {
      call.kind = CollectiveKind::ReduceScatter;
    }
    call.nodes = (row.ranks - 1) / nodeRanks + 1;
    call.nanoseconds = double(row.duration);
    calls.push_back(call);
  }
  return calls;
}

//===----------------------------------------------------------------------===//
// Least squares
//===----------------------------------------------------------------------===//

namespace {

/// What a call's time is a sum of: once, for each step, for each byte.
using Terms = std::array<double, 3>;

struct Equation {
  Terms terms;
  double time; ///< That is to be explained.
  double weight;
};

} // namespace

/// The solution of the normal equations over the terms that are `used`; all
/// others are 0, and so is one that the terms before it explain. Gauss and
/// Jordan without pivots: the matrix is positive definite.
static Terms solve(const std::vector<Equation> &equations,
                   std::array<bool, 3> used) {
  double rows[3][4] = {};
  for (const Equation &each : equations)
    for (size_t i = 0; i != 3; ++i) {
      double factor = used[i] ? each.terms[i] * each.weight * each.weight : 0;
      for (size_t j = 0; j != 3; ++j)
        rows[i][j] += used[j] ? factor * each.terms[j] : 0;
      rows[i][3] += factor * each.time;
    }
  const double sums[3] = {rows[0][0], rows[1][1], rows[2][2]};
  Terms solution = {};
  for (size_t i = 0; i != 3; ++i) {
    used[i] = used[i] && rows[i][i] > 1e-9 * sums[i];
    for (size_t k = 0; k != 3 && used[i]; ++k) {
      double factor = k == i ? 0 : rows[k][i] / rows[i][i];
      for (size_t j = 0; j != 4; ++j)
        rows[k][j] -= factor * rows[i][j];
    }
  }
  for (size_t i = 0; i != 3; ++i)
    if (used[i])
      solution[i] = rows[i][3] / rows[i][i];
  return solution;
}

/// As `solve`, with nothing below 0: what would be is left out.
static Terms solvePositive(const std::vector<Equation> &equations,
                           std::array<bool, 3> used) {
  for (;;) {
    Terms solution = solve(equations, used);
    auto least = std::min_element(solution.begin(), solution.end());
    if (*least >= 0)
      return solution;
    used[size_t(least - solution.begin())] = false;
  }
}

//===----------------------------------------------------------------------===//
// Lines
//===----------------------------------------------------------------------===//

static int64_t getInNode(const MeasuredCall &call) {
  return call.ranks / call.nodes;
}

static double predict(const Hardware &hardware, const MeasuredCall &call) {
  // A group at equal distances, of which a node has as many as were there.
  int64_t span = call.nodes == 1
                     ? call.ranks
                     : call.ranks * hardware.nodeRanks / getInNode(call);
  CollectiveCost cost = hardware.getCost(
      Communication{call.kind, call.bytes, call.ranks, 0, span});
  return double(cost.latency + cost.transfer) / 1e3;
}

static double getError(const Hardware &hardware,
                       const std::vector<MeasuredCall> &calls) {
  double sum = 0;
  for (const MeasuredCall &call : calls)
    sum += std::abs(predict(hardware, call) / call.nanoseconds - 1);
  return sum / double(calls.size());
}

/// What of a call the line says that is fitted: of one over several nodes, what
/// the steps inside nodes take is known.
static Equation getEquation(const MeasuredCall &call,
                            const Hardware::Line &node) {
  double steps = double(call.ranks - 1), hops = double(call.nodes - 1);
  double sent = call.bytes * steps / double(call.ranks) *
                (call.kind == CollectiveKind::AllReduce ? 2 : 1);
  double weight = 1 / call.nanoseconds;
  if (call.nodes == 1)
    return {{1, steps, sent}, call.nanoseconds, weight};
  double known = node.perStep * (steps - hops);
  return {{1, hops, sent / double(getInNode(call))},
          std::max(call.nanoseconds - known, 0.0),
          weight};
}

/// Fits a line to calls of one kind, all in one node, or none. False, and the
/// line stays, if they take no longer for more bytes.
static bool fit(Hardware::Line &line, const Hardware::Line &node,
                const std::vector<MeasuredCall> &calls) {
  std::vector<Equation> equations;
  for (const MeasuredCall &call : calls)
    equations.push_back(getEquation(call, node));
  double steps = equations.front().terms[1];
  bool isOneSize =
      std::all_of(equations.begin(), equations.end(),
                  [&](const Equation &each) { return each.terms[1] == steps; });
  Terms solution = solvePositive(equations, {true, !isOneSize, true});
  if (!(solution[2] > 1 / mostBandwidth))
    return false;
  line.bandwidth = 1 / solution[2];
  if (!isOneSize) {
    line.latency = solution[0];
    line.perStep = solution[1];
    return true;
  }
  double before = line.latency + line.perStep * steps;
  double scale = before > 0 ? solution[0] / before : 0;
  line.latency = before > 0 ? line.latency * scale : solution[0];
  line.perStep *= scale;
  return true;
}

/// A sentence if there are calls that the hardware cannot have.
static std::string findContradiction(const Hardware &hardware,
                                     const std::vector<MeasuredCall> &calls) {
  for (const MeasuredCall &call : calls) {
    if (!hardware.hasNetwork && call.nodes > 1)
      return "expected a hardware file with [link.network], since there are "
             "collectives over " +
             std::to_string(call.nodes) + " nodes";
    if (hardware.hasNetwork && getInNode(call) > hardware.nodeRanks)
      return "expected at most " + std::to_string(hardware.nodeRanks) +
             " ranks on a host (link.node.ranks), found " +
             std::to_string(getInNode(call));
  }
  return "";
}

Expected<std::vector<LineFit>>
fsdp::planner::calibrate(Hardware &hardware,
                         const std::vector<MeasuredCall> &calls) {
  if (std::string wrong = findContradiction(hardware, calls); !wrong.empty())
    return Error{wrong};
  std::vector<LineFit> fits;
  for (bool isNetwork : {false, true}) // what a node takes is known first
    for (size_t kind = 0; kind != numCollectiveKinds; ++kind) {
      std::vector<MeasuredCall> own;
      std::set<double> sizes;
      for (const MeasuredCall &call : calls)
        if (size_t(call.kind) == kind && (call.nodes > 1) == isNetwork) {
          own.push_back(call);
          sizes.insert(call.bytes);
        }
      if (sizes.size() < 2)
        continue;
      LineFit result{CollectiveKind(kind), isNetwork, own.size()};
      result.errorBefore = getError(hardware, own);
      Hardware::Link &link = isNetwork ? hardware.network : hardware.node;
      if (!fit(link[kind], hardware.node[kind], own))
        continue;
      result.errorAfter = getError(hardware, own);
      fits.push_back(result);
    }
  return fits;
}
