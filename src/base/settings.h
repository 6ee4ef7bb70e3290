#pragma once
// The settings machinery: one table of rows gives the command line, the environment, the config file, help
// and the docs page. Precedence: command line > environment (TALLY_NAME) > config file (JSON object) >
// default.

#include "base/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::base {

enum class SettingType : uint8_t {
  kSwitch,    // a flag without value; in the environment and the file: on or off
  kOnOff,     // on | off
  kUint,      // a whole number in [min, max]
  kFloat,     // a number in [min, max]
  kBytes,     // a number with suffix KiB MiB GiB KB MB GB or none; [min, max]
  kDuration,  // a number with suffix ms s min, or none (s); [min, max] in ms
  kText,
  kList,    // comma-separated texts
  kChoice,  // one of `choices`
};

struct SettingRow {
  std::string_view name;  // "kv-type"; the flag is --kv-type, the variable TALLY_KV_TYPE
  SettingType type = SettingType::kText;
  std::string_view fallback;  // as it would be written; "" = none
  double min = 0, max = 0;
  std::string_view choices;   // separated by '|'
  std::string_view commands;  // separated by blanks
  bool built = true;          // false: known, answered with "not supported yet"
  std::string_view help;
};

enum class SettingSource : uint8_t { kDefault, kFile, kEnvironment, kCommandLine };
std::string_view source_name(SettingSource source);

struct SettingValue {
  std::string text;
  SettingSource source = SettingSource::kDefault;
};

// Values of the rows that apply to one command, validated.
class Settings {
 public:
  bool on(std::string_view name) const;  // kSwitch, kOnOff
  uint64_t number(
      std::string_view name) const;  // kUint; kBytes in bytes, kDuration in ms; 0 if there is no value
  double real(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;
  bool given(std::string_view name) const;  // not the default
  const std::map<std::string, SettingValue, std::less<>>& values() const { return values_; }

 private:
  friend Result<Settings> resolve_settings(std::span<const SettingRow>, std::string_view,
                                           const std::map<std::string, std::string>&,
                                           const std::map<std::string, std::string>&, const std::string&);
  std::map<std::string, SettingValue, std::less<>> values_;
  std::map<std::string, SettingType, std::less<>> types_;
};

// Resolves every row of `command`. `cli` and `environment` map row names (without dashes) and variable names
// to texts; `config_path` is the --config file or "". Errors: kUsage (unknown name with the nearest one, bad
// unit, out of range; names the place, the value and what is allowed), kConfig (the file cannot be used),
// kNoInput.
Result<Settings> resolve_settings(std::span<const SettingRow> rows, std::string_view command,
                                  const std::map<std::string, std::string>& cli,
                                  const std::map<std::string, std::string>& environment,
                                  const std::string& config_path);

// "TALLY_KV_TYPE" for "kv-type".
std::string variable_name(std::string_view row_name);
// The closest of `names` to `given` by edit distance, if close enough to be a slip.
std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string_view> names);
// True if a blank-separated list holds a word.
bool has_word(std::string_view list, std::string_view word);

// What a value may be, for messages and pages: "0..65535", "on | off", …
std::string allowed_text(const SettingRow& row);
// `--help` of one command, and docs/settings.md.
std::string settings_help(std::span<const SettingRow> rows, std::string_view command);
std::string settings_page(std::span<const SettingRow> rows);

// Numbers with units; finite and non-negative. nullopt: not of that form.
std::optional<double> parse_bytes(std::string_view text);
std::optional<double> parse_duration_ms(std::string_view text);
std::optional<uint64_t> parse_uint(std::string_view text);
std::optional<double> parse_real(std::string_view text);

}  // namespace tally::base
