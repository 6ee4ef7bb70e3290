#include "engine/tuning.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace tally::engine {
namespace {

constexpr uint32_t kBudgetMs = 200;
constexpr uint32_t kVersion = 1;  // raised when layouts, kernels or what is measured change
constexpr size_t kFileBytesMax = 64 << 10;
constexpr double kQuietShare = 0.9;

std::vector<kernels::FormatTuning> read(const std::string& path, std::string_view key) {
  if (path.empty()) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text(kFileBytesMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return kernels::parse_tuning(key, text);
}

// Another start may write at the same time: each has a name of its own until it renames.
void write(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) {
    base::log_info("the tuning could not be kept in {}: the next start measures again", path);
    std::filesystem::remove(temporary, error);
  }
}

// Processor time of all threads of the process.
int64_t cpu_us() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

// The first line of the file: what the figures depend on.
std::string key_of(std::string_view isa, size_t threads) {
  return fmt::format("tally tuning {}, {}, {}, {} threads", kVersion, base::cpu_allowance().model, isa,
                     threads);
}

std::vector<Tuning> shown(std::span<const kernels::FormatTuning> tuning) {
  std::vector<Tuning> out;
  for (const kernels::FormatTuning& f : tuning) {
    out.push_back(
        {std::string(tensor::dtype_info(f.type).name), f.walk.prefetch_bytes, f.walk.chunk_bytes, {}});
    for (const float c : f.cost) out.back().row_cost.push_back(std::round(double{c} * 1000) / 1000);
  }
  return out;
}

}  // namespace

std::vector<Tuning> kept_tuning(const std::string& file, std::string_view isa, uint32_t threads) {
  return shown(read(file, key_of(isa, threads)));
}

std::vector<Tuning> tune(const TuneRequest& request, std::string_view isa, model::Model& model,
                         base::ThreadPool& pool) {
  if (!request.on) return {};
  const std::string key = key_of(isa, pool.threads());
  std::vector<kernels::FormatTuning> tuning = read(request.file, key);
  if (tuning.empty() || !model.set_tuning(tuning)) {
    const int64_t begin = base::now_us(), cpu_begin = cpu_us();
    std::vector<kernels::FormatTuning> fresh = model.measure_tuning(pool, kBudgetMs);
    const int64_t wall = base::now_us() - begin, cpu = cpu_us() - cpu_begin;
    model.set_tuning(fresh);
    base::log(base::LogLevel::kDebug, "tuned {} weight types in {} ms", fresh.size(), wall / 1000);
    // Threads that computed or spun all the time had the cores for themselves.
    const bool quiet = static_cast<double>(cpu) >=
                       kQuietShare * static_cast<double>(wall) * static_cast<double>(pool.threads());
    for (const kernels::FormatTuning& old : tuning) {  // of other models
      const bool measured =
          std::any_of(fresh.begin(), fresh.end(), [&](const auto& f) { return f.type == old.type; });
      if (!measured) fresh.push_back(old);
    }
    tuning = std::move(fresh);
    if (quiet)
      write(request.file, kernels::tuning_text(key, tuning));
    else
      base::log(base::LogLevel::kDebug, "the machine was busy: the next start measures again");
  }
  return shown(tuning);
}

}  // namespace tally::engine
