//===- Process.h - Which process it is --------------------------*- C++ -*-===//
#ifndef FSDP_RUNTIME_PROCESSES_PROCESS_H
#define FSDP_RUNTIME_PROCESSES_PROCESS_H

#include <string>
#include <sys/types.h>

namespace fsdp {

/// One that takes part in a run.
struct Process {
  std::string host;
  std::string space; ///< Of the numbers of processes: those of another one mean
                     ///< nothing here.
  pid_t number = 0;
};

/// This one. `host`: the name of this machine.
Process ownProcess(const std::string &host);

/// In one line, for the others.
std::string encodeProcess(const Process &process);
/// Throws if it is not such a line.
Process decodeProcess(const std::string &line);

/// Whether it has ended, also if it is still in the process table, which has to
/// be that of this process.
bool isDead(pid_t process);

} // namespace fsdp

#endif // FSDP_RUNTIME_PROCESSES_PROCESS_H
