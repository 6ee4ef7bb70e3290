// What a file of an ablation asks for.
#include "base/settings.h"
#include "base/utf8.h"
#include "measure/ablate.h"
#include "measure/pairs.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr std::string_view kKeys[] = {"label", "model", "rounds", "load",        "eval",
                                      "base",  "vary",  "ladder", "interactions"};
constexpr std::string_view kKeysText = "label, model, rounds, load, eval, base, vary, ladder, interactions";

Error refuse(const std::string& where, const json& value, std::string_view allowed) {
  return {ErrorCode::kBadData,
          fmt::format("{}: {} instead of {}", where, base::escape_for_log(line_of(value), 64), allowed)};
}

// A flag's value as it would be written on a command line.
Result<std::string> flag_text(const std::string& where, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return std::string(value.get<bool>() ? "on" : "off");
  if (value.is_number()) return value.dump();
  return refuse(where, value, "a text, a number, true or false");
}

Result<Flags> read_flags(const std::string& where, const json& value) {
  if (!value.is_object()) return refuse(where, value, "an object of flags");
  Flags out;
  for (const auto& [name, flag] : value.items()) {
    TALLY_TRY(out[name], flag_text(fmt::format("{}.{}", where, base::escape_for_log(name, 64)), flag));
  }
  return out;
}

std::string name_of(const Flags& set) {
  std::string out;
  for (const auto& [flag, value] : set) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", flag, value);
  return out;
}

Result<std::vector<Change>> read_vary(const json& value) {
  if (!value.is_object()) return refuse("vary", value, "an object: flag to list of values");
  std::vector<Change> out;
  for (const auto& [name, values] : value.items()) {
    const std::string where = fmt::format("vary.{}", base::escape_for_log(name, 64));
    if (!values.is_array() || values.empty()) return refuse(where, values, "a list of values");
    for (size_t i = 0; i < values.size(); ++i) {
      TALLY_TRY(const std::string text, flag_text(fmt::format("{}[{}]", where, i), values[i]));
      out.push_back({name_of({{name, text}}), {{name, text}}});
    }
  }
  return out;
}

Result<std::vector<Change>> read_ladder(const json& value) {
  if (!value.is_array()) return refuse("ladder", value, "a list of steps");
  std::vector<Change> out;
  for (size_t i = 0; i < value.size(); ++i) {
    const json& step = value[i];
    const std::string where = fmt::format("ladder[{}]", i);
    if (!step.is_object() || !step.contains("set") || (step.contains("name") && !step["name"].is_string()) ||
        step.size() != 1u + step.contains("name"))
      return refuse(where, step, "{\"name\": a text, \"set\": {flags}}");
    TALLY_TRY(Flags set, read_flags(where + ".set", step["set"]));
    std::string name = step.contains("name") ? step["name"].get<std::string>() : name_of(set);
    out.push_back({std::move(name), std::move(set)});
  }
  return out;
}

Result<std::vector<std::pair<std::string, std::string>>> read_interactions(const json& value) {
  std::vector<std::pair<std::string, std::string>> out;
  if (!value.is_array()) return refuse("interactions", value, "a list of pairs of names");
  for (size_t i = 0; i < value.size(); ++i) {
    const json& pair = value[i];
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      return refuse(fmt::format("interactions[{}]", i), pair, "the names of two changes");
    out.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return out;
}

Result<void> read_text(const json& file, const char* key, std::string& to) {
  if (!file.contains(key)) return {};
  if (!file[key].is_string()) return refuse(key, file[key], "a text");
  to = file[key].get<std::string>();
  return {};
}

Result<AblateFile> read_file(const json& file) {
  for (const auto& [key, unused] : file.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys)) continue;
    const auto near = base::nearest_name(key, kKeys);
    return Error{ErrorCode::kUsage, fmt::format("{}: no such key; {}", base::escape_for_log(key, 64),
                                                near ? fmt::format("did you mean {}?", *near)
                                                     : fmt::format("allowed: {}", kKeysText))};
  }
  AblateFile out;
  TALLY_TRY_VOID(read_text(file, "label", out.label));
  TALLY_TRY_VOID(read_text(file, "model", out.model));
  if (file.contains("rounds")) {
    const json& rounds = file["rounds"];
    if (!rounds.is_number_unsigned() || rounds.get<uint64_t>() < 1 || rounds.get<uint64_t>() > kPairsMax)
      return refuse("rounds", rounds, fmt::format("1..{}", kPairsMax));
    out.rounds = rounds.get<uint32_t>();
  }
  for (const auto& [key, flags] :
       {std::pair{"load", &out.load}, std::pair{"eval", &out.eval}, std::pair{"base", &out.base}}) {
    if (!file.contains(key)) continue;
    TALLY_TRY(*flags, read_flags(key, file[key]));
  }
  if (file.contains("vary")) {
    TALLY_TRY(out.vary, read_vary(file["vary"]));
  }
  if (file.contains("ladder")) {
    TALLY_TRY(out.ladder, read_ladder(file["ladder"]));
  }
  if (file.contains("interactions")) {
    TALLY_TRY(out.interactions, read_interactions(file["interactions"]));
  }
  return out;
}

}  // namespace

Result<AblateFile> load_ablate_file(const std::string& path) {
  TALLY_TRY(const json file, load_object(path));
  auto out = read_file(file);
  if (!out)
    return Error{out.error().code, fmt::format("{}: {}", base::escape_for_log(path), out.error().message)};
  out->path = path;
  return out;
}

}  // namespace tally::measure
