// Drives a fuzz target without libFuzzer: each seed as it is, then mutations of the seeds. The n-th input is
// the same in every run and with any number of jobs.
//   gguf_fuzz [-runs=N] [-jobs=J] [-seed=S] FILE|FOLDER...
//   gguf_fuzz -only=N [-seed=S] FILE|FOLDER... >INPUT    writes the n-th input and runs it
// Exit 0: nothing crashed, hung, leaked or took much memory; 1: something did, and which input; 64, 66:
// usage.

#include "fuzz/mutator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// What an input may make a reader allocate at once; a small quarantine, so that the memory counted is the
// reader's.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=64:quarantine_size_mb=8:malloc_context_size=2:detect_stack_use_after_return="
         "0";
}

namespace {

constexpr int64_t kSecondsMax = 20;                // of one input, instrumented, on a loaded machine
constexpr int64_t kGrowthMax = int64_t{64} << 20;  // bytes above what the seeds needed

struct Options {
  uint64_t runs = 0, jobs = 1, seed = 1;
  std::optional<uint64_t> only;
  std::vector<std::string> seeds;
};

// What a job is at: shared with the process that watches.
struct Progress {
  std::atomic<uint64_t> input;
  std::atomic<uint64_t> done;
};

void run_input(const std::string& bytes) {
  // A copy of the exact size: a read behind it is seen.
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  LLVMFuzzerTestOneInput(copy.get(), bytes.size());
}

std::string make_input(const Options& options, uint64_t index) {
  Random random(options.seed * 0x9E3779B97F4A7C15u + index);
  return mutate(options.seeds[random.below(options.seeds.size())], options.seeds, random);
}

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// Every jobs-th input.
int run_job(const Options& options, uint64_t job, Progress& progress) {
  for (const std::string& seed : options.seeds) run_input(seed);
  const int64_t baseline = peak_bytes();
  for (uint64_t i = job; i < options.runs; i += options.jobs) {
    progress.input = i;
    run_input(make_input(options, i));
    progress.done = progress.done + 1;
    if (peak_bytes() > baseline + kGrowthMax) {
      std::fprintf(stderr, "input %llu: %lld MiB more than the seeds needed\n",
                   static_cast<unsigned long long>(i),
                   static_cast<long long>((peak_bytes() - baseline) >> 20));
      return 1;
    }
  }
  return 0;
}

// Waits for the job; true if it ended well.
bool watch(pid_t pid, const Progress& progress) {
  uint64_t done = 0;
  auto moved = std::chrono::steady_clock::now();
  for (int status = 0;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (const uint64_t at = progress.done; at != done) done = at, moved = now;
    const bool hangs = now - moved > std::chrono::seconds(kSecondsMax) * (done == 0 ? 10 : 1);
    if (ended == pid || hangs) {
      std::fprintf(stderr, "input %llu %s: see it with -only=%llu\n",
                   static_cast<unsigned long long>(progress.input), hangs ? "takes too long" : "is a fault",
                   static_cast<unsigned long long>(progress.input));
      if (hangs) kill(pid, SIGKILL), waitpid(pid, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

bool run_jobs(const Options& options) {
  const size_t bytes = options.jobs * sizeof(Progress);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  auto* progress = static_cast<Progress*>(shared);
  std::vector<pid_t> jobs;
  for (uint64_t job = 0; job < options.jobs; ++job) {
    const pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) std::exit(run_job(options, job, progress[job]));  // exit: leaks are looked for
    jobs.push_back(pid);
  }
  bool good = true;
  for (size_t job = 0; job < jobs.size(); ++job) good &= watch(jobs[job], progress[job]);
  munmap(shared, bytes);
  return good;
}

void add_seed(Options& options, const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  options.seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// False: not understood.
bool read_argument(Options& options, std::string_view argument) {
  const auto number = [&](std::string_view name, uint64_t min, auto& out) {
    if (!argument.starts_with(name)) return false;
    const std::string_view text = argument.substr(name.size());
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < min) return false;
    out = value;
    return true;
  };
  if (argument.starts_with('-')) {
    return number("-runs=", 0, options.runs) || number("-jobs=", 1, options.jobs) ||
           number("-seed=", 0, options.seed) || number("-only=", 0, options.only);
  }
  const std::filesystem::path path(argument);
  if (!std::filesystem::is_directory(path))
    return add_seed(options, path), std::filesystem::is_regular_file(path);
  std::vector<std::filesystem::path> files;  // in an order that does not depend on the file system
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) add_seed(options, file);
  return !files.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (read_argument(options, argv[i])) continue;
    std::fprintf(stderr,
                 "usage: %s [-runs=N] [-jobs=J] [-seed=S] [-only=N] FILE|FOLDER...\nnot understood: %s\n",
                 argv[0], argv[i]);
    return 64;
  }
  if (options.seeds.empty()) return 66;
  if (!options.only) return run_jobs(options) ? 0 : 1;
  const std::string input = make_input(options, *options.only);
  std::fwrite(input.data(), 1, input.size(), stdout);
  std::fflush(stdout);
  run_input(input);
  return 0;
}
