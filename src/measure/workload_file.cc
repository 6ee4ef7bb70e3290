// A workload as JSON lines, from bytes that nobody vouches for.
#include "base/utf8.h"
#include "measure/store.h"
#include "measure/workload.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <set>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr uint64_t kTokensMax = uint64_t{1} << 24;
constexpr size_t kShown = 40;

Error bad(const char* key, const json& value, const char* allowed) {
  const std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return {ErrorCode::kBadData,
          fmt::format("{}: {} instead of {}", key, base::escape_for_log(shown, kShown), allowed)};
}

Result<void> read_count(const json& line, const char* key, uint64_t most, uint32_t& out) {
  const auto at = line.find(key);
  if (at == line.end()) return {};
  if (!at->is_number_unsigned() || at->get<uint64_t>() > most)
    return Error{ErrorCode::kBadData,
                 bad(key, *at, "a whole number").message + fmt::format(" up to {}", most)};
  out = static_cast<uint32_t>(at->get<uint64_t>());
  return {};
}

Result<void> read_word(const json& line, const char* key, std::string& out) {
  const auto at = line.find(key);
  if (at == line.end()) return {};
  if (!at->is_string()) return bad(key, *at, "a string");
  out = at->get<std::string>();
  return {};
}

Result<void> read_ids(const json& line, std::vector<uint32_t>& out) {
  const auto at = line.find("prompt_ids");
  if (at == line.end()) return {};
  if (!at->is_array() || at->empty()) return bad("prompt_ids", *at, "a list of token ids");
  for (const json& id : *at) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      return bad("prompt_ids", id, "a token id");
    out.push_back(id.get<uint32_t>());
  }
  return {};
}

Result<PlannedRequest> parse_line(const json& line, bool& has_time) {
  PlannedRequest r;
  r.class_name = "file";
  TALLY_TRY_VOID(read_count(line, "id", std::numeric_limits<uint32_t>::max(), r.id));
  TALLY_TRY_VOID(read_count(line, "max_tokens", kTokensMax, r.output_tokens));
  TALLY_TRY_VOID(read_word(line, "class", r.class_name));
  TALLY_TRY_VOID(read_word(line, "group", r.group));
  TALLY_TRY_VOID(read_word(line, "prompt", r.text));
  TALLY_TRY_VOID(read_ids(line, r.ids));
  if (r.text.empty() == r.ids.empty())
    return Error{ErrorCode::kBadData, "prompt, prompt_ids: exactly one of them is needed"};
  if (const auto t = line.find("temperature"); t != line.end()) {
    constexpr double kTemperatureMax = 2;
    if (!t->is_number() || !(t->get<double>() >= 0 && t->get<double>() <= kTemperatureMax))
      return bad("temperature", *t, "a number from 0 to 2");
    r.temperature = t->get<double>();
  }
  if (r.output_tokens == 0) return Error{ErrorCode::kBadData, "max_tokens: at least 1 is needed"};
  const auto at = line.find("at_s");
  has_time = at != line.end();
  if (!has_time) return r;
  if (!at->is_number() || !(at->get<double>() >= 0 && at->get<double>() <= 1e9))
    return bad("at_s", *at, "seconds from the start");
  r.at_s = at->get<double>();
  return r;
}

}  // namespace

Result<Workload> parse_workload(std::string_view lines, const std::string& name) {
  Workload out;
  out.name = name, out.classes = json::object();
  size_t number = 0, with_time = 0;
  double last_s = 0;
  std::set<uint32_t> ids;
  const auto in_line = [&](const std::string& what) {
    return Error{ErrorCode::kBadData,
                 fmt::format("{}: line {}: {}", base::escape_for_log(name), number, what)};
  };
  while (!lines.empty()) {
    ++number;
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto object = parse_object(line);
    if (!object) return in_line(object.error().message);
    bool has_time = false;
    auto request = parse_line(*object, has_time);
    if (!request) return in_line(request.error().message);
    if (!object->contains("id")) request->id = static_cast<uint32_t>(number - 1);
    if (!ids.insert(request->id).second) return in_line(fmt::format("id: {} is there already", request->id));
    if (has_time && request->at_s < last_s) return in_line("at_s: earlier than the line before");
    last_s = request->at_s, with_time += has_time;
    out.requests.push_back(std::move(*request));
  }
  if (out.requests.empty())
    return Error{ErrorCode::kBadData, fmt::format("{}: no requests", base::escape_for_log(name))};
  out.has_times = with_time == out.requests.size();
  out.shares_prefixes = true;  // nobody knows
  std::map<std::string, size_t> counts;
  for (const PlannedRequest& r : out.requests) ++counts[r.class_name];
  for (const auto& [class_name, count] : counts) out.classes[class_name] = {{"n", count}};
  return out;
}

}  // namespace tally::measure
