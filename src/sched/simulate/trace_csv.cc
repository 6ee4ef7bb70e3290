// CSV traces, by the names in their header: ours, the Azure LLM inference trace, BurstGPT.

#include "base/settings.h"
#include "base/utf8.h"
#include "sched/simulate/trace_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

namespace tally::sched::simulate {

namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

enum Role : uint8_t { kArrival, kInput, kOutput, kGroup, kShared, kChoices, kIgnored };
constexpr size_t kRoleCount = kIgnored;

struct ColumnName {
  std::string_view name;  // in lower case
  Role role;
};
constexpr ColumnName kColumns[] = {
    {"arrival", kArrival},        {"input", kInput},
    {"output", kOutput},          {"group", kGroup},
    {"shared", kShared},          {"n", kChoices},
    {"timestamp", kArrival},      {"contexttokens", kInput},
    {"generatedtokens", kOutput}, {"request tokens", kInput},
    {"response tokens", kOutput}, {"model", kIgnored},
    {"total tokens", kIgnored},   {"log type", kIgnored},
    {"session id", kIgnored},     {"elapsed time", kIgnored},
};
// Of BurstGPT, where an answer of no tokens is a request that failed.
constexpr std::string_view kFailsAtZero = "response tokens";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t comma = line.find(',');
    out.push_back(trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return out;
    line.remove_prefix(comma + 1);
  }
}

struct Header {
  std::vector<std::string_view> names;
  std::array<size_t, kRoleCount> column{};  // of a role; npos: there is none
  bool fails_at_zero = false;

  bool has(Role role) const { return column[role] != std::string_view::npos; }
};

Result<Header> read_header(size_t line, std::string_view text) {
  constexpr std::string_view kAllowed =
      "arrival, input, output and if wanted group, shared, n; or TIMESTAMP, ContextTokens, GeneratedTokens; "
      "or "
      "Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type";
  Header out;
  out.column.fill(std::string_view::npos);
  out.names = split(text);
  for (size_t i = 0; i < out.names.size(); ++i) {
    const std::string name = lower(out.names[i]);
    const auto known = std::ranges::find(kColumns, name, &ColumnName::name);
    if (known == std::end(kColumns))
      return bad_value({line, "of the header"}, out.names[i], std::string(kAllowed));
    if (known->role == kIgnored) continue;
    if (out.has(known->role))
      return bad_line(line, fmt::format("two columns of the header mean the same: {} and {}",
                                        out.names[out.column[known->role]], out.names[i]));
    out.column[known->role] = i;
    out.fails_at_zero = out.fails_at_zero || name == kFailsAtZero;
  }
  for (const Role role : {kArrival, kInput, kOutput}) {
    if (!out.has(role))
      return bad_line(line,
                      fmt::format("the header has no column {}; allowed: {}", kColumns[role].name, kAllowed));
  }
  if (out.has(kGroup) != out.has(kShared))
    return bad_line(line, "the header has one of group and shared; allowed: both or none");
  return out;
}

class CsvReader {
 public:
  explicit CsvReader(Header header) : header_(std::move(header)) {}

  Result<void> add(size_t line, std::string_view text) {
    const std::vector<std::string_view> cells = split(text);
    if (cells.size() != header_.names.size())
      return bad_line(
          line, fmt::format("{} fields; allowed: {}, as in the header", cells.size(), header_.names.size()));
    const auto place = [&](Role role) { return Place{line, header_.names[header_.column[role]]}; };
    const auto cell = [&](Role role) { return cells[header_.column[role]]; };
    TraceRequest r;
    TALLY_TRY(r.arrival, parse_instant(place(kArrival), cell(kArrival)));
    TALLY_TRY(r.output,
              parse_number(place(kOutput), cell(kOutput), header_.fails_at_zero ? 0 : 1, kTokensMax));
    if (r.output == 0) {
      ++trace_.skipped;
      return {};
    }
    TALLY_TRY(r.prompt, parse_number(place(kInput), cell(kInput), 1, kTokensMax));
    if (header_.has(kShared)) {
      TALLY_TRY(r.shared, parse_number(place(kShared), cell(kShared), 0, r.prompt));
      TALLY_TRY(const uint32_t group, parse_number(place(kGroup), cell(kGroup), 0, UINT32_MAX));
      r.segment = segment_of(group);
    }
    if (header_.has(kChoices)) {
      TALLY_TRY(r.choices, parse_number(place(kChoices), cell(kChoices), 1, kChoicesMax));
    }
    trace_.requests.push_back(r);
    return {};
  }

  Trace&& take() { return std::move(trace_); }

 private:
  uint32_t segment_of(uint32_t group) {
    const auto [at, fresh] = groups_.emplace(group, static_cast<uint32_t>(trace_.segments.size()));
    if (fresh) trace_.segments.push_back(group);
    return at->second;
  }

  Header header_;
  Trace trace_;
  std::unordered_map<uint32_t, uint32_t> groups_;  // index in trace_.segments; only looked up
};

Result<Trace> parse_csv(std::string_view text) {
  std::optional<CsvReader> reader;
  for (size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = take_line(text);
    if (trim(row).empty()) continue;
    if (!reader) {
      TALLY_TRY(Header header, read_header(line, row));
      reader.emplace(std::move(header));
      continue;
    }
    TALLY_TRY_VOID(reader->add(line, row));
  }
  if (!reader) return Error{ErrorCode::kBadData, "empty; a trace has a header and a line for each request"};
  return reader->take();
}

// Days from 1970-01-01 to a date of the proleptic Gregorian calendar.
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = year / 400, of_era = year % 400;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// Takes exactly `digits` digits of a value in [min, max] off the text; -1: they are not there.
int64_t take_digits(std::string_view& text, size_t digits, int64_t min, int64_t max) {
  int64_t value = 0;
  if (text.size() < digits) return -1;
  for (size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return -1;
    value = 10 * value + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return value >= min && value <= max ? value : -1;
}

bool take(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// Takes "" or ".25" off the text: microseconds, further decimals cut. -1: a point without digits.
int64_t take_fraction(std::string_view& text) {
  if (!take(text, ".")) return 0;
  int64_t us = 0;
  size_t digits = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; ++digits, text.remove_prefix(1)) {
    if (digits < 6) us = 10 * us + (text[0] - '0');
  }
  if (digits == 0) return -1;
  for (; digits < 6; ++digits) us *= 10;
  return us;
}

// "2023-11-16 18:17:03.9799600", and with Z or +00:00 behind it.
std::optional<Tick> parse_date(std::string_view text) {
  const int64_t year = take_digits(text, 4, 1970, 9999);
  if (year < 0 || !take(text, "-")) return std::nullopt;
  const int64_t month = take_digits(text, 2, 1, 12);
  if (month < 0 || !take(text, "-")) return std::nullopt;
  const int64_t day = take_digits(text, 2, 1, 31);
  if (day < 0 || !take(text, " T")) return std::nullopt;
  int64_t seconds = 0;
  for (const auto& [limit, end] : {std::pair{23, ":"}, {59, ":"}, {60, ""}}) {
    const int64_t part = take_digits(text, 2, 0, limit);
    if (part < 0 || (*end != '\0' && !take(text, end))) return std::nullopt;
    seconds = 60 * seconds + part;
  }
  const int64_t fraction = take_fraction(text);
  if (fraction < 0) return std::nullopt;
  if (!take(text, "Z") && !text.empty()) {
    const int64_t sign = text.front() == '-' ? 1 : -1;  // local time is ahead of UTC by a positive offset
    if (!take(text, "+-")) return std::nullopt;
    const int64_t hours = take_digits(text, 2, 0, 23);
    if (hours < 0 || !take(text, ":")) return std::nullopt;
    const int64_t minutes = take_digits(text, 2, 0, 59);
    if (minutes < 0) return std::nullopt;
    seconds += sign * 60 * (60 * hours + minutes);
  }
  if (!text.empty()) return std::nullopt;
  return (days_from_civil(year, month, day) * 86400 + seconds) * 1'000'000 + fraction;
}

std::optional<Tick> parse_seconds(std::string_view text) {
  int64_t seconds = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (ec != std::errc() || seconds < 0 || seconds > 1'000'000'000'000 || text[0] == '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  const int64_t fraction = take_fraction(text);
  if (fraction < 0 || !text.empty()) return std::nullopt;
  return seconds * 1'000'000 + fraction;
}

}  // namespace

Error bad_line(size_t line, const std::string& what) {
  return {ErrorCode::kBadData, fmt::format("line {}: {}", line, what)};
}

Error bad_value(const Place& place, std::string_view value, const std::string& allowed) {
  return {ErrorCode::kBadData,
          fmt::format("line {}, column {}: '{}' is not allowed; allowed: {}", place.line,
                      base::escape_for_log(place.column, 64), base::escape_for_log(value, 64), allowed)};
}

Result<uint32_t> parse_number(const Place& place, std::string_view text, uint32_t min, uint32_t max) {
  const auto n = base::parse_uint(text);
  if (!n || *n < min || *n > max)
    return bad_value(place, text, fmt::format("a whole number {}..{}", min, max));
  return static_cast<uint32_t>(*n);
}

Result<Tick> parse_instant(const Place& place, std::string_view text) {
  const bool is_date = text.find(':') != std::string_view::npos;
  const std::optional<Tick> tick = is_date ? parse_date(text) : parse_seconds(text);
  if (!tick) return bad_value(place, text, "seconds (12.5), or a date and time (2023-11-16 18:17:03.97)");
  return *tick;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

Result<Trace> parse_trace(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool objects = first != std::string_view::npos && text[first] == '{';
  TALLY_TRY(Trace trace, objects ? parse_json_lines(text) : parse_csv(text));
  if (trace.requests.empty())
    return Error{ErrorCode::kBadData,
                 fmt::format("no request to replay; {} that had failed were skipped", trace.skipped)};
  if (trace.requests.size() > kRequestsMax)
    return Error{ErrorCode::kBadData,
                 fmt::format("{} requests; at most {} are allowed", trace.requests.size(), kRequestsMax)};
  if (trace.sequences() > kSequencesMax)
    return Error{ErrorCode::kBadData,
                 fmt::format("{} choices of all requests together; at most {} are allowed", trace.sequences(),
                             kSequencesMax)};
  std::ranges::stable_sort(trace.requests, {}, &TraceRequest::arrival);
  const Tick begin = trace.requests.front().arrival;
  for (TraceRequest& r : trace.requests) r.arrival -= begin;
  return trace;
}

}  // namespace tally::sched::simulate
