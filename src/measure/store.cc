// Write a run so that it is there whole or not at all, and read it back.
#include "measure/store.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kHeadBytesMax = uint64_t{64} << 20;
constexpr uint64_t kLinesBytesMax = uint64_t{2} << 30;
constexpr size_t kLabelMax = 64;

struct File {
  const char* name;
  std::string bytes;
};

std::array<File, 4> files_of(const Run& run) {
  json head = run.head.is_object() ? run.head : json::object();
  head["schema"] = kSchema;
  std::array<File, 4> files{File{kHeadFile, head.dump(2, ' ', false, json::error_handler_t::replace) + '\n'},
                            {kRequestsFile, {}},
                            {kStepsFile, {}},
                            {kMemoryFile, {}}};
  for (const RequestRecord& r : run.requests) files[1].bytes += line_of(request_json(r)) + '\n';
  for (const json& step : run.steps) files[2].bytes += line_of(step) + '\n';
  for (const MemorySample& m : run.memory) files[3].bytes += line_of(memory_json(m)) + '\n';
  return files;
}

// "20261130-061736" of "2026-11-30T06:17:36Z"; of now, where the run does not say when.
std::string stamp(const json& head) {
  std::string digits;
  for (const char c : text_at(head, "started")) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (digits.size() >= 14) return digits.substr(0, 8) + '-' + digits.substr(8, 6);
  return fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(static_cast<std::time_t>(base::wall_seconds())));
}

Error io_error(const fs::path& path, std::string_view what) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno))};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Result<void> write_synced(const fs::path& path, std::string_view bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.fd() < 0) return io_error(path, "cannot be made");
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "cannot be written");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(file.fd()) != 0) return io_error(path, "cannot be synced");
  return {};
}

Result<void> sync_directory(const fs::path& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.fd() < 0 || ::fsync(directory.fd()) != 0) return io_error(path, "cannot be synced");
  return {};
}

Result<void> fill(const fs::path& directory, const std::array<File, 4>& files) {
  if (::mkdir(directory.c_str(), 0755) != 0) return io_error(directory, "cannot be made");
  for (const File& file : files) TALLY_TRY_VOID(write_synced(directory / file.name, file.bytes));
  return sync_directory(directory);
}

Error in_file(const fs::path& file, const Error& error) {
  return {error.code, fmt::format("{}: {}", base::escape_for_log(file.string()), error.message)};
}

// Calls take(object) for each line. A file that is not there has no lines.
Result<void> read_lines(const fs::path& path, const auto& take) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return {};
  const uint64_t bytes = fs::file_size(path, ec);
  if (ec || bytes > kLinesBytesMax)
    return in_file(
        path, {ErrorCode::kBadData, fmt::format("{} bytes, at most {} are allowed", bytes, kLinesBytesMax)});
  std::ifstream in(path, std::ios::binary);
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const auto check = [&]() -> Result<void> {
      TALLY_TRY(const json object, parse_object(line));
      return take(object);
    };
    if (auto good = check(); !good)
      return in_file(path, {good.error().code, fmt::format("line {}: {}", number, good.error().message)});
  }
  if (!in.eof()) return in_file(path, {ErrorCode::kNoInput, "cannot be read"});
  return {};
}

}  // namespace

std::string file_word(const std::string& label) {
  std::string out;
  for (const char c : label.substr(0, kLabelMax)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    out += plain ? c : '_';
  }
  return out.empty() ? "run" : out;
}

Result<std::string> store_run(const Run& run, const std::string& parent) {
  const std::array<File, 4> files = files_of(run);
  std::string content;
  for (const File& file : files) content += base::hex(base::sha256(file.bytes));
  const std::string name = fmt::format("{}-{}-{}", stamp(run.head), file_word(text_at(run.head, "label")),
                                       base::hex(base::sha256(content)).substr(0, 8));
  const fs::path home = parent.empty() ? fs::path(".") : fs::path(parent), path = home / name;
  const fs::path unfinished = home / fmt::format(".{}.{}", name, ::getpid());
  std::error_code ec;
  fs::create_directories(home, ec);
  if (ec) return Error{ErrorCode::kIo, fmt::format("{}: cannot be made: {}", home.string(), ec.message())};
  if (fs::exists(path / kHeadFile, ec)) return path.string();  // the same bytes are stored already
  const auto keep = [&]() -> Result<void> {
    TALLY_TRY_VOID(fill(unfinished, files));
    if (::rename(unfinished.c_str(), path.c_str()) != 0) return io_error(path, "cannot be named so");
    return sync_directory(home);
  };
  if (auto kept = keep(); !kept) {
    fs::remove_all(unfinished, ec);
    return kept.error();
  }
  return path.string();
}

Result<void> replace_file(const std::string& path, std::string_view bytes) {
  const std::string unfinished = fmt::format("{}.{}.part", path, ::getpid());
  const auto replace = [&]() -> Result<void> {
    TALLY_TRY_VOID(write_synced(unfinished, bytes));
    if (::rename(unfinished.c_str(), path.c_str()) != 0) return io_error(path, "cannot be named so");
    const fs::path home = fs::path(path).parent_path();
    return sync_directory(home.empty() ? fs::path(".") : home);
  };
  auto done = replace();
  std::error_code ec;
  if (!done) fs::remove(unfinished, ec);
  return done;
}

Result<json> load_object(const std::string& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return in_file(path, {ErrorCode::kNoInput, "no such file"});
  const uint64_t bytes = fs::file_size(path, ec);
  if (ec || bytes > kHeadBytesMax)
    return in_file(
        path, {ErrorCode::kBadData, fmt::format("{} bytes, at most {} are allowed", bytes, kHeadBytesMax)});
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)))
    return in_file(path, {ErrorCode::kNoInput, "cannot be read"});
  auto object = parse_object(text);
  if (!object) return in_file(path, object.error());
  return object;
}

Result<json> load_head(const std::string& directory) {
  const fs::path path = fs::path(directory) / kHeadFile;
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return no_such_run(directory);
  TALLY_TRY(json head, load_object(path.string()));
  if (auto good = check_head(head); !good) return in_file(path, good.error());
  return head;
}

Result<Run> load_run(const std::string& directory) {
  Run run;
  TALLY_TRY(run.head, load_head(directory));
  const fs::path home(directory);
  TALLY_TRY_VOID(read_lines(home / kRequestsFile, [&](const json& line) -> Result<void> {
    TALLY_TRY(RequestRecord r, parse_request(line));
    run.requests.push_back(std::move(r));
    return {};
  }));
  TALLY_TRY_VOID(read_lines(home / kStepsFile, [&](const json& line) -> Result<void> {
    run.steps.push_back(line);
    return {};
  }));
  TALLY_TRY_VOID(read_lines(home / kMemoryFile, [&](const json& line) -> Result<void> {
    TALLY_TRY(MemorySample m, parse_memory(line));
    run.memory.push_back(std::move(m));
    return {};
  }));
  return run;
}

std::vector<std::string> list_runs(const std::string& directory) {
  std::vector<std::string> out;
  std::error_code ec, each;
  for (fs::directory_iterator at(directory, ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with('.') && fs::is_regular_file(at->path() / kHeadFile, each))
      out.push_back(at->path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace tally::measure
