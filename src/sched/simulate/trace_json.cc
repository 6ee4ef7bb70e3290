// JSON lines as Mooncake publishes them. Each hash id names the block of 512 tokens at its place together
// with all before it: equal ids are equal prefixes.

#include "base/utf8.h"
#include "sched/simulate/trace_parse.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

namespace tally::sched::simulate {

namespace {

using base::Result;
using nlohmann::json;

constexpr uint32_t kSegmentTokens = 512;
constexpr std::string_view kKeys[] = {"timestamp", "input_length", "output_length", "hash_ids"};

std::string shown(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

Result<uint32_t> number(const Place& place, const json& object, uint32_t min) {
  const auto found = object.find(place.column);
  if (found == object.end()) return bad_line(place.line, fmt::format("the key {} is missing", place.column));
  if (!found->is_number_unsigned() || found->get<uint64_t>() < min || found->get<uint64_t>() > kTokensMax)
    return bad_value(place, shown(*found), fmt::format("a whole number {}..{}", min, kTokensMax));
  return found->get<uint32_t>();
}

// Milliseconds, whole or not.
Result<Tick> instant(const Place& place, const json& object) {
  constexpr double kMax = 1e15;
  const auto found = object.find(place.column);
  if (found == object.end()) return bad_line(place.line, fmt::format("the key {} is missing", place.column));
  if (!found->is_number() || found->get<double>() < 0 || found->get<double>() > kMax)
    return bad_value(place, shown(*found), fmt::format("milliseconds 0..{:.0f}", kMax));
  return found->is_number_unsigned() ? static_cast<Tick>(found->get<uint64_t>()) * 1000
                                     : static_cast<Tick>(found->get<double>() * 1000);
}

class JsonReader {
 public:
  JsonReader() { trace_.segment_tokens = kSegmentTokens; }

  Result<void> add(size_t line, std::string_view text) {
    const json object = json::parse(text, nullptr, false);
    if (object.is_discarded() || !object.is_object())
      return bad_line(line, fmt::format("'{}' is no JSON object", base::escape_for_log(text, 64)));
    TraceRequest r;
    TALLY_TRY(r.arrival, instant({line, kKeys[0]}, object));
    TALLY_TRY(r.prompt, number({line, kKeys[1]}, object, 1));
    TALLY_TRY(r.output, number({line, kKeys[2]}, object, 1));
    if (const auto ids = object.find(kKeys[3]); ids != object.end()) {
      TALLY_TRY_VOID(add_segments({line, kKeys[3]}, *ids, r));
    }
    trace_.requests.push_back(r);
    return {};
  }

  Trace&& take() { return std::move(trace_); }

 private:
  // Ids may be any whole numbers: they are numbered in order of appearance. Those beyond the prompt are of no
  // use.
  Result<void> add_segments(const Place& place, const json& ids, TraceRequest& r) {
    if (!ids.is_array()) return bad_value(place, shown(ids), "a list of whole numbers");
    const size_t needed = (size_t{r.prompt} + kSegmentTokens - 1) / kSegmentTokens;
    r.segment = static_cast<uint32_t>(trace_.segments.size());
    for (const json& id : ids) {
      if (!id.is_number_unsigned()) return bad_value(place, shown(id), "a list of whole numbers");
      if (trace_.segments.size() - r.segment == needed) break;
      const auto [at, fresh] = names_.emplace(id.get<uint64_t>(), static_cast<uint32_t>(names_.size()));
      trace_.segments.push_back(at->second);
    }
    if (trace_.segments.size() > UINT32_MAX / 2)
      return bad_line(place.line, "more hash_ids than can be held");
    const uint64_t covered = (trace_.segments.size() - r.segment) * kSegmentTokens;
    r.shared = static_cast<uint32_t>(std::min<uint64_t>(r.prompt, covered));
    return {};
  }

  Trace trace_;
  std::unordered_map<uint64_t, uint32_t> names_;  // only looked up
};

}  // namespace

Result<Trace> parse_json_lines(std::string_view text) {
  JsonReader reader;
  for (size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = trim(take_line(text));
    if (row.empty()) continue;
    TALLY_TRY_VOID(reader.add(line, row));
  }
  return reader.take();
}

}  // namespace tally::sched::simulate
