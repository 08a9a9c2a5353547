//===- Launcher.cpp - What has started the processes of a run -------------===//
#include "Launcher.h"

#include "../Support/Text.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Runtime/Comm/Hosts.h"
#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string_view>
#include <thread>
#include <unistd.h>

using namespace fsdp;
using namespace std::chrono_literals;

namespace {

/// What a launcher calls the number of a process, how many there are, and its
/// number on its machine.
struct Names {
  const char *process, *processes, *local;
};

/// mpirun may run inside of a job of Slurm, and torchrun inside of either.
constexpr Names launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

class Environment {
public:
  explicit Environment(
      const std::function<const char *(const char *)> &variable)
      : variable(variable) {}

  std::optional<std::string> text(const char *name) const {
    const char *value = variable(name);
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
  }

  std::optional<unsigned> number(const char *name, unsigned most) const {
    std::optional<std::string> digits = text(name);
    if (!digits)
      return std::nullopt;
    unsigned value = 0;
    const char *end = digits->data() + digits->size();
    auto [last, error] = std::from_chars(digits->data(), end, value);
    if (error != std::errc() || last != end || value > most)
      throw Error(std::string(name) + ": expected a number of at most " +
                  std::to_string(most) + ", found \"" + *digits + "\"");
    return value;
  }

private:
  const std::function<const char *(const char *)> &variable;
};

} // namespace

/// Of the processes of a run, at most.
static constexpr unsigned mostProcesses = 1u << 20;

std::string fsdp::firstHost(const std::string &list) {
  std::size_t end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',')
    return list.substr(0, end);
  std::size_t number = end + 1;
  std::size_t last = list.find_first_of("-,]", number);
  if (last == std::string::npos)
    return list.substr(0, end);
  return list.substr(0, end) + list.substr(number, last - number);
}

/// Where rank 0 is, if no variable says so.
static void findHost(const Environment &environment, const Names &names,
                     LaunchedProcess &launch) {
  if (auto host = environment.text("MASTER_ADDR")) {
    launch.host = *host;
    return;
  }
  auto list = environment.text("SLURM_STEP_NODELIST");
  if (std::string(names.process) == "SLURM_PROCID" && list) {
    launch.host = firstHost(*list);
    return;
  }
  auto here = environment.number("OMPI_COMM_WORLD_LOCAL_SIZE", mostProcesses);
  if (here != launch.processes)
    throw Error("expected MASTER_ADDR, the address of rank 0, in the "
                "environment of " +
                std::to_string(launch.processes) + " processes, found none");
}

LaunchedProcess
fsdp::readLaunch(const std::function<const char *(const char *)> &variable) {
  Environment environment(variable);
  LaunchedProcess launch;
  for (const Names &names : launchers) {
    auto process = environment.number(names.process, mostProcesses);
    auto processes = environment.number(names.processes, mostProcesses);
    if (!process && !processes)
      continue;
    if (!process || !processes || *process >= *processes)
      throw Error(std::string("expected ") + names.process + " below " +
                  names.processes + " in the environment, found " +
                  (process ? std::to_string(*process) : "none") + " and " +
                  (processes ? std::to_string(*processes) : "none"));
    launch.process = *process;
    launch.processes = *processes;
    launch.local = environment.number(names.local, mostProcesses);
    if (launch.processes == 1)
      return launch;
    findHost(environment, names, launch);
    break;
  }
  constexpr unsigned mostPort = std::numeric_limits<std::uint16_t>::max();
  if (auto port = environment.number("MASTER_PORT", mostPort))
    launch.port = static_cast<std::uint16_t>(*port);
  else if (auto job = environment.number("SLURM_JOB_ID",
                                         std::numeric_limits<unsigned>::max()))
    // Jobs that share a machine need stores of their own.
    launch.port = static_cast<std::uint16_t>(15000 + *job % 10000);
  launch.isServed = environment.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (launch.isServed)
    // The agent's store outlives its processes.
    launch.prefix =
        "fsdp-run " +
        environment.text("TORCHELASTIC_RESTART_COUNT").value_or("0") + " ";
  return launch;
}

std::string fsdp::describeLaunch() {
  for (const Names &names : launchers) {
    const char *value = std::getenv(names.processes);
    // Slurm says the same in the script of a job, which is one process.
    bool isSlurm = std::string_view(names.processes) == "SLURM_NTASKS";
    if (value && !isSlurm && std::string_view(value) != "1")
      return std::string(names.processes) + " is " + archive::escape(value);
  }
  return "";
}

std::string fsdp::ownHost() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::string> fsdp::exchange(unsigned process, unsigned processes,
                                        const std::string &line, Store &store,
                                        std::chrono::milliseconds timeout) {
  const std::string all = "hosts";
  auto keyOf = [](unsigned peer) { return "host " + std::to_string(peer); };
  auto await = [&](const std::string &wanted) {
    if (auto value = store.get(wanted, timeout))
      return *value;
    unsigned late = 0; // Or else process 0 does not collect them.
    for (unsigned peer = processes; peer-- > 0;)
      if (!store.get(keyOf(peer), 0ms))
        late = peer;
    throw Error("waited " + spellSeconds(timeout) + " for process " +
                std::to_string(late) + " of " + std::to_string(processes) +
                " to start");
  };
  store.set(keyOf(process), line);
  if (process == 0) {
    std::string text;
    for (unsigned peer = 0; peer != processes; ++peer)
      text += await(keyOf(peer)) + '\n';
    store.set(all, text);
  }
  std::istringstream text(await(all));
  std::vector<std::string> lines(processes);
  for (std::string &each : lines)
    std::getline(text, each);
  return lines;
}

/// All of them, by number.
static std::vector<Process>
exchangeProcesses(const LaunchedProcess &launch, const std::string &ownHost,
                  RankMap map, Store &store,
                  std::chrono::milliseconds timeout) {
  const char shown = map == RankMap::Hosts ? 'h' : 'l';
  std::vector<Process> processes;
  for (const std::string &line :
       exchange(launch.process, launch.processes,
                shown + encodeProcess(ownProcess(ownHost)), store, timeout)) {
    if (!line.starts_with(shown))
      throw differentMaps();
    processes.push_back(decodeProcess(line.substr(1)));
  }
  return processes;
}

World fsdp::joinWorld(const LaunchedProcess &launch, const std::string &ownHost,
                      RankMap map, std::chrono::milliseconds timeout) {
  if (launch.processes == 1)
    return {.processes = {ownProcess(ownHost)}};
  std::uint16_t port = launch.port;
  std::shared_ptr<Store> store =
      launch.process == 0 && !launch.isServed
          ? serveStore(launch.host, port)
          : connectStore(launch.host, port, launch.prefix);
  World world =
      makeWorld(exchangeProcesses(launch, ownHost, map, *store, timeout),
                launch.process, map);
  world.store = std::move(store);
  return world;
}

void fsdp::leaveWorld(const World &world, std::chrono::milliseconds timeout) {
  if (!world.store)
    return;
  const char *key = "processes that have left";
  world.store->add(key, 1);
  auto end = std::chrono::steady_clock::now() + timeout;
  while (world.rank == 0 && world.store->add(key, 0) < world.size() &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
}
