#include "bench_lists.h"

#include "base/log.h"
#include "base/machine.h"
#include "base/utf8.h"
#include "cli.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;

const base::SettingRow& find_row(std::string_view command, std::string_view name) {
  for (const base::SettingRow& row : setting_rows())
    if (row.name == name && base::has_word(row.commands, command)) return row;
  TALLY_UNREACHABLE("no such list");
}

Error refuse(std::string_view name, const std::string& value, const std::string& allowed) {
  return {ErrorCode::kUsage, fmt::format("--{}: '{}' is not allowed; allowed: {}", name,
                                         base::escape_for_log(value, 64), allowed)};
}

}  // namespace

base::Result<std::vector<uint32_t>> number_list(const base::Settings& settings, std::string_view command,
                                                std::string_view name) {
  const base::SettingRow& row = find_row(command, name);
  const std::string allowed =
      fmt::format("whole numbers {:.0f}..{:.0f} separated by commas", row.min, row.max);
  std::vector<uint32_t> numbers;
  for (const std::string& word : settings.list(name)) {
    const auto n = base::parse_uint(word);
    if (!n || static_cast<double>(*n) < row.min || static_cast<double>(*n) > row.max)
      return refuse(name, word, allowed);
    numbers.push_back(static_cast<uint32_t>(*n));
  }
  if (numbers.empty() && settings.given(name)) return refuse(name, settings.text(name), allowed);
  return numbers;
}

base::Result<std::vector<std::string>> word_list(const base::Settings& settings, std::string_view command,
                                                 std::string_view name) {
  std::string choices(find_row(command, name).choices);
  std::replace(choices.begin(), choices.end(), '|', ' ');
  const std::string allowed = choices + ", separated by commas";
  std::vector<std::string> words;
  for (const std::string& given : settings.list(name)) {
    const std::string word = lower(given);
    if (!base::has_word(choices, word)) return refuse(name, given, allowed);
    words.push_back(word);
  }
  if (words.empty() && settings.given(name)) return refuse(name, settings.text(name), allowed);
  return words;
}

base::Result<std::vector<kernels::Isa>> isa_list(const base::Settings& settings, std::string_view command) {
  TALLY_TRY(const std::vector<std::string> names, word_list(settings, command, "isa"));
  std::vector<kernels::Isa> isas;
  for (const kernels::IsaInfo& info : kernels::isas()) {
    const bool asked = std::find(names.begin(), names.end(), info.name) != names.end();
    if (asked && !kernels::host_has(info.isa)) {
      return Error{ErrorCode::kConfig,
                   fmt::format("--isa {}: this CPU has {}", info.name, kernels::host_isas())};
    }
    if ((asked || names.empty()) && kernels::host_has(info.isa)) isas.push_back(info.isa);
  }
  return isas;
}

Error no_argument(const std::string& argument) {
  return {ErrorCode::kUsage, fmt::format("{}: one argument too many", base::escape_for_log(argument, 64))};
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

}  // namespace tally::apps
