//===- FlightRecord.cpp - Who has come to which collective ----------------===//

#include "FlightRecord.h"

#include "fsdp/Runtime/Tracing/Trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

using namespace fsdp;

namespace {

/// A line of a record.
struct Flight {
  unsigned rank = 0;
  bool isUnderWay = false;
  double seconds = 0; ///< That it took, or has taken so far.
  /// Of the same collective on all ranks: program, run and command.
  std::string identity = {};
  std::set<unsigned> members = {};
  std::string what = {};
};

} // namespace

std::string fsdp::recordFlights(const planfile::PlanFile &plan,
                                const Session &session) {
  double now = std::chrono::duration<double>(
                   std::chrono::steady_clock::now().time_since_epoch())
                   .count();
  std::ostringstream text;
  for (const Span &span : session.latestCollectives()) {
    bool isUnderWay = span.end == 0;
    text << span.rank << ' ' << isUnderWay << ' '
         << (isUnderWay ? now : span.end) - span.begin << ' ' << span.program
         << '/' << span.run << '/' << span.command;
    char separator = ' ';
    for (unsigned member : membersOf(plan, span)) {
      text << separator << member;
      separator = ',';
    }
    text << ' ' << describe(plan, span) << '\n';
  }
  return text.str();
}

static std::vector<Flight> parse(const std::string &record) {
  std::vector<Flight> flights;
  std::istringstream lines(record);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Flight flight;
    std::string members;
    words >> flight.rank >> flight.isUnderWay >> flight.seconds >>
        flight.identity >> members >> std::ws;
    std::getline(words, flight.what);
    std::ranges::replace(members, ',', ' ');
    std::istringstream numbers(members);
    for (unsigned member = 0; numbers >> member;)
      flight.members.insert(member);
    flights.push_back(std::move(flight));
  }
  return flights;
}

static std::string spell(const Flight &flight) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", flight.seconds);
  return flight.what + (flight.isUnderWay ? ", under way for " : ", done in ") +
         seconds;
}

/// "rank 1", "ranks 0, 2"
static std::string spell(const std::set<unsigned> &ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  const char *separator = " ";
  for (unsigned rank : ranks) {
    text += separator + std::to_string(rank);
    separator = ", ";
  }
  return text;
}

std::vector<std::string> fsdp::spellFlights(const std::string &record) {
  std::vector<std::string> lines;
  for (const Flight &flight : parse(record))
    lines.push_back("rank " + std::to_string(flight.rank) + ": " +
                    spell(flight));
  return lines;
}

std::vector<std::string>
fsdp::describeFlights(const std::vector<std::string> &records) {
  std::map<unsigned, Flight> latest;                 // By rank.
  std::map<std::string, std::set<unsigned>> arrived; // By identity.
  std::vector<Flight> waiting;                       // One of each.
  for (const std::string &record : records)
    for (const Flight &flight : parse(record)) {
      latest[flight.rank] = flight;
      arrived[flight.identity].insert(flight.rank);
      if (flight.isUnderWay &&
          std::ranges::find(waiting, flight.identity, &Flight::identity) ==
              waiting.end())
        waiting.push_back(flight);
    }
  std::vector<std::string> lines;
  std::set<unsigned> late;
  for (const Flight &flight : waiting) {
    const std::set<unsigned> &here = arrived[flight.identity];
    std::set<unsigned> missing;
    std::ranges::set_difference(flight.members, here,
                                std::inserter(missing, missing.end()));
    lines.push_back(
        spell(flight) + ": " + spell(here) +
        (here.size() == 1 ? " has come" : " have come") +
        (missing.empty()
             ? std::string()
             : ", " + spell(missing) +
                   (missing.size() == 1 ? " has not" : " have not")));
    late.insert(missing.begin(), missing.end());
  }
  for (unsigned rank : late)
    lines.push_back("rank " + std::to_string(rank) +
                    (latest.contains(rank)
                         ? ", latest collective: " + spell(latest[rank])
                         : " tells nothing"));
  return lines;
}
