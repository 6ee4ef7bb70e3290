#include "measure/child_process.h"

#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace tally::measure {
namespace {

constexpr size_t kOutputMax = size_t{64} << 20;
constexpr size_t kLastBytes = 4096, kLastLines = 3;
constexpr int kCannotRun = 127;  // as a shell says it
constexpr auto kLook = std::chrono::milliseconds(5);

std::string read_from(int file, size_t most, bool end) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  const size_t length = std::min(most, static_cast<size_t>(std::max<off_t>(size, 0)));
  std::string out(length, '\0');
  const off_t from = end ? size - static_cast<off_t>(length) : 0;
  const ssize_t n = ::pread(file, out.data(), length, from);
  out.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return out;
}

// Between fork and exec: nothing but what is safe after a fork of a process with threads.
[[noreturn]] void become(char* const* argv, int output, int complaint, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotRun);  // it died before the line above
  ::setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(complaint, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0u, 0);
  ::execv(argv[0], argv);
  ::_exit(kCannotRun);
}

}  // namespace

base::Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& argv) {
  std::vector<std::string> words = argv;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ChildProcess out;
  out.output_ = ::memfd_create("stdout", MFD_CLOEXEC);
  out.complaint_ = ::memfd_create("stderr", MFD_CLOEXEC);
  const pid_t parent = ::getpid();
  if (out.output_ >= 0 && out.complaint_ >= 0) out.pid_ = ::fork();
  if (out.pid_ == 0) become(pointers.data(), out.output_, out.complaint_, parent);
  if (out.pid_ < 0)
    return base::Error{
        base::ErrorCode::kInternal,
        fmt::format("{}: cannot be started: {}", base::escape_for_log(argv.front()), std::strerror(errno))};
  return out;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      complaint_(std::exchange(other.complaint_, -1)),
      exit_code_(other.exit_code_) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !exit_code()) stop(Duration::zero());
  for (const int file : {output_, complaint_})
    if (file >= 0) ::close(file);
}

std::optional<int> ChildProcess::exit_code() {
  int status = 0;
  if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

int ChildProcess::stop(Duration grace) {
  if (!exit_code()) ::kill(pid_, SIGTERM);
  for (const Instant end = std::chrono::steady_clock::now() + grace;
       !exit_code() && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(kLook);
  if (!exit_code()) ::kill(pid_, SIGKILL);
  while (!exit_code()) std::this_thread::sleep_for(kLook);
  return *exit_code_;
}

std::string ChildProcess::output() const { return read_from(output_, kOutputMax, false); }

std::string ChildProcess::last_words() const {
  std::string text = read_from(complaint_, kLastBytes, true);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t from = text.size();
  for (size_t lines = 0; lines < kLastLines && from != std::string::npos && from > 0; ++lines)
    from = text.rfind('\n', from - 1);
  if (from != std::string::npos) text.erase(0, from + (text[from] == '\n' ? 1 : 0));
  std::string out;
  for (const char c : text) out += c == '\n' ? " | " : std::string(1, c);
  return out.empty() ? "it said nothing" : base::escape_for_log(out, kLastBytes);
}

}  // namespace tally::measure
