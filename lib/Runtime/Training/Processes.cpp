//===- Processes.cpp - The processes of one run ---------------------------===//

#include "fsdp/Runtime/Training/Processes.h"

#include "FlightRecord.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Runtime/Comm/Hosts.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

using namespace fsdp;
using namespace std::chrono_literals;

/// How long a process that has failed waits for the others.
static constexpr auto farewell = 5s;

std::string fsdp::findLibrary(const std::string &name) {
  std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "lib" / name;
}

Processes::Processes(const std::string &backend, const std::string &map) {
  if (backend != "mpi" && backend != "nccl") {
    if (std::string launch = describeLaunch(); !launch.empty())
      std::fprintf(stderr,
                   "note: %s, but without --backend mpi or nccl each process "
                   "trains alone, with all ranks as its threads\n",
                   launch.c_str());
    return;
  }
  std::string library = findLibrary("libfsdp_" + backend + ".so");
  if (!std::filesystem::exists(library))
    throw Error("--backend " + backend + ": expected " + library +
                ", which is built where CMake finds " +
                (backend == "mpi" ? "an MPI library" : "PyTorch with CUDA") +
                ", found none");
  // PyTorch's own lines about connections that are lost: a sentence says it.
  constexpr int errors = 2;
  FLAGS_caffe2_log_level = errors;
  connected =
      loadBackend(library.c_str(), {.map = map == "launcher" ? RankMap::Launcher
                                                             : RankMap::Hosts});
  world = connected->world();
  if (!isFirst() && !std::freopen("/dev/null", "w", stdout))
    throw Error("/dev/null: cannot be opened");
  if (size() == 1)
    return;
  lifeline = std::make_shared<Lifeline>(
      Lifeline::Options{world.store, world.processes, world.rank, true});
  // Not in its thread: what else the failure stops may hang.
  subscription = lifeline->subscribe([this](const Error &error) {
    stopping = std::thread([this, error] { stop(error); });
  });
}

Processes::Processes(World world, std::chrono::milliseconds timeout)
    : timeout(timeout), world(std::move(world)) {}

Processes::~Processes() {
  hasEnded = true;
  if (lifeline)
    lifeline->stopLooking();
  if (stopping.joinable())
    stopping.join();
}

RankRange Processes::ranks(unsigned worldSize) const {
  return size() == 1 ? RankRange(worldSize) : RankRange(world.rank, 1);
}

void Processes::note(const std::string &sentence) const {
  if (isFirst())
    std::fprintf(stderr, "%s\n", archive::escape(sentence).c_str());
}

static void printError(const std::string &sentence) {
  std::fprintf(stderr, "error: %s\n", archive::escape(sentence).c_str());
}

void Processes::sayError(const std::string &sentence) const {
  if (isFirst())
    printError(sentence);
}

//===----------------------------------------------------------------------===//
// Agreement
//===----------------------------------------------------------------------===//

namespace {

/// What a process brings: its facts, or why it cannot go on.
struct Brought {
  std::string files = {};
  std::vector<Fact> facts = {};
  std::optional<Error> error = {};
};

} // namespace

/// Texts that are separated by zeros: the files of the process, the failure if
/// there is one, names and values.
static std::string encode(const Brought &brought) {
  std::string text = brought.files + '\0' +
                     (brought.error ? encodeFailure(*brought.error) : "") +
                     '\0';
  for (const Fact &fact : brought.facts)
    text += fact.name + '\0' + fact.value + '\0';
  return text;
}

static Brought decode(std::string_view text) {
  Brought brought;
  auto next = [&] {
    std::size_t end = std::min(text.find('\0'), text.size());
    std::string part(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
  };
  brought.files = next();
  if (std::string failure = next(); !failure.empty())
    brought.error = decodeFailure(failure);
  while (!text.empty()) {
    std::string name = next();
    brought.facts.push_back({std::move(name), next()});
  }
  return brought;
}

/// A fact that some ranks have another one of than rank 0.
struct Difference {
  std::string name, expected, found;
  auto operator<=>(const Difference &) const = default;
};

static std::string spellRanks(const std::vector<std::size_t> &ranks) {
  constexpr std::size_t most = 3;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i != ranks.size() && i != most; ++i)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > most)
    text += " and " + std::to_string(ranks.size() - most) + " more";
  return text;
}

/// Every fact that is not the same everywhere, in one sentence; nothing if
/// there is none.
static std::string compareFacts(const std::vector<Brought> &all) {
  std::vector<Difference> order;
  std::map<Difference, std::vector<std::size_t>> differences;
  const std::vector<Fact> &expected = all[0].facts;
  auto valueOf = [](const std::vector<Fact> &facts, const std::string &name) {
    auto fact = std::ranges::find(facts, name, &Fact::name);
    return fact == facts.end() ? std::string("none") : fact->value;
  };
  for (std::size_t rank = 1; rank != all.size(); ++rank) {
    if (all[rank].facts == expected)
      continue;
    auto compare = [&](const std::string &name) {
      Difference each{name, valueOf(expected, name),
                      valueOf(all[rank].facts, name)};
      if (each.expected == each.found)
        return;
      std::vector<std::size_t> &ranks = differences[each];
      if (ranks.empty())
        order.push_back(each);
      if (ranks.empty() || ranks.back() != rank)
        ranks.push_back(rank);
    };
    for (const Fact &fact : expected)
      compare(fact.name);
    for (const Fact &fact : all[rank].facts)
      compare(fact.name);
  }
  std::string text;
  for (const Difference &each : order)
    text += (text.empty() ? "" : "; ") + spellRanks(differences[each]) +
            ": expected " + each.name + " " + each.expected +
            " as on rank 0, found " + each.found;
  return text;
}

/// What is wrong with what the processes have brought, as the exit code and a
/// sentence; nothing if all is well.
static std::optional<Error> judge(const std::vector<Brought> &all) {
  bool isSame = std::ranges::all_of(all, [&](const Brought &one) {
    return one.error && all[0].error &&
           std::string_view(one.error->what()) == all[0].error->what();
  });
  if (isSame)
    return all[0].error;
  for (std::size_t rank = 0; rank != all.size(); ++rank)
    if (all[rank].error)
      return Error("rank " + std::to_string(rank) + ": " +
                       all[rank].error->what(),
                   all[rank].error->kind());
  if (std::string text = compareFacts(all); !text.empty())
    return Error(text, Failure::CheckFailed);
  return std::nullopt;
}

void Processes::agree(const std::function<Given()> &prepare) {
  if (size() == 1) {
    prepare();
    return;
  }
  Brought own;
  try {
    auto [facts, files] = prepare();
    own.facts = std::move(facts);
    own.files = std::move(files);
  } catch (const Error &error) {
    own.error = error;
  } catch (const std::exception &error) {
    own.error.emplace(error.what());
  }
  const std::string key = "facts ", agreed = "agreed";
  world.store->set(key + std::to_string(world.rank), encode(own));
  if (isFirst()) {
    std::vector<Brought> all;
    for (unsigned rank = 0; rank != size(); ++rank)
      all.push_back(decode(
          await(key + std::to_string(rank), rank, "say what it is to run")));
    if (std::optional<Error> verdict = judge(all))
      throw tellFailure(*world.store, *verdict);
    std::string sharers;
    std::map<std::string_view, std::size_t> firsts;
    for (std::size_t rank = 0; rank != all.size(); ++rank)
      sharers +=
          std::to_string(firsts.emplace(all[rank].files, rank).first->second) +
          ' ';
    world.store->set(agreed, sharers);
  }
  std::istringstream sharers(await(agreed, 0, "agree"));
  for (unsigned rank = 0; rank != size(); ++rank)
    if (!(sharers >> firstWithFiles.emplace_back()) ||
        firstWithFiles.back() > rank)
      throw Error("expected from rank 0 who has the same files, found nothing "
                  "of rank " +
                      std::to_string(rank),
                  Failure::RankFailed);
}

void Processes::compareFiles(const std::string &what,
                             const std::function<std::string()> &digest) const {
  if (std::ranges::count(firstWithFiles, 0u) ==
      std::ptrdiff_t(firstWithFiles.size()))
    return;
  bool isReader = firstWithFiles[world.rank] == world.rank;
  consult(
      "comparing " + what, isReader ? digest() : "",
      [&](const std::vector<std::string> &digests) {
        std::vector<Brought> all;
        for (unsigned first : firstWithFiles)
          all.push_back({.facts = {{what, "with digest " + digests[first]}}});
        if (std::string text = compareFacts(all); !text.empty())
          throw Error(text, Failure::CheckFailed);
        return std::string();
      },
      Wait::Files);
}

std::string Processes::consult(
    const std::string &what, const std::string &shown,
    const std::function<std::string(const std::vector<std::string> &)> &answer,
    Wait wait) const {
  if (size() == 1)
    return answer({shown});
  auto keyOf = [&](unsigned rank) {
    return what + ", rank " + std::to_string(rank);
  };
  constexpr char good = '+';
  if (!isFirst()) {
    world.store->set(keyOf(world.rank), shown);
    std::string text = await(what, 0, what, wait);
    if (text.starts_with(good))
      return text.substr(1);
    throw decodeFailure(text);
  }
  std::vector<std::string> all = {shown};
  for (unsigned rank = 1; rank != size(); ++rank)
    all.push_back(await(keyOf(rank), rank, what, wait));
  try {
    std::string text = answer(all);
    world.store->set(what, good + text);
    return text;
  } catch (const Error &error) {
    world.store->set(what, encodeFailure(error));
    throw;
  } catch (const std::exception &error) {
    world.store->set(what,
                     encodeFailure(Error(error.what(), Failure::RankFailed)));
    throw;
  }
}

std::string Processes::await(const std::string &key, unsigned rank,
                             const std::string &deed, Wait wait) const {
  auto end = std::chrono::steady_clock::now() + timeout;
  do {
    if (auto value = world.store->get(key, 100ms))
      return *value;
    if (auto failure = findFailure(*world.store, 0ms))
      throw Error(*failure);
  } while (wait == Wait::Files || std::chrono::steady_clock::now() < end);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.10g",
                std::chrono::duration<double>(timeout).count());
  throw Error("waited " + std::string(seconds) + " s for rank " +
                  std::to_string(rank) + " to " + deed,
              Failure::RankFailed);
}

//===----------------------------------------------------------------------===//
// The end
//===----------------------------------------------------------------------===//

Error Processes::tell(const Error &error) noexcept {
  std::string sentence = error.what();
  if (!sentence.starts_with("rank "))
    sentence.insert(0, "rank " + std::to_string(world.rank) + ": ");
  Error first(sentence, error.kind());
  try {
    first = tellFailure(*world.store, first);
    showRecord(first);
    if (world.store->add("said", 1) == 1) {
      printError(first.what());
      if (first.kind() == Failure::RankFailed)
        printRecords();
    }
  } catch (const std::exception &) {
    // The store has ended with rank 0: one of those who are left speaks. A
    // process closes its files a little before it is seen to have ended.
    std::optional<Error> dead;
    for (auto end = std::chrono::steady_clock::now() + 600ms;
         !(dead = lifeline->findDead()) &&
         std::chrono::steady_clock::now() < end;)
      std::this_thread::sleep_for(5ms);
    if (!isSaid.exchange(true) && lifeline->isLowestHere()) {
      printError(dead ? dead->what() : sentence);
      // Who comes late finds a lower rank here, and does not say it again.
      std::this_thread::sleep_for(1s);
    }
  }
  return first;
}

int Processes::fail(const Error &error) noexcept {
  if (size() == 1) {
    printError(error.what());
    showRecord(error);
    if (error.kind() == Failure::RankFailed)
      printRecords();
    return error.exitCode();
  }
  // What has started the processes stops them all when the first one ends.
  std::signal(SIGTERM, SIG_IGN);
  hasEnded.store(true);
  Error first = tell(error);
  leave();
  return first.exitCode();
}

std::unique_ptr<Processes::Recorder>
Processes::record(std::function<std::string()> flights) {
  std::lock_guard lock(recordMutex);
  recorder = std::move(flights);
  return std::make_unique<Recorder>(*this);
}

Processes::Recorder::~Recorder() {
  std::lock_guard lock(processes.recordMutex);
  processes.lastRecord = std::exchange(processes.recorder, {})();
}

static std::string recordKey(unsigned rank) {
  return "record " + std::to_string(rank);
}

void Processes::setLog(std::shared_ptr<RankLog> given) {
  std::lock_guard lock(recordMutex);
  log = std::move(given);
}

void Processes::showRecord(const Error &error) noexcept {
  try {
    std::lock_guard lock(recordMutex);
    if (recorder)
      lastRecord = recorder();
    if (auto written = std::exchange(log, nullptr)) {
      archive::JSONWriter json;
      json.object([&] {
        json.attribute("error", error.what());
        json.attributeValues("collectives", spellFlights(lastRecord));
      });
      written->write(json.take());
    }
    if (world.store)
      world.store->set(recordKey(world.rank), lastRecord);
  } catch (const std::exception &) {
    // The error itself is more important.
  }
}

void Processes::printRecords() noexcept {
  try {
    std::vector<std::string> records;
    if (size() == 1)
      records.push_back(lastRecord);
    // Those who are dead tell nothing, and the others do so when they hear.
    auto end = std::chrono::steady_clock::now() + Lifeline::period + 500ms;
    for (unsigned rank = 0; size() > 1 && rank != size(); ++rank)
      if (auto record = world.store->get(
              recordKey(rank),
              std::max(0ms,
                       std::chrono::duration_cast<std::chrono::milliseconds>(
                           end - std::chrono::steady_clock::now()))))
        records.push_back(*record);
    for (const std::string &line : describeFlights(records))
      std::fprintf(stderr, "note: %s\n", archive::escape(line).c_str());
  } catch (const std::exception &) {
    // The store has ended.
  }
}

void Processes::stop(const Error &error) noexcept {
  Error first = tell(error);
  auto end = std::chrono::steady_clock::now() + farewell;
  while (!hasEnded.load() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(10ms);
  // It is in a kernel, or in the system.
  if (!hasEnded.load())
    std::_Exit(first.exitCode());
}

void Processes::leave() const noexcept {
  auto end = std::chrono::steady_clock::now() + farewell;
  auto awaitAll = [&](const char *key, unsigned count) {
    while (world.store->add(key, 0) < count &&
           std::chrono::steady_clock::now() < end) {
      if (lifeline && lifeline->findDead())
        end = std::min(end, std::chrono::steady_clock::now() + 300ms);
      std::this_thread::sleep_for(5ms);
    }
  };
  try {
    world.store->add("heard", 1);
    awaitAll("heard", size());
    // The store ends with rank 0.
    if (isFirst())
      awaitAll("left", size() - 1);
    else
      world.store->add("left", 1);
  } catch (const std::exception &) {
    // Rank 0 did not wait any longer.
  }
}

/// Nobody ends while another one looks whether all live.
void Processes::awaitOthers() const {
  const std::string key = "all may end";
  if (world.store->add("no longer look", 1) == size())
    world.store->set(key, "");
  auto isSet = [&](std::chrono::milliseconds wait) {
    return world.store->get(key, wait).has_value();
  };
  auto end = std::chrono::steady_clock::now() + timeout;
  while (!isSet(100ms) && std::chrono::steady_clock::now() < end)
    if (auto dead = lifeline->findDead(); dead && !isSet(0ms))
      throw Error(*dead);
}

int Processes::finish(int code) {
  if (!connected)
    return code;
  if (size() > 1) {
    const char *key = "exit code";
    if (isFirst())
      world.store->set(key, std::to_string(code));
    std::string text = await(key, 0, "end");
    // As `fsdp-run --help` lists them.
    if (text.size() != 1 || text[0] < '0' || text[0] > '4')
      throw Error("expected an exit code from rank 0, found '" + text + "'",
                  Failure::RankFailed);
    code = text[0] - '0';
  }
  if (lifeline)
    lifeline->stopLooking(); // From now on, a process may end.
  if (stopping.joinable())
    stopping.join();
  if (size() > 1)
    awaitOthers();
  connected->finish();
  return code;
}
