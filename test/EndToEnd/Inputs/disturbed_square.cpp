// The custom operators of role_custom_op, of which the first does something
// bad in the second step, on one of several processes: in FSDP_TEST_DEED is
// what (throw, exit, kill or hang), in FSDP_TEST_RANK on which one.

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <unistd.h>

static std::string getVariable(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

static void checkCall() {
  static int calls = 0; // 2 to probe, 2 a step
  // Open MPI's name for it, and MPICH's.
  std::string rank =
      getVariable("OMPI_COMM_WORLD_RANK") + getVariable("PMI_RANK");
  if (++calls != 5 || rank != getVariable("FSDP_TEST_RANK"))
    return;
  std::string deed = getVariable("FSDP_TEST_DEED");
  if (deed == "exit")
    _exit(0);
  if (deed == "kill")
    raise(SIGKILL);
  while (deed == "hang")
    sleep(1);
  throw std::runtime_error("out of luck");
}

#define FSDP_CHECK_CALL checkCall
#include "scaled_square.cpp"
