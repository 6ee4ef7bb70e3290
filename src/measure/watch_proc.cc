#include "measure/watch_proc.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;

double ticks_s(double ticks) { return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)); }

// "inode" of the socket in state LISTEN on `port`; "": none.
std::string listener_inode(const char* table, uint16_t port) {
  constexpr std::string_view kListen = "0A";
  std::ifstream in(table);
  const std::string wanted = fmt::format(":{:04X}", port);
  std::string line;
  std::getline(in, line);  // the heading
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state == kListen && local.ends_with(wanted)) return inode;
  }
  return "";
}

bool has_socket(const fs::path& descriptors, const std::string& link) {
  std::error_code ec, each;
  for (fs::directory_iterator at(descriptors, ec), end; !ec && at != end; at.increment(ec))
    if (fs::read_symlink(at->path(), each).string() == link) return true;
  return false;
}

}  // namespace

double thread_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto all = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return all(usage.ru_utime) + all(usage.ru_stime);
}

std::optional<ProcessTimes> process_times(int pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  const size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(line.substr(name_end + 1));
  std::string word;
  double user = 0, system = 0;
  ProcessTimes out;
  for (int field = 3; words >> word; ++field) {  // numbers as in proc(5)
    uint64_t value = 0;
    std::from_chars(word.data(), word.data() + word.size(), value);
    if (field == 12) out.major_faults = value;
    if (field == 14) user = static_cast<double>(value);
    if (field == 15) system = static_cast<double>(value);
  }
  out.cpu_s = ticks_s(user + system);
  return out;
}

void read_process_memory(int pid, MemorySample& out) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':'), digit = line.find_first_of("0123456789");
    if (colon == std::string::npos || digit == std::string::npos) continue;
    uint64_t kib = 0;
    std::from_chars(line.data() + digit, line.data() + line.size(), kib);
    const std::string_view key = std::string_view(line).substr(0, colon);
    if (key == "RssAnon") out.rss_anon = kib * 1024;
    if (key == "RssFile") out.rss_file = kib * 1024;
    if (key == "VmSwap") out.swap = kib * 1024;
  }
}

std::optional<int> listener_of(uint16_t port) {
  std::string inode = listener_inode("/proc/net/tcp", port);
  if (inode.empty()) inode = listener_inode("/proc/net/tcp6", port);
  if (inode.empty()) return std::nullopt;
  const std::string link = fmt::format("socket:[{}]", inode);
  std::error_code ec;
  for (fs::directory_iterator at("/proc", ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    int pid = 0;
    const auto [stop, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && stop == name.data() + name.size() && has_socket(at->path() / "fd", link))
      return pid;
  }
  return std::nullopt;
}

double clock_offset_s() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(wall - steady).count();
}

}  // namespace tally::measure
