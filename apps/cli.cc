#include "cli.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

extern char** environ;

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::SettingRow;
using base::SettingType;

constexpr SettingRow kRows[] = {
#define TALLY_SETTING(name, type, fallback, min, max, choices, commands, built, help) \
  {name, SettingType::type, fallback, min, max, choices, commands, built, help},
#include "settings.inc"
#undef TALLY_SETTING
};

std::map<std::string, std::string> tally_environment() {
  std::map<std::string, std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view pair(*e);
    const size_t equals = pair.find('=');
    if (pair.starts_with("TALLY_") && equals != std::string_view::npos) {
      out.emplace(pair.substr(0, equals), pair.substr(equals + 1));
    }
  }
  return out;
}

Error unknown_flag(const Command& command, const std::string& flag) {
  std::vector<std::string_view> names;
  for (const SettingRow& row : kRows) {
    if (base::has_word(row.commands, settings_name(command))) names.push_back(row.name);
  }
  const std::string name = flag.substr(0, flag.find('='));  // --flag=value
  const size_t dashes = name.find_first_not_of('-');
  const auto near =
      base::nearest_name(name.substr(dashes == std::string::npos ? name.size() : dashes), names);
  return {ErrorCode::kUsage,
          fmt::format("{}: unknown flag{}; see tally help {}", base::escape_for_log(flag, 64),
                      near ? fmt::format("; did you mean --{}?", *near) : "", command.name)};
}

// CLI11 knows that a value is missing, not what it may be.
Error missing_value(const Command& command, const std::string& what) {
  for (const SettingRow& row : kRows) {
    const std::string flag = fmt::format("--{}", row.name);
    if (what.starts_with(flag + ":") && base::has_word(row.commands, settings_name(command))) {
      return {ErrorCode::kUsage,
              fmt::format("{}: a value is missing; allowed: {}", flag, base::allowed_text(row))};
    }
  }
  return {ErrorCode::kUsage, what};
}

}  // namespace

std::span<const SettingRow> setting_rows() { return kRows; }

std::string settings_name(const Command& command) {
  std::string name(command.name);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

base::Result<Invocation> parse(const Command& command, std::span<const std::string> arguments) {
  Invocation call;
  std::string config;
  std::map<std::string, std::string> cli;
  std::deque<std::pair<std::string, std::string>> values;  // stable addresses for CLI11
  std::deque<std::pair<std::string, bool>> switches;

  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_option("--config", config);
  for (const SettingRow& row : kRows) {
    if (!base::has_word(row.commands, settings_name(command))) continue;
    const std::string flag = fmt::format("--{}", row.name);
    if (row.type == SettingType::kSwitch) {
      app.add_flag(flag, switches.emplace_back(row.name, false).second);
    } else {
      const std::string names = row.name == std::string_view("out") ? "-o," + flag : flag;
      app.add_option(names, values.emplace_back(row.name, "").second)->take_last();
    }
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them last first
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch& e) {
    return missing_value(command, e.what());
  } catch (const CLI::ParseError& e) {
    return Error{ErrorCode::kUsage, e.what()};
  }
  for (const std::string& extra : app.remaining()) {
    if (extra.size() > 1 && extra[0] == '-') return unknown_flag(command, extra);
    call.arguments.push_back(extra);
  }
  for (const auto& [name, value] : values) {
    if (app.count(fmt::format("--{}", name)) > 0) cli[name] = value;
  }
  for (const auto& [name, on] : switches) {
    if (on) cli[name] = "on";
  }
  TALLY_TRY(call.settings,
            base::resolve_settings(kRows, settings_name(command), cli, tally_environment(), config));
  return call;
}

std::string cache_directory() {
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "/tally"}, {"HOME", "/.cache/tally"}}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value == '/') return std::string(value) + below;
  }
  return "";
}

bool colour_forbidden() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

std::string client_api_key() {
  const char* value = std::getenv("TALLY_API_KEY");
  return value == nullptr ? "" : value;
}

void write_json(const nlohmann::json& value) {
  fmt::print("{}\n", value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

int fail(const base::Error& error) {
  fmt::print(stderr, "tally: {}\n", error.message);
  return static_cast<int>(error.code);
}

}  // namespace tally::apps
