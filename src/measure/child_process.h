// A program that was started here and never outlives its parent.
#pragma once

#include "base/result.h"
#include "measure/client.h"

#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

// In a process group of its own, so that Ctrl-C on the terminal reaches the parent alone; what it prints goes
// to memory, so that nobody has to read along; killed by the kernel when the parent dies.
// Threads: the kernel's tie is to the thread that called start(), which must live as long as the child.
class ChildProcess {
 public:
  // `argv`: the program's path and its arguments. Its environment is ours, its signals are not blocked.
  // Errors: kInternal when the system has no process or no memory for it.
  static base::Result<ChildProcess> start(const std::vector<std::string>& argv);
  ~ChildProcess();  // killed, if it still runs
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  int pid() const { return pid_; }
  // As a shell tells it: 128 + the signal that ended it. Absent: it runs.
  std::optional<int> exit_code();
  // SIGTERM, and SIGKILL when it has not ended within `grace`. The exit code.
  int stop(Duration grace);

  std::string output() const;  // what stdout holds by now
  // The end of what stderr holds, joined with " | ", for a message of one line.
  std::string last_words() const;

 private:
  ChildProcess() = default;

  int pid_ = -1;                      // -1: moved from
  int output_ = -1, complaint_ = -1;  // files in memory
  std::optional<int> exit_code_;
};

}  // namespace tally::measure
