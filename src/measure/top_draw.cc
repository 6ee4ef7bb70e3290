// How a look at a server is drawn: a function of the state and the size.
#include "base/utf8.h"
#include "measure/shown.h"
#include "measure/top.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr std::string_view kReset = "\x1b[0m", kBold = "\x1b[1m";
// Blue, orange, and their mixture's place: told apart by who cannot tell red from green.
constexpr std::string_view kPrefill = "\x1b[38;5;33m", kDecode = "\x1b[38;5;208m", kMixed = "\x1b[38;5;177m",
                           kDim = "\x1b[38;5;244m";

std::string shown(const std::optional<double>& value, double scale = 1) {
  return value ? three_digits(*value * scale) : "-";
}
std::string counted(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f}", *value) : "-";
}
double mib(double bytes) { return bytes / 0x1p20; }

// A line that knows how many columns it has filled, codes not counted.
class Line {
 public:
  explicit Line(const TopView& view) : view_(view) {}
  Line& put(std::string_view text, std::string_view code = "") {
    const std::string_view fits = text.substr(0, view_.columns - std::min(view_.columns, filled_));
    filled_ += fits.size();
    const bool codes = view_.has_colour && !code.empty() && !fits.empty();
    text_.append(codes ? code : "").append(fits).append(codes ? kReset : "");
    return *this;
  }
  size_t left() const { return view_.columns - std::min(view_.columns, filled_); }
  const std::string& text() const { return text_; }

 private:
  const TopView& view_;
  size_t filled_ = 0;
  std::string text_;
};

class Drawing {
 public:
  Drawing(const TopState& s, const TopView& view) : s_(s), view_(view) {}

  std::string draw() {
    heading(), numbers(), quantiles(), accounts(), steps(), blocks();
    std::string out;
    for (size_t i = 0; i < std::min(lines_.size(), view_.rows); ++i) out += lines_[i] + '\n';
    return out;
  }

 private:
  void add(const Line& line) { lines_.push_back(line.text()); }
  bool has_room() const { return lines_.size() + 1 < view_.rows; }

  void heading() {
    Line line(view_);
    line.put("tally top ", kBold).put(base::escape_for_log(s_.url, 60));
    if (!s_.model.empty()) line.put("  ").put(base::escape_for_log(s_.model, 60));
    line.put(fmt::format("  {:.0f} s  q quits", s_.watched_s), kDim);
    add(line);
    if (!s_.trouble.empty())
      add(Line(view_).put("no answer: ", kBold).put(base::escape_for_log(s_.trouble, 200)));
  }

  // [####....] of `columns` columns, at most.
  static std::string bar(double share, size_t columns) {
    if (columns < 4) return "";
    const auto inside = static_cast<double>(columns - 2);
    const auto filled = static_cast<size_t>(std::lround(std::clamp(share, 0., 1.) * inside));
    return '[' + std::string(filled, '#') + std::string(columns - 2 - filled, '.') + ']';
  }

  void numbers() {
    add(Line(view_).put(fmt::format("running {:<6} waiting {:<6} preempted {}", counted(s_.running),
                                    counted(s_.waiting), counted(s_.preemptions))));
    add(Line(view_)
            .put("tokens/s  ")
            .put(fmt::format("prefill {:<9}", shown(s_.prefill_per_s)), kPrefill)
            .put(fmt::format("decode {}", shown(s_.decode_per_s)), kDecode));
    if (!s_.kv_usage) return;
    Line line(view_);
    line.put(fmt::format("KV {:5.1f} % ", 100 * *s_.kv_usage));
    add(line.put(bar(*s_.kv_usage, std::min<size_t>(line.left(), 50))));
  }

  void quantiles() {
    for (const TopQuantiles& q : s_.quantiles) {
      if (!has_room()) return;
      add(Line(view_).put(fmt::format("{:<5}ms  P50 {:<8} P90 {:<8} P99 {}", q.name, shown(q.p50, 1e3),
                                      shown(q.p90, 1e3), shown(q.p99, 1e3))));
    }
  }

  void accounts() {
    if (s_.accounts.empty() || !has_room()) return;
    add(Line(view_).put(fmt::format("{:<12}{:>10}{:>10}{:>10}", "MiB", "planned", "reserved", "used"), kDim));
    double planned = 0, reserved = 0;
    for (const TopAccount& a : s_.accounts) {
      planned += a.planned_bytes, reserved += a.reserved_bytes;
      if (!has_room()) return;
      Line line(view_);
      line.put(fmt::format("{:<12}{:>10.1f}{:>10.1f}{:>10.1f} ", base::escape_for_log(a.name, 11),
                           mib(a.planned_bytes), mib(a.reserved_bytes), mib(a.used_bytes)));
      if (a.reserved_bytes > 0)
        line.put(bar(a.used_bytes / a.reserved_bytes, std::min<size_t>(line.left(), 24)));
      add(line);
    }
    if (has_room())
      add(Line(view_).put(fmt::format("{:<12}{:>10.1f}{:>10.1f}  measured {:.1f}, cap {:.1f}", "all",
                                      mib(planned), mib(reserved), mib(s_.measured_bytes),
                                      mib(s_.cap_bytes))));
  }

  static std::string_view code_of(StepKind kind) {
    return kind == StepKind::kPrefill ? kPrefill : kind == StepKind::kDecode ? kDecode : kMixed;
  }
  static char letter_of(StepKind kind) {
    return kind == StepKind::kPrefill ? 'P' : kind == StepKind::kDecode ? 'D' : 'M';
  }

  // The newest steps at the right, each as wide as it was long: a column is the median step.
  void steps() {
    if (s_.steps.empty() || lines_.size() + 2 >= view_.rows) return;
    std::vector<double> walls;
    for (const TopStep& step : s_.steps) walls.push_back(step.wall_s);
    std::nth_element(walls.begin(), walls.begin() + static_cast<std::ptrdiff_t>(walls.size() / 2),
                     walls.end());
    const double column_s = std::max(walls[walls.size() / 2], 1e-6);
    add(Line(view_)
            .put(fmt::format("steps, {} ms a column: ", three_digits(column_s * 1e3)), kDim)
            .put("P prefill ", kPrefill)
            .put("D decode ", kDecode)
            .put("M both", kMixed));
    struct Run {
      StepKind kind;
      size_t columns;
    };
    std::vector<Run> runs;  // newest first
    size_t filled = 0;
    for (auto step = s_.steps.rbegin(); step != s_.steps.rend() && filled < view_.columns; ++step) {
      const double wide = std::min(step->wall_s / column_s, static_cast<double>(view_.columns));
      const size_t columns =
          std::min(std::max<size_t>(1, static_cast<size_t>(std::lround(wide))), view_.columns - filled);
      runs.push_back({step->kind, columns}), filled += columns;
    }
    Line line(view_);
    for (auto run = runs.rbegin(); run != runs.rend(); ++run)
      line.put(std::string(run->columns, letter_of(run->kind)), code_of(run->kind));
    add(line);
  }

  // Of a large pool a cell is the busiest of some blocks.
  void blocks() {
    if (s_.blocks.empty() || lines_.size() + 2 >= view_.rows) return;
    constexpr size_t kRowsMost = 6;
    const size_t rows = std::min(kRowsMost, view_.rows - lines_.size() - 2);
    const size_t cells = std::max<size_t>(1, rows * view_.columns),
                 each = (s_.blocks.size() + cells - 1) / cells;
    add(Line(view_).put(fmt::format("{} blocks{}: . free, # held, s shared, c cached", s_.blocks.size(),
                                    each > 1 ? fmt::format(", {} a cell", each) : ""),
                        kDim));
    constexpr std::string_view kOrder = ".c#s";
    std::string map;
    for (size_t i = 0; i < s_.blocks.size(); i += each) {
      const std::string_view some = std::string_view(s_.blocks).substr(i, each);
      map += *std::max_element(some.begin(), some.end(),
                               [&](char a, char b) { return kOrder.find(a) < kOrder.find(b); });
    }
    for (size_t i = 0; i < map.size(); i += view_.columns)
      add(Line(view_).put(std::string_view(map).substr(i, view_.columns)));
  }

  const TopState& s_;
  const TopView& view_;
  std::vector<std::string> lines_;
};

json optional(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

}  // namespace

std::string draw_top(const TopState& state, const TopView& view) { return Drawing(state, view).draw(); }

std::string top_line(const TopState& s) {
  std::string out =
      fmt::format("running {} waiting {} KV {} % prefill {} decode {} tokens/s", counted(s.running),
                  counted(s.waiting), shown(s.kv_usage, 100), shown(s.prefill_per_s), shown(s.decode_per_s));
  for (const TopQuantiles& q : s.quantiles)
    if (q.p50) out += fmt::format(" {} {}/{} ms", q.name, shown(q.p50, 1e3), shown(q.p99, 1e3));
  if (s.measured_bytes > 0) out += fmt::format(" memory {:.0f} MiB", mib(s.measured_bytes));
  return out;
}

json top_json(const TopState& s) {
  json quantiles = json::object(), accounts = json::object();
  for (const TopQuantiles& q : s.quantiles)
    quantiles[q.name] = {{"p50_s", optional(q.p50)}, {"p90_s", optional(q.p90)}, {"p99_s", optional(q.p99)}};
  for (const TopAccount& a : s.accounts)
    accounts[a.name] = {{"planned_bytes", a.planned_bytes},
                        {"reserved_bytes", a.reserved_bytes},
                        {"used_bytes", a.used_bytes}};
  const auto count = [&](char state) { return std::count(s.blocks.begin(), s.blocks.end(), state); };
  return {{"url", s.url},
          {"model", s.model},
          {"watched_s", s.watched_s},
          {"running", optional(s.running)},
          {"waiting", optional(s.waiting)},
          {"kv_usage", optional(s.kv_usage)},
          {"preemptions", optional(s.preemptions)},
          {"prefill_tokens_per_s", optional(s.prefill_per_s)},
          {"decode_tokens_per_s", optional(s.decode_per_s)},
          {"quantiles", std::move(quantiles)},
          {"accounts", std::move(accounts)},
          {"measured_bytes", s.measured_bytes},
          {"cap_bytes", s.cap_bytes},
          {"blocks",
           {{"free", count('.')}, {"held", count('#')}, {"shared", count('s')}, {"cached", count('c')}}},
          {"steps", s.steps.size()}};
}

}  // namespace tally::measure
