#include "measure/compare_gates.h"

#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr double kErrorShareMax = .001;
constexpr double kRunLengthMin = 10;  // median end-to-end times
constexpr size_t kShaShown = 12;

// Where a server listens and what it writes to its log changes no figure.
constexpr std::array<std::string_view, 7> kNoVariables{
    "host", "port", "api-key-file", "model-name", "log-level", "tuning-cache", "log-json"};

const json* member(const json& head, const char* key) {
  const auto at = head.is_object() ? head.find(key) : head.end();
  return head.is_object() && at != head.end() ? &*at : nullptr;
}

std::string shown(const json& value) { return value.is_string() ? value.get<std::string>() : line_of(value); }

// Name -> value of /v1/settings, which says {name: {value, source}}, or of a plain map.
std::map<std::string, std::string> settings_of(const Run& run) {
  std::map<std::string, std::string> out;
  const json* settings = member(run.head, "settings");
  if (settings != nullptr)
    if (const json* inner = member(*settings, "settings")) settings = inner;
  if (settings != nullptr && settings->is_object()) {
    for (const auto& [name, entry] : settings->items()) {
      if (std::find(kNoVariables.begin(), kNoVariables.end(), name) != kNoVariables.end()) continue;
      const json* value = member(entry, "value");
      out[name] = shown(value != nullptr ? *value : entry);
    }
  }
  if (const json* build = member(run.head, "build_id")) out["build"] = shown(*build);
  return out;
}

void add_run_gates(std::vector<Gate>& out, const Run& run, const Figures& f, const std::string& who) {
  const std::string ended = text_at(run.head, "status");
  out.push_back({fmt::format("{} complete", who), ended, "complete", ended == "complete"});

  const json* valid = member(run.head, "valid");
  const bool is_valid = valid != nullptr && valid->is_boolean() && valid->get<bool>();
  std::string reasons = is_valid ? "valid" : "not valid";
  if (const json* why = member(run.head, "invalid_reasons"); why != nullptr && why->is_array()) {
    for (const json& reason : *why) reasons += fmt::format("; {}", shown(reason));
  }
  out.push_back({fmt::format("{} valid by itself", who), reasons, "valid", is_valid});

  const double errors = f.requests() == 0 ? 0 : static_cast<double>(f.failed + f.incomplete) / f.requests();
  out.push_back({fmt::format("{} errors", who), fmt::format("{:.2f} %", 100 * errors),
                 fmt::format("at most {:.1f} %", 100 * kErrorShareMax), errors <= kErrorShareMax});
  const double lengths = f.e2e_planned.median > 0 ? f.duration_s / f.e2e_planned.median : 0;
  out.push_back({fmt::format("{} length", who), fmt::format("{:.1f} median requests", lengths),
                 fmt::format("at least {:.0f}", kRunLengthMin), lengths >= kRunLengthMin});
}

// Equal, or unknown on both sides: a foreign server does not say what it runs.
Gate equal_gate(const std::string& what, const std::string& a, const std::string& b) {
  const std::string value = a == b ? (a.empty() ? "unknown" : a.substr(0, kShaShown))
                                   : fmt::format("{} and {}", a.empty() ? "unknown" : a.substr(0, kShaShown),
                                                 b.empty() ? "unknown" : b.substr(0, kShaShown));
  return {what, value, "equal", a == b};
}

}  // namespace

std::string text_of(const json& head, const char* object, const char* key) {
  const json* inner = member(head, object);
  return inner != nullptr ? text_at(*inner, key) : "";
}

std::vector<Gate> gates_of(const RunPair& pair, const PairFigures& figures, size_t number) {
  std::vector<Gate> out;
  add_run_gates(out, *pair.a, figures.a, fmt::format("A{}", number));
  add_run_gates(out, *pair.b, figures.b, fmt::format("B{}", number));
  for (const auto& [object, what] : {std::pair{"model", "model SHA-256"}, {"workload", "workload SHA-256"}}) {
    out.push_back(equal_gate(fmt::format("pair {}: {}", number, what),
                             text_of(pair.a->head, object, "sha256"),
                             text_of(pair.b->head, object, "sha256")));
  }
  return out;
}

std::vector<ChangedSetting> changes_of(const RunPair& pair) {
  const auto a = settings_of(*pair.a), b = settings_of(*pair.b);
  std::map<std::string, ChangedSetting> out;
  const auto value = [](const auto& of, const std::string& name) {
    const auto at = of.find(name);
    return at == of.end() ? std::string("none") : at->second;
  };
  for (const auto* side : {&a, &b}) {
    for (const auto& [name, unused] : *side) {
      if (value(a, name) != value(b, name)) out[name] = {name, value(a, name), value(b, name)};
    }
  }
  std::vector<ChangedSetting> list;
  for (auto& [name, change] : out) list.push_back(std::move(change));
  return list;
}

std::vector<std::string> warnings_of(const RunPair& pair, const PairFigures& figures, size_t number) {
  std::vector<std::string> out;
  if (text_of(pair.a->head, "machine", "fingerprint") != text_of(pair.b->head, "machine", "fingerprint"))
    out.push_back(fmt::format("pair {}: the runs come from different machines", number));
  if (text_of(pair.a->head, "model", "sha256").empty())
    out.push_back(fmt::format(
        "pair {}: the model's SHA-256 is unknown: that both arms ran the same is not known", number));
  if (figures.a.refused + figures.b.refused > 0)
    out.push_back(fmt::format("pair {}: {} and {} requests were refused: latencies are of the others", number,
                              figures.a.refused, figures.b.refused));
  return out;
}

}  // namespace tally::measure
