#include "base/settings.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace tally::base {
namespace {

using nlohmann::json;

constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20;

template <class F>
void for_each_part(std::string_view list, char separator, const F& f) {
  while (!list.empty()) {
    const size_t end = list.find(separator);
    if (const std::string_view part = list.substr(0, end); !part.empty()) f(part);
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
}

bool in_range(const SettingRow& row, std::optional<double> value) {
  return value && *value >= row.min && *value <= row.max;
}

bool valid(const SettingRow& row, const std::string& text) {
  switch (row.type) {
    case SettingType::kSwitch:
    case SettingType::kOnOff:
      return text == "on" || text == "off";
    case SettingType::kUint: {
      const auto n = parse_uint(text);
      return n && in_range(row, static_cast<double>(*n));
    }
    case SettingType::kFloat:
      return in_range(row, parse_real(text));
    case SettingType::kBytes:
      return in_range(row, parse_bytes(text));
    case SettingType::kDuration:
      return in_range(row, parse_duration_ms(text));
    case SettingType::kText:
    case SettingType::kList:
      return text.find('\0') == std::string::npos && utf8_find_invalid(text) == std::string::npos;
    case SettingType::kChoice: {
      bool found = false;
      for_each_part(row.choices, '|', [&](std::string_view c) { found |= c == text; });
      return found;
    }
  }
  return false;
}

// Duplicate keys are an error: nlohmann keeps the last one silently, its callback sees each.
Result<std::map<std::string, std::string>> read_config(const std::string& path) {
  std::error_code ec;
  const auto bytes = std::filesystem::file_size(path, ec);
  if (ec) return Error{ErrorCode::kNoInput, fmt::format("--config {}: cannot be read", escape_for_log(path))};
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kConfig, fmt::format("--config {}: {}", escape_for_log(path), why)};
  };
  if (bytes > kConfigBytesMax)
    return bad(fmt::format("{} bytes, at most {} are allowed", bytes, kConfigBytesMax));
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto line_of = [&](size_t offset) {
    return 1 + std::count(text.begin(),
                          text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size())), '\n');
  };
  if (const size_t at = utf8_find_invalid(text); at != std::string::npos) {
    return bad(fmt::format("line {}: not valid UTF-8", line_of(at)));
  }
  std::set<std::string> seen;
  std::string twice;
  json document;
  try {
    document = json::parse(text, [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::key && depth == 1 && !seen.insert(value.get<std::string>()).second) {
        twice = value.get<std::string>();
      }
      return true;
    });
  } catch (const json::parse_error& e) {
    return bad(fmt::format("line {}: not JSON", line_of(e.byte)));
  }
  if (!twice.empty()) return bad(fmt::format("the key {} is there twice", escape_for_log(twice, 64)));
  if (!document.is_object()) return bad("must be one JSON object");
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : document.items()) {
    if (value.is_string()) {
      values[key] = value.get<std::string>();
    } else if (value.is_boolean()) {
      values[key] = value.get<bool>() ? "on" : "off";
    } else if (value.is_number()) {
      values[key] = value.dump();
    } else {
      return Error{ErrorCode::kUsage, fmt::format("--config {}: {} must be a string, number or boolean",
                                                  escape_for_log(path), escape_for_log(key, 64))};
    }
  }
  return values;
}

std::string markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string_view source_name(SettingSource source) {
  constexpr std::string_view kNames[] = {"default", "file", "environment", "command line"};
  return kNames[static_cast<size_t>(source)];
}

bool has_word(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_part(list, ' ', [&](std::string_view w) { found |= w == word; });
  return found;
}

std::string variable_name(std::string_view row_name) {
  std::string name = "TALLY_";
  for (const char c : row_name) name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return name;
}

std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string_view> names) {
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(2, given.size() / 3) + 1;
  for (const std::string_view name : names) {
    std::vector<size_t> row(name.size() + 1);
    for (size_t j = 0; j <= name.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= given.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t replaced = diagonal + (given[i - 1] != name[j - 1]);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = std::string(name);
  }
  return best;
}

std::string allowed_text(const SettingRow& row) {
  const auto bytes = [](double n) {
    const char* suffix = "";
    for (const char* s : {"KiB", "MiB", "GiB", "TiB"}) {
      if (n < 1024 || n != static_cast<double>(static_cast<uint64_t>(n)) ||
          static_cast<uint64_t>(n) % 1024 != 0)
        break;
      n /= 1024, suffix = s;
    }
    return fmt::format("{}{}", n, suffix);
  };
  switch (row.type) {
    case SettingType::kSwitch:
      return "";
    case SettingType::kOnOff:
      return "on | off";
    case SettingType::kUint:
    case SettingType::kFloat:
      return fmt::format("{}..{}", row.min, row.max);
    case SettingType::kBytes:
      return fmt::format("{}..{}, suffixes KiB MiB GiB KB MB GB", bytes(row.min), bytes(row.max));
    case SettingType::kDuration:
      return fmt::format("{}..{} s, suffixes ms s min", row.min / 1000, row.max / 1000);
    case SettingType::kText:
      return "text";
    case SettingType::kList:
      return "texts separated by commas";
    case SettingType::kChoice: {
      std::string out;
      for_each_part(row.choices, '|',
                    [&](std::string_view c) { out += fmt::format("{}{}", out.empty() ? "" : " | ", c); });
      return out;
    }
  }
  return "";
}

Result<Settings> resolve_settings(std::span<const SettingRow> rows, std::string_view command,
                                  const std::map<std::string, std::string>& cli,
                                  const std::map<std::string, std::string>& environment,
                                  const std::string& config_path) {
  std::map<std::string, std::string> file;
  if (!config_path.empty()) {
    TALLY_TRY(file, read_config(config_path));
  }
  for (const auto& [key, value] : file) {
    const bool known =
        std::any_of(rows.begin(), rows.end(), [&](const SettingRow& r) { return r.name == key; });
    if (known) continue;
    std::vector<std::string_view> names;
    for (const SettingRow& r : rows) names.push_back(r.name);
    const auto near = nearest_name(key, names);
    return Error{ErrorCode::kUsage,
                 fmt::format("--config {}: unknown key {}{}", config_path, escape_for_log(key, 64),
                             near ? fmt::format("; did you mean {}?", *near) : "")};
  }
  Settings settings;
  for (const SettingRow& row : rows) {
    if (!has_word(row.commands, command)) continue;
    const std::string name(row.name);
    const auto in_cli = cli.find(name);
    const auto in_env = environment.find(variable_name(name));
    const auto in_file = file.find(name);
    SettingValue value{std::string(row.fallback), SettingSource::kDefault};
    std::string place = fmt::format("--{}", name);
    if (in_file != file.end()) {
      value = {in_file->second, SettingSource::kFile};
      place = fmt::format("--config {}: {}", config_path, name);
    }
    if (in_env != environment.end()) {
      value = {in_env->second, SettingSource::kEnvironment};
      place = variable_name(name);
    }
    if (in_cli != cli.end()) {
      value = {in_cli->second, SettingSource::kCommandLine};
      place = fmt::format("--{}", name);
    }
    if (value.source != SettingSource::kDefault) {
      if (!row.built) return Error{ErrorCode::kUsage, fmt::format("{} is not supported yet", place)};
      if (!valid(row, value.text)) {
        return Error{ErrorCode::kUsage, fmt::format("{}: '{}' is not allowed; allowed: {}", place,
                                                    escape_for_log(value.text, 64), allowed_text(row))};
      }
    }
    settings.types_[name] = row.type;
    settings.values_[name] = std::move(value);
  }
  return settings;
}

bool Settings::on(std::string_view name) const { return text(name) == "on"; }

const std::string& Settings::text(std::string_view name) const {
  const auto found = values_.find(name);
  TALLY_CHECK(found != values_.end(), "no such setting for this command: " + std::string(name));
  return found->second.text;
}

uint64_t Settings::number(std::string_view name) const {
  const std::string& value = text(name);
  if (value.empty()) return 0;
  switch (types_.find(name)->second) {
    case SettingType::kBytes:
      return static_cast<uint64_t>(parse_bytes(value).value_or(0));
    case SettingType::kDuration:
      return static_cast<uint64_t>(parse_duration_ms(value).value_or(0));
    default:
      return parse_uint(value).value_or(0);
  }
}

double Settings::real(std::string_view name) const { return parse_real(text(name)).value_or(0); }

std::vector<std::string> Settings::list(std::string_view name) const {
  std::vector<std::string> parts;
  for_each_part(text(name), ',', [&](std::string_view part) { parts.emplace_back(part); });
  return parts;
}

bool Settings::given(std::string_view name) const {
  const auto found = values_.find(name);
  return found != values_.end() && found->second.source != SettingSource::kDefault;
}

std::string settings_help(std::span<const SettingRow> rows, std::string_view command) {
  std::string out;
  for (const SettingRow& row : rows) {
    if (!has_word(row.commands, command) || !row.built) continue;
    out += fmt::format("  --{:<24} {}", row.name, row.help);
    if (const std::string allowed = allowed_text(row); !allowed.empty()) out += fmt::format(" ({})", allowed);
    if (!row.fallback.empty() && row.type != SettingType::kSwitch) out += fmt::format(" [{}]", row.fallback);
    out += '\n';
  }
  return out;
}

std::string settings_page(std::span<const SettingRow> rows) {
  std::string out =
      "# Settings\n\nMade from the one table of settings (apps/settings.inc) by `tally help --markdown`; a "
      "test compares.\n"
      "Precedence: command line > environment > `--config FILE` (a JSON object of names without dashes in "
      "front) > default.\n\n"
      "| flag | variable | allowed | default | commands | meaning |\n|---|---|---|---|---|---|\n";
  for (const SettingRow& row : rows) {
    out += fmt::format("| `--{}` | `{}` | {} | {} | {} | {}{} |\n", row.name, variable_name(row.name),
                       markdown(allowed_text(row)),
                       row.fallback.empty() ? "none" : fmt::format("`{}`", row.fallback), row.commands,
                       markdown(row.help), row.built ? "" : " (not supported yet)");
  }
  return out;
}

}  // namespace tally::base
