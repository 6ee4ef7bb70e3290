#include "server_settings.h"

#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "bench_lists.h"
#include "machine_roofs.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using Keys = std::vector<std::pair<std::string, std::string>>;

std::string trimmed(std::string_view s) {
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  return std::string(s);
}

Result<Keys> read_keys(const std::string& path, const char* variable) {
  Keys keys;
  if (variable != nullptr && *variable != '\0') keys.emplace_back("env", base::hex(base::sha256(variable)));
  if (path.empty()) return keys;
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kNoInput,
                 fmt::format("--api-key-file {}: cannot be read", base::escape_for_log(path))};
  }
  if ((info.st_mode & 077) != 0) {
    return Error{ErrorCode::kConfig,
                 fmt::format("--api-key-file {}: mode {:o} lets others read it; chmod 600 it",
                             base::escape_for_log(path), info.st_mode & 0777)};
  }
  std::ifstream in(path);
  int line_number = 0;
  for (std::string line; std::getline(in, line);) {
    ++line_number;
    line = trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == line.size()) {
      return Error{ErrorCode::kConfig, fmt::format("--api-key-file {}: line {} is not name:key",
                                                   base::escape_for_log(path), line_number)};
    }
    keys.emplace_back(line.substr(0, colon), base::hex(base::sha256(line.substr(colon + 1))));
  }
  if (keys.empty())
    return Error{ErrorCode::kConfig,
                 fmt::format("--api-key-file {}: holds no key", base::escape_for_log(path))};
  return keys;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

serve::WireLimits wire_limits(const base::Settings& s) {
  serve::WireLimits w;
  w.request_line_bytes = s.number("limit-request-line"), w.header_bytes = s.number("limit-headers");
  w.header_fields = s.number("limit-header-fields"), w.body_bytes = s.number("limit-body");
  w.connections = s.number("limit-connections");
  w.requests_per_connection = static_cast<uint32_t>(s.number("limit-requests-per-connection"));
  w.head_timeout_ms = static_cast<uint32_t>(s.number("timeout-head"));
  w.body_gap_ms = static_cast<uint32_t>(s.number("timeout-body-gap"));
  w.idle_timeout_ms = static_cast<uint32_t>(s.number("timeout-idle"));
  w.write_stall_ms = static_cast<uint32_t>(s.number("timeout-write-stall"));
  return w;
}

// What another command measured and kept: a start measures nothing for a page.
serve::MachineRoofs known_roofs(const base::Settings& s) {
  serve::MachineRoofs out;
  const auto kept = measure::kept_roofs(measure::roofs_file(kept_directory(s)));
  if (!kept) return out;
  out.bytes_per_s.assign(kept->bytes_per_s.begin(), kept->bytes_per_s.end());
  out.ops_per_s = {{"int8", kept->int8_ops_per_s}, {"f32", kept->f32_ops_per_s}};
  for (const auto& [type, rates] : kept->kernel_ops_per_s)
    out.kernel_ops_per_s.push_back({type, {rates.begin(), rates.end()}});
  out.isa = kept->isa;
  return out;
}

}  // namespace

engine::StepRoofs known_step_roofs(const base::Settings& s, uint32_t threads, std::string_view weight_type) {
  const auto kept = measure::kept_roofs(measure::roofs_file(kept_directory(s)));
  if (!kept || kept->empty()) return {};
  return {kept->read_at(threads), kept->operations_at(threads, weight_type)};
}

Result<serve::Settings> server_settings(const base::Settings& s, const std::string& model_path,
                                        const char* key_variable) {
  serve::Settings out;
  out.host = s.text("host");
  out.port = static_cast<uint16_t>(s.number("port"));
  out.model_name =
      s.text("model-name").empty() ? std::filesystem::path(model_path).stem().string() : s.text("model-name");
  TALLY_TRY(out.api_keys, read_keys(s.text("api-key-file"), key_variable));
  if (!is_loopback(out.host) && out.api_keys.empty()) {
    if (!s.on("allow-unauthenticated")) {
      return Error{ErrorCode::kConfig,
                   fmt::format("--host {} without a key: give --api-key-file, or --allow-unauthenticated",
                               base::escape_for_log(out.host, 64))};
    }
    base::log_warn("anyone who reaches {} may use this server: no API key is set", out.host);
  }
  out.allowed_hosts = s.list("allowed-hosts"), out.allowed_origins = s.list("allowed-origins");
  TALLY_TRY(out.metrics.sets, word_list(s, "serve", "metrics-compat"));
  out.metrics.open = s.on("public-metrics"), out.receipts = s.on("receipts");
  // "auto" is the name of no format.
  out.output = {text::tool_format_of(s.text("tool-format")), s.text("reasoning") == "auto"};
  out.drain_timeout_ms = static_cast<uint32_t>(s.number("drain-timeout"));
  out.request_timeout_ms = static_cast<uint32_t>(s.number("request-timeout"));
  out.limits = wire_limits(s);
  out.keys = {.requests = static_cast<uint32_t>(s.number("limit-key-requests")),
              .tokens_per_minute = static_cast<uint64_t>(s.number("limit-key-tokens"))};
  for (const auto& [name, value] : s.values())
    out.shown.push_back({name, value.text, std::string(base::source_name(value.source))});
  out.roofs = known_roofs(s);
  return out;
}

}  // namespace tally::apps
