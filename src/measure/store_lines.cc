// Requests and memory samples as JSON lines, and back from bytes that nobody vouches for.
#include "measure/store.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr int kDepthMax = 64;
constexpr double kSecondsMax = 1e9;
constexpr size_t kShownMax = 40;  // bytes of a bad value in a message

struct OutcomeName {
  Outcome outcome;
  const char* name;
};
constexpr std::array kOutcomes{
    OutcomeName{Outcome::kCompleted, "completed"}, OutcomeName{Outcome::kFailed, "failed"},
    OutcomeName{Outcome::kRefused, "refused"}, OutcomeName{Outcome::kIncomplete, "incomplete"}};

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kShownMax ? text.substr(0, kShownMax) + "..." : text;
}

Error bad_value(std::string_view key, const json& value, std::string_view allowed) {
  return {ErrorCode::kBadData, fmt::format("{}: {} instead of {}", key, shown(value), allowed)};
}

// Reads keys of one object; the first that is wrong is kept, what follows is left alone.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  void text(const char* key, std::string& out) {
    const json* v = find(key);
    if (v == nullptr) return;
    v->is_string() ? void(out = v->get<std::string>()) : refuse(key, *v, "a string");
  }

  void seconds(const char* key, double& out) {
    const json* v = find(key);
    if (v == nullptr) return;
    is_seconds(*v) ? void(out = v->get<double>()) : refuse(key, *v, "a number of seconds");
  }

  template <class Integer>
  void count(const char* key, std::optional<Integer>& out) {
    const json* v = find(key);
    if (v == nullptr) return;
    constexpr Integer kMax = std::numeric_limits<Integer>::max();
    if (v->is_number_integer() && (v->is_number_unsigned() || v->get<int64_t>() >= 0) &&
        v->get<uint64_t>() <= kMax)
      out = static_cast<Integer>(v->get<uint64_t>());
    else
      refuse(key, *v, fmt::format("a whole number up to {}", kMax));
  }

  template <class Integer>
  void count(const char* key, Integer& out) {
    std::optional<Integer> value;
    count(key, value);
    out = value.value_or(out);
  }

  void required(const char* key) {
    if (find(key) == nullptr) refuse(key, json(nullptr), "a value");
  }

  static bool is_seconds(const json& v) {
    return v.is_number() && std::abs(v.get<double>()) <= kSecondsMax;  // false for what is no number at all
  }

  // Null counts as absent.
  const json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void refuse(std::string_view key, const json& value, std::string_view allowed) {
    if (!error_) error_ = bad_value(key, value, allowed);
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const json& object_;
  std::optional<Error> error_;
};

// [[t, tokens], ...] in order of time.
void read_events(Fields& fields, std::vector<TokenEvent>& out) {
  const json* events = fields.find("events");
  if (events == nullptr) return;
  if (!events->is_array()) return fields.refuse("events", *events, "an array of [t, tokens]");
  for (const json& e : *events) {
    const bool shape = e.is_array() && e.size() == 2 && Fields::is_seconds(e[0]) &&
                       e[1].is_number_unsigned() &&
                       e[1].get<uint64_t>() <= std::numeric_limits<uint32_t>::max();
    if (!shape) return fields.refuse("events", e, "[seconds, tokens]");
    const TokenEvent event{e[0].get<double>(), e[1].get<uint32_t>()};
    if (!out.empty() && event.at_s < out.back().at_s) return fields.refuse("events", e, "a later one");
    out.push_back(event);
  }
}

void put(json& out, const char* key, const auto& optional) {
  if (optional) out[key] = *optional;
}

}  // namespace

json request_json(const RequestRecord& r) {
  json events = json::array();
  for (const TokenEvent& e : r.events) events.push_back({e.at_s, e.tokens});
  json out = {{"id", r.id},
              {"class", r.class_name},
              {"group", r.group},
              {"status", kOutcomes[static_cast<size_t>(r.outcome)].name},
              {"http", r.http_status},
              {"code", r.error},
              {"planned_s", r.planned_s},
              {"sent_s", r.sent_s},
              {"end_s", r.end_s},
              {"prompt_tokens_planned", r.prompt_tokens_planned},
              {"output_tokens_planned", r.output_tokens_planned},
              {"output_tokens_events", r.events.size()},
              {"finish", r.finish},
              {"events", std::move(events)}};
  put(out, "prompt_tokens_server", r.prompt_tokens);
  put(out, "output_tokens_server", r.output_tokens);
  put(out, "cached_tokens", r.cached_tokens);
  if (!r.receipt.is_null()) out["receipt"] = r.receipt;
  if (r.events.empty()) return out;
  out["first_s"] = r.events.front().at_s;
  out["last_s"] = r.events.back().at_s;
  const RequestFigures figures = request_figures(r);
  put(out, "ttft_s", figures.ttft_s);
  put(out, "tpot_s", figures.tpot_s);
  put(out, "e2e_s", figures.e2e_s);
  put(out, "itl_max_s", figures.itl_max_s);
  return out;
}

Result<RequestRecord> parse_request(const json& line) {
  RequestRecord r;
  Fields fields(line);
  fields.required("id"), fields.required("status");
  fields.count("id", r.id);
  fields.text("class", r.class_name), fields.text("group", r.group);
  fields.text("code", r.error), fields.text("finish", r.finish);
  uint16_t http = 0;
  fields.count("http", http);
  r.http_status = http;
  fields.seconds("planned_s", r.planned_s), fields.seconds("sent_s", r.sent_s);
  fields.seconds("end_s", r.end_s);
  fields.count("prompt_tokens_planned", r.prompt_tokens_planned);
  fields.count("output_tokens_planned", r.output_tokens_planned);
  fields.count("prompt_tokens_server", r.prompt_tokens);
  fields.count("output_tokens_server", r.output_tokens);
  fields.count("cached_tokens", r.cached_tokens);
  read_events(fields, r.events);
  if (const json* receipt = fields.find("receipt")) r.receipt = *receipt;
  std::string status;
  fields.text("status", status);
  bool known = false;
  for (const OutcomeName& o : kOutcomes) {
    if (status == o.name) r.outcome = o.outcome, known = true;
  }
  if (!known) fields.refuse("status", json(status), "completed, failed, refused or incomplete");
  if (fields.error()) return *fields.error();
  return r;
}

// The load's keys (running, waiting, kv_held, ...) stand beside the others.
json memory_json(const MemorySample& m) {
  json out = m.load.is_object() ? m.load : json::object();
  out["t_s"] = m.at_s;
  put(out, "rss_anon", m.rss_anon);
  put(out, "rss_file", m.rss_file);
  put(out, "swap", m.swap);
  if (!m.accounts.is_null()) out["accounts"] = m.accounts;
  return out;
}

Result<MemorySample> parse_memory(const json& line) {
  MemorySample m;
  Fields fields(line);
  fields.required("t_s");
  fields.seconds("t_s", m.at_s);
  fields.count("rss_anon", m.rss_anon);
  fields.count("rss_file", m.rss_file);
  fields.count("swap", m.swap);
  if (fields.error()) return *fields.error();
  for (const auto& [key, value] : line.items()) {
    if (key == "accounts") {
      m.accounts = value;
    } else if (key != "t_s" && key != "rss_anon" && key != "rss_file" && key != "swap") {
      m.load[key] = value;
    }
  }
  return m;
}

Result<json> parse_object(std::string_view bytes) {
  bool deep = false;  // nested values are printed and freed by recursion
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t, json&) {
    deep |= depth > kDepthMax;
    return depth <= kDepthMax;
  };
  json value = json::parse(bytes, watch, false);
  if (deep) return Error{ErrorCode::kBadData, fmt::format("nested deeper than {}", kDepthMax)};
  if (value.is_discarded()) return Error{ErrorCode::kBadData, "no JSON"};
  if (!value.is_object())
    return Error{ErrorCode::kBadData, fmt::format("{} instead of an object", shown(value))};
  return value;
}

Result<void> check_head(const json& head) {
  using Type = json::value_t;
  struct Known {
    const char* key;
    Type type;
    const char* allowed;
  };
  constexpr Known kKnown[] = {
      {"label", Type::string, "a string"},
      {"started", Type::string, "a string"},
      {"status", Type::string, "a string"},
      {"command", Type::string, "a string"},
      {"build_id", Type::string, "a string"},
      {"tally_version", Type::string, "a string"},
      {"valid", Type::boolean, "true or false"},
      {"invalid_reasons", Type::array, "an array"},
      {"warnings", Type::array, "an array"},
      {"settings", Type::object, "an object"},
      {"machine", Type::object, "an object"},
      {"model", Type::object, "an object"},
      {"workload", Type::object, "an object"},
      {"results", Type::object, "an object"},
      {"client_settings", Type::object, "an object"},
  };
  Fields fields(head);
  uint32_t schema = 0;
  fields.required("schema");
  fields.count("schema", schema);
  if (fields.error()) return *fields.error();
  if (schema > kSchema)
    return Error{ErrorCode::kBadData,
                 fmt::format("schema: {} is newer than {}, the newest this program reads; "
                             "a newer tally wrote it",
                             schema, kSchema)};
  if (schema == 0) return bad_value("schema", head["schema"], "1");
  for (const Known& k : kKnown) {
    const json* v = fields.find(k.key);
    if (v != nullptr && v->type() != k.type) return bad_value(k.key, *v, k.allowed);
  }
  return {};
}

std::string line_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string text_at(const json& head, const char* key) {
  const json* value = head.is_object() ? Fields(head).find(key) : nullptr;
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::optional<double> number_at(const json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  const auto value = at->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

const json& object_at(const json& object, const char* key) {
  static const json kNone = json::object();
  if (!object.is_object()) return kNone;
  const auto at = object.find(key);
  return at != object.end() && at->is_object() ? *at : kNone;
}

double amount_at(const json& object, const char* key) {
  return std::max(0., number_at(object, key).value_or(0));
}

uint64_t count_at(const json& object, const char* key) {
  constexpr double kMost = 0x1p53;
  return static_cast<uint64_t>(std::min(amount_at(object, key), kMost));
}

}  // namespace tally::measure
