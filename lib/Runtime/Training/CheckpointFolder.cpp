//===- CheckpointFolder.cpp - Checkpoints of a training -------------------===//

#include "fsdp/Runtime/Training/CheckpointFolder.h"

#include "FolderLock.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using namespace fsdp;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

static constexpr const char *automatic = "auto";
static constexpr std::string_view prefix = "step-", partial = ".partial",
                                  damaged = ".damaged";
static constexpr const char *ranksFolder = "ranks";
/// For a file system of several machines to show a folder.
static constexpr auto longestDelay = 10s;

static std::string nameOf(long long step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld", step);
  return name;
}

[[noreturn]] static void failTo(const char *deed, const fs::path &path,
                                int cause = errno) {
  throw Error("--checkpoint: cannot " + std::string(deed) + " " +
                  path.string() + ": " + std::strerror(cause),
              Failure::RankFailed);
}

/// Makes what was renamed in a folder survive a power failure.
static void synchronize(const fs::path &folder) {
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool isDone = descriptor >= 0 && ::fsync(descriptor) == 0;
  int cause = errno;
  if (descriptor >= 0)
    ::close(descriptor);
  if (!isDone)
    failTo("write", folder, cause);
}

/// Makes a folder, and those above it, survive a power failure.
static std::error_code makeFolders(const fs::path &folder) {
  std::vector<fs::path> made;
  std::error_code failed;
  for (fs::path each = fs::absolute(folder).lexically_normal();
       !fs::exists(each, failed) && each.has_relative_path();
       each = each.parent_path())
    made.push_back(each);
  if (!fs::create_directories(folder, failed) && failed)
    return failed;
  for (const fs::path &each : made)
    synchronize(each.parent_path());
  return {};
}

/// The checkpoints of a folder, the newest last. None that cannot be seen is
/// taken for one that is not there.
static std::vector<std::string> listCheckpoints(const fs::path &folder) {
  std::vector<std::pair<std::size_t, std::string>> names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    std::string name = it->path().filename().string();
    std::string_view digits = name;
    if (!digits.starts_with(prefix))
      continue;
    digits.remove_prefix(prefix.size());
    if (!digits.empty() && std::ranges::all_of(digits, [](unsigned char c) {
          return std::isdigit(c);
        }))
      names.emplace_back(name.size(), name);
  }
  if (failed && failed != std::errc::no_such_file_or_directory)
    throw Error(folder.string() + ": cannot read: " + failed.message());
  std::ranges::sort(names); // Longer numbers are larger.
  std::vector<std::string> paths;
  for (auto &[length, name] : names)
    paths.push_back((folder / name).string());
  return paths;
}

//===----------------------------------------------------------------------===//
// Before the training
//===----------------------------------------------------------------------===//

CheckpointFolder::CheckpointFolder(const planfile::PlanFile &plan,
                                   const TrainingOptions &options,
                                   const Processes &processes)
    : plan(plan), options(options), processes(processes) {
  if (areWanted())
    checkFolder();
  if (!options.resume.empty())
    findResumed();
  if (!areWanted())
    return;
  // What a training writes must be newer than all that is there.
  std::vector<std::string> present = listCheckpoints(options.checkpoint);
  std::erase_if(present, [&](const std::string &each) {
    return std::ranges::find(unusable, each) != unusable.end();
  });
  if (present.empty())
    return;
  std::string newest = fs::path(present.back()).filename().string();
  if (!found)
    throw Error("--checkpoint: expected --resume auto to go on with the "
                "training, or a folder without checkpoints; found " +
                newest + " in " + options.checkpoint);
  std::string start = nameOf(found->state.step);
  if (std::pair(newest.size(), newest) > std::pair(start.size(), start))
    throw Error("--checkpoint: expected no checkpoint after " + start +
                ", from which the training is to go on; found " + newest +
                " in " + options.checkpoint +
                ": move it away, or write to another folder");
}

CheckpointFolder::~CheckpointFolder() {
  if (writing.valid())
    writing.wait();
}

void CheckpointFolder::checkFolder() {
  const fs::path folder = options.checkpoint;
  std::error_code failed;
  if (processes.isFirst())
    failed = makeFolders(folder);
  if (failed ||
      (processes.isFirst() && ::access(folder.c_str(), W_OK | X_OK) != 0))
    throw Error("--checkpoint: expected a folder that can be written to, found "
                "that " +
                folder.string() + " cannot: " +
                (failed ? failed.message() : std::strerror(errno)));
  if (!processes.isFirst())
    return;
  lock = std::make_unique<FolderLock>(folder.string());
  // What a run that was killed has left.
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.starts_with("." + std::string(prefix)) && name.ends_with(partial))
      fs::remove_all(it->path(), ignored);
  }
}

void CheckpointFolder::findResumed() {
  bool isAutomatic = options.resume == automatic;
  std::string folder = isAutomatic ? options.checkpoint : options.resume;
  // Shells complete the name of a folder with one.
  while (folder.size() > 1 && folder.ends_with('/'))
    folder.pop_back();
  if (!isAutomatic && archive::Checkpoint::isOne(folder)) {
    path = folder;
    open();
    return;
  }
  candidates = listCheckpoints(folder);
  if (candidates.empty() && isAutomatic)
    return;
  if (candidates.empty())
    throw Error(
        "--resume: expected a checkpoint (a folder with manifest.json), a "
        "folder of them or auto, "
        "found " +
        folder);
  while (!found) {
    path = takeCandidate("expected a checkpoint that is whole, found none");
    try {
      open();
    } catch (const Error &error) {
      if (!error.isDamage())
        throw;
      giveUp(error.what());
    }
  }
}

void CheckpointFolder::open() {
  auto checkpoint = archive::Checkpoint::open(path);
  if (!checkpoint)
    throw Error(checkpoint.error());
  found.emplace(std::move(*checkpoint));
  checkFits();
}

std::string CheckpointFolder::takeCandidate(const std::string &problem) {
  if (candidates.empty())
    throw Error("--resume: " + problem);
  std::string next = std::move(candidates.back());
  candidates.pop_back();
  return next;
}

void CheckpointFolder::giveUp(const std::string &why) {
  processes.note("note: --resume: " + why +
                 "; trying the checkpoint before it");
  unusable.push_back(path);
  found.reset();
}

/// That it is one of this model; values are not read.
void CheckpointFolder::checkFits() const {
  auto wanted = Snapshot::tensors(plan);
  const auto &tensors = found->files.tensors();
  auto reject = [&](const std::string &why) {
    throw Error("--resume: " + path +
                ": expected a checkpoint of the model of " + plan.name() +
                ", found one " + why);
  };
  for (const auto &[name, shape] : wanted) {
    auto tensor = tensors.find(name);
    if (tensor == tensors.end())
      reject("without " + name);
    if (tensor->second.shape != shape.shape)
      reject("in which " + name + " has other sizes");
  }
}

static double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// What a process shows of its attempt to load a checkpoint begins with one of
/// these, or is empty.
static constexpr char isDamaged = 'd', isUnread = 'u';

/// What rank 0 answers: nothing if all have loaded the checkpoint; else the
/// folder of the one to try next, and why, if one of them has found damage.
/// Throws if one could not read it: it may be whole.
std::string CheckpointFolder::judge(const std::vector<std::string> &attempts) {
  std::string damage;
  for (const std::string &attempt : attempts) {
    if (attempt.starts_with(isUnread))
      throw Error("--resume: " + attempt.substr(1));
    if (damage.empty() && !attempt.empty())
      damage = attempt.substr(1);
  }
  if (damage.empty())
    return damage;
  fs::path next = takeCandidate(damage);
  return next.filename().string() + '\0' + damage;
}

void CheckpointFolder::load(Session &session) {
  auto begin = std::chrono::steady_clock::now();
  for (unsigned attempt = 0;; ++attempt) {
    std::string problem;
    bool isSame = true;
    try {
      if (!found)
        open();
      Weights weights = Weights::of(path, std::move(found->files));
      std::vector<Weights::Match> matches = weights.match(plan);
      weights.load(matches, session);
      weights.loadStates(plan, matches, session);
      session.setSeeds(options.seeds); // which an attempt may have changed
      isSame = loadOwn(*found, plan, session);
      session.setUpdates(found->state.updates);
    } catch (const Error &error) {
      problem =
          (error.isDamage() ? isDamaged : isUnread) + std::string(error.what());
    }
    std::string answer = processes.consult(
        "loading a checkpoint, attempt " + std::to_string(attempt), problem,
        [this](const auto &attempts) { return judge(attempts); },
        Processes::Wait::Files);
    if (answer.empty()) {
      loading = secondsSince(begin);
      found->ranks.reset(); // The files that are open.
      if (!isSame)
        processes.note("note: --resume: " + path + " is of the mesh " +
                       found->state.mesh +
                       ": random numbers begin anew, and all ranks have the "
                       "model buffers of rank 0");
      return;
    }
    std::size_t end = std::min(answer.find('\0'), answer.size());
    std::string next = answer.substr(0, end);
    if (!archive::isPlainName(next))
      throw Error("--resume: expected the name of a checkpoint from rank 0, "
                  "found '" +
                  next + "'");
    giveUp(answer.substr(std::min(end + 1, answer.size())));
    path = (fs::path(path).parent_path() / next).string();
  }
}

/// Gives a folder another name, which nothing has.
static void putAside(const std::string &path) {
  std::string aside = path + std::string(damaged);
  for (unsigned number = 2; ::rename(path.c_str(), aside.c_str()) != 0;
       ++number) {
    // A folder takes the place of no other one that has anything in it.
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
      failTo("rename", path);
    aside = path + std::string(damaged) + "-" + std::to_string(number);
  }
}

void CheckpointFolder::prepare(Session &session) {
  if (!areWanted())
    return;
  snapshot.emplace(plan, session);
  std::error_code ignored;
  if (found &&
      fs::equivalent(fs::path(path).parent_path(), options.checkpoint, ignored))
    newest = found->state.step;
  if (!processes.isFirst())
    return;
  // They would stand in the way of what will be written.
  for (const std::string &each : unusable) {
    std::error_code ignored;
    if (!fs::equivalent(fs::path(each).parent_path(), options.checkpoint,
                        ignored))
      continue;
    putAside(each);
  }
}

//===----------------------------------------------------------------------===//
// While it goes on
//===----------------------------------------------------------------------===//

void CheckpointFolder::save(archive::TrainingState state,
                            const Session &session) {
  finish();
  newest = state.step;
  snapshot->take(session);
  archive::SignalsBlocked blocked; // They are the main thread's.
  writing = std::async(std::launch::async, [this, state = std::move(state)] {
    return write(state);
  });
}

std::string CheckpointFolder::newestPath() const {
  return (fs::path(options.checkpoint) / nameOf(newest)).string();
}

void CheckpointFolder::finish() {
  if (writing.valid())
    saving += writing.get();
}

void CheckpointFolder::makeFolder(const fs::path &folder) const {
  std::error_code failed;
  fs::remove_all(folder, failed);
  unsigned ranks = planfile::getRankCount(plan.plan());
  for (unsigned rank = 0; rank < ranks; rank += archive::ranksInPart)
    if (fs::path part = folder / archive::getPart(rank, ranks) / ranksFolder;
        !fs::create_directories(part, failed))
      failTo("make", part, failed.value());
}

double CheckpointFolder::write(const archive::TrainingState &state) const {
  auto begin = std::chrono::steady_clock::now();
  const fs::path target = fs::path(options.checkpoint) / nameOf(state.step);
  const fs::path folder =
      target.parent_path() / ("." + nameOf(state.step) + std::string(partial));
  const std::string what = "checkpoint of step " + std::to_string(state.step);
  processes.consult("folder of the " + what, "", [&](const auto &) {
    makeFolder(folder);
    return "";
  });
  // What was written, or why it was not.
  std::string shown;
  try {
    std::error_code ignored;
    fs::path part =
        folder /
        archive::getPart(processes.ranks(state.ranks).first, state.ranks);
    for (auto end = std::chrono::steady_clock::now() + longestDelay;
         !fs::is_directory(part / ranksFolder, ignored);
         std::this_thread::sleep_for(50ms))
      if (std::chrono::steady_clock::now() > end)
        throw Error("--checkpoint: expected a folder that all processes "
                    "share, found none of rank 0's in " +
                    options.checkpoint);
    for (std::uint64_t list : snapshot->write(folder))
      shown += archive::spellChecksum(list);
  } catch (const std::exception &error) {
    shown = std::string("!") + error.what();
  }
  try {
    processes.consult(
        what, shown,
        [&](const auto &lists) { return publish(state, folder, lists); },
        Processes::Wait::Files);
  } catch (const std::exception &) {
    std::error_code ignored;
    if (processes.isFirst())
      fs::remove_all(folder, ignored);
    throw;
  }
  return secondsSince(begin);
}

/// The checksums of the lists that a process has written, or why it has not;
/// untrusted.
static void readSums(std::string_view text, std::vector<std::uint64_t> &sums) {
  constexpr std::size_t digits = 16;
  if (text.starts_with('!'))
    throw Error(std::string(text.substr(1)), Failure::RankFailed);
  for (; !text.empty(); text.remove_prefix(std::min(digits, text.size()))) {
    std::uint64_t &sum = sums.emplace_back();
    const char *end = text.data() + std::min(digits, text.size());
    auto [last, error] = std::from_chars(text.data(), end, sum, digits);
    if (error != std::errc() || last != text.data() + digits)
      throw Error("--checkpoint: expected checksums from all processes, found "
                  "something else",
                  Failure::RankFailed);
  }
}

/// Rank 0 gives the folder its name: then it is whole.
std::string
CheckpointFolder::publish(const archive::TrainingState &state,
                          const fs::path &folder,
                          const std::vector<std::string> &lists) const {
  std::vector<std::uint64_t> sums;
  for (const std::string &text : lists)
    readSums(text, sums);
  if (sums.size() != state.ranks)
    throw Error("--checkpoint: expected the checksums of " +
                    std::to_string(state.ranks) + " ranks, found " +
                    std::to_string(sums.size()),
                Failure::RankFailed);
  for (unsigned rank = 0; rank != sums.size(); ++rank)
    if (::access((folder / archive::getPart(rank, state.ranks) /
                  archive::getRankList(rank))
                     .c_str(),
                 R_OK) != 0)
      throw Error("--checkpoint: expected a folder that all processes share, "
                  "found none of rank " +
                      std::to_string(rank) + "'s files in " + folder.string(),
                  Failure::RankFailed);
  auto written = archive::writeFile(
      (folder / archive::Checkpoint::manifestName).string(),
      {archive::spellManifest(state, Snapshot::tensors(plan), sums)});
  if (!written)
    throw Error("--checkpoint: " + written.error().message,
                Failure::RankFailed);
  synchronize(folder);
  const fs::path target = fs::path(options.checkpoint) / nameOf(state.step);
  if (::rename(folder.c_str(), target.c_str()) != 0)
    failTo("make", target);
  synchronize(target.parent_path());
  removeOld(target);
  return {};
}

void CheckpointFolder::removeOld(const fs::path &newest) const {
  if (options.keep == 0)
    return;
  std::vector<std::string> all = listCheckpoints(options.checkpoint);
  auto keep = static_cast<std::size_t>(options.keep);
  std::vector<fs::path> removed;
  for (std::size_t i = 0; i + keep < all.size(); ++i) {
    // Nobody takes it for a checkpoint while it goes.
    fs::path old = all[i],
             hidden = old.parent_path() /
                      ("." + old.filename().string() + std::string(partial));
    if (old != newest && ::rename(old.c_str(), hidden.c_str()) == 0)
      removed.push_back(hidden);
  }
  // Nor after a power failure, which may forget the name and not what follows.
  if (!removed.empty())
    synchronize(newest.parent_path());
  std::error_code ignored;
  for (const fs::path &hidden : removed)
    fs::remove_all(hidden, ignored);
}
