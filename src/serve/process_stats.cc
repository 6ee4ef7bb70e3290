#include "serve/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace tally::serve {
namespace {

// Field `n` (1-based, as proc(5) counts) of /proc/self/stat; the name in field 2 may hold blanks.
uint64_t self_stat(int n) {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t after_name = line.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream rest(line.substr(after_name + 1));
  std::string state;
  rest >> state;
  for (int field = 4; field < n; ++field) {
    int64_t skipped = 0;
    rest >> skipped;
  }
  uint64_t value = 0;
  rest >> value;
  return value;
}

// The line of /proc/stat that begins with `name`: its `n`-th number.
uint64_t machine_stat(const std::string& name, int n) {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first != name) continue;
    uint64_t value = 0;
    for (int i = 0; i < n; ++i) words >> value;
    return value;
  }
  return 0;
}

uint64_t count_files() {
  DIR* dir = ::opendir("/proc/self/fd");
  if (!dir) return 0;
  uint64_t n = 0;
  while (const dirent* entry = ::readdir(dir)) n += entry->d_name[0] != '.';
  ::closedir(dir);
  return n - 1;  // the directory itself
}

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

}  // namespace

ProcessStats process_stats() {
  ProcessStats out;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  out.major_faults = static_cast<uint64_t>(usage.ru_majflt);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  constexpr int kThreads = 20, kStartTime = 22, kSteal = 8;
  out.threads = self_stat(kThreads);
  out.start_s =
      static_cast<double>(machine_stat("btime", 1)) + static_cast<double>(self_stat(kStartTime)) / ticks;
  out.steal_s = static_cast<double>(machine_stat("cpu", kSteal)) / ticks;
  out.open_fds = count_files();
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) out.max_fds = files.rlim_cur;
  return out;
}

}  // namespace tally::serve
