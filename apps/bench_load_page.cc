#include "bench_load_page.h"

#include "base/utf8.h"
#include "cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace tally::apps {
namespace {

using measure::Distribution;
using measure::Figures;
using measure::LoadBlock;
using measure::Percentile;
using measure::RequestRecord;
using nlohmann::json;

// Three significant digits.
std::string three(double value) {
  return fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
}
std::string ms(double seconds) { return three(seconds * 1e3); }

// "≥ x" where n is too small to bound the percentile from above.
std::string at_percentile(const Distribution& d, const Percentile& p) {
  if (d.n == 0) return "-";
  return (p.high ? "" : "≥") + ms(p.value);
}

// Pads by what is seen: "≥" is three bytes and one column.
std::string cell(const std::string& text, size_t width) {
  size_t seen = 0;
  for (const char c : text) seen += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return std::string(width > seen ? width - seen : 1, ' ') + text;
}

std::vector<const LoadBlock*> blocks_of(const LoadLevel& level, size_t server) {
  std::vector<const LoadBlock*> out;
  for (const StoredBlock& stored : level.blocks)
    if (stored.block.server == server) out.push_back(&stored.block);
  return out;
}

std::string joined(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) out += (out.empty() ? "" : "; ") + sentence;
  return out;
}

// What the heads of several blocks say, each sentence once.
std::vector<std::string> sentences(const std::vector<const LoadBlock*>& blocks, const char* key) {
  std::vector<std::string> out;
  for (const LoadBlock* block : blocks)
    for (const std::string& sentence : block->run.head.value(key, std::vector<std::string>()))
      if (std::find(out.begin(), out.end(), sentence) == out.end()) out.push_back(sentence);
  return out;
}

// The mean over blocks of a figure of `results`; absent where no block has it.
std::optional<double> mean_of(const std::vector<const LoadBlock*>& blocks, const char* key) {
  double sum = 0, n = 0;
  for (const LoadBlock* block : blocks) {
    const json& results = block->run.head["results"];
    if (!results.contains(key) || !results[key].is_number()) continue;
    sum += results[key].get<double>(), ++n;
  }
  return n > 0 ? std::optional(sum / n) : std::nullopt;
}

std::optional<double> most_of(const std::vector<const LoadBlock*>& blocks, const char* key) {
  std::optional<double> most;
  for (const LoadBlock* block : blocks) {
    const json& results = block->run.head["results"];
    if (results.contains(key) && results[key].is_number())
      most = std::max(most.value_or(0), results[key].get<double>());
  }
  return most;
}

void print_row(const std::string& name, const Figures& f) {
  fmt::print("{:<8}", name);
  const auto put = [](const std::string& text, size_t width) { fmt::print("{}", cell(text, width)); };
  put(fmt::format("{}", f.completed), 6);
  put(at_percentile(f.ttft_planned, f.ttft_planned.p50), 9),
      put(at_percentile(f.ttft_planned, f.ttft_planned.p95), 9);
  put(at_percentile(f.tpot, f.tpot.p50), 9), put(at_percentile(f.tpot, f.tpot.p95), 9);
  put(at_percentile(f.itl, f.itl.p50), 9), put(at_percentile(f.itl, f.itl.p99), 9);
  put(f.itl.n > 0 ? ms(f.itl.max) : "-", 9);
  put(at_percentile(f.e2e_planned, f.e2e_planned.p50), 9),
      put(at_percentile(f.e2e_planned, f.e2e_planned.p95), 9);
  put(three(f.output_throughput), 9), put(three(f.request_throughput), 8);
  fmt::print("\n");
}

void print_table(const std::vector<RequestRecord>& requests, const measure::Slo* slo, const Figures& all) {
  fmt::print("{:<8}{:>6}{:>18}{:>18}{:>18}{:>9}{:>18}{:>9}{:>8}\n", "ms", "n", "TTFT P50      P95",
             "TPOT P50      P95", "ITL P50      P99", "max", "E2E P50      P95", "tok/s", "req/s");
  const auto classes = measure::figures_by_class(requests, slo);
  // Short before long, as the answers take.
  std::vector<std::string> names;
  for (const auto& [name, figures] : classes) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return classes.at(a).e2e_planned.median < classes.at(b).e2e_planned.median;
  });
  for (const std::string& name : names)
    if (names.size() > 1) print_row(base::escape_for_log(name, 8), classes.at(name));
  print_row("all", all);
}

void print_errors(const std::vector<RequestRecord>& requests) {
  std::map<std::string, size_t> kinds;
  for (const RequestRecord& r : requests)
    if (!r.completed()) ++kinds[r.error];
  for (const auto& [kind, count] : kinds)
    fmt::print("errors: {} x {}\n", count, base::escape_for_log(kind, 160));
}

// Memory, KV cache and what the generator cost, as far as known.
void print_surroundings(const std::vector<const LoadBlock*>& blocks) {
  std::string line;
  const auto add = [&](const std::string& text) { line += (line.empty() ? "" : ", ") + text; };
  if (const auto peak = most_of(blocks, "peak_rss_anon_bytes"))
    add(fmt::format("memory peak {:.1f} MiB (RssAnon)", *peak / 0x1p20));
  if (const auto peak = most_of(blocks, "kv_peak_bytes"))
    add(fmt::format("KV peak {:.1f} MiB", *peak / 0x1p20));
  if (const auto share = mean_of(blocks, "kv_utilisation_mean"))
    add(fmt::format("KV utilisation {:.1f} % of held slots", *share * 100));
  if (const auto hits = mean_of(blocks, "prefix_hit_ratio"); hits && *hits > 0)
    add(fmt::format("prefix hits {:.1f} %", *hits * 100));
  if (const auto count = mean_of(blocks, "preemptions"); count && *count > 0)
    add(fmt::format("preemptions {:g}", *count));
  if (const auto share = mean_of(blocks, "client_cpu_share"))
    add(fmt::format("generator {:.1f} % CPU, lag P99 {:.2f} ms", *share * 100,
                    most_of(blocks, "client_lag_p99_ms").value_or(0)));
  if (!line.empty()) fmt::print("{}\n", line);
}

std::string bounds(const Distribution& d) {
  const Percentile& p = d.p50;
  if (d.n == 0) return "-";
  if (!p.low || !p.high) return fmt::format("{} ms (not bounded, n={})", ms(p.value), d.n);
  return fmt::format("{} ms ({}..{})", ms(p.value), ms(*p.low), ms(*p.high));
}

// "1.2..1.5": the least and the most that runs say; "-": of none.
std::string range_over(const std::vector<Figures>& runs, Distribution Figures::* of,
                       Percentile Distribution::* which) {
  std::optional<double> least, most;
  for (const Figures& f : runs) {
    if ((f.*of).n == 0) continue;
    const double value = ((f.*of).*which).value;
    least = std::min(least.value_or(value), value), most = std::max(most.value_or(value), value);
  }
  return least ? fmt::format("{}..{}", ms(*least), ms(*most)) : "-";
}

// Requests of a run depend on each other: how percentiles of several runs differ says more than an interval
// that takes them for independent.
void print_spread(const std::vector<const LoadBlock*>& blocks) {
  constexpr size_t kRunsMin = 3;
  if (blocks.size() < kRunsMin) return;
  std::vector<Figures> runs;
  for (const LoadBlock* block : blocks) runs.push_back(measure::figures_of(block->run.requests));
  const auto range = [&](Distribution Figures::* of) {
    return fmt::format("{}, P99 {}", range_over(runs, of, &Distribution::p50),
                       range_over(runs, of, &Distribution::p99));
  };
  fmt::print("over {} runs, ms: TTFT P50 {}; TPOT P50 {}; E2E P50 {}\n", runs.size(),
             range(&Figures::ttft_planned), range(&Figures::tpot), range(&Figures::e2e_planned));
}

std::string of_first(double value, double first) {
  return first > 0 && value > 0 ? fmt::format("{:.3f}", value / first) : "-";
}

// The first two servers' runs in pairs; of a single server each run against one that is still to come.
std::string compare_command(const LoadLevel& level, size_t servers) {
  std::map<uint32_t, std::map<size_t, std::string>> paths;  // repetition -> server
  for (const StoredBlock& stored : level.blocks)
    if (!stored.path.empty()) paths[stored.block.repetition][stored.block.server] = stored.path;
  std::string out;
  for (auto& [repetition, of] : paths) {
    if (servers > 1 && of.contains(0) && of.contains(1))
      out += fmt::format(" {} {}", base::escape_for_log(of[0]), base::escape_for_log(of[1]));
    else if (servers == 1)
      out += fmt::format(" {} OTHER", base::escape_for_log(of[0]));
  }
  return out.empty() ? "" : "tally compare" + out;
}

json block_json(const StoredBlock& stored, const std::string& server) {
  const json& head = stored.block.run.head;
  json out = {{"server", server},
              {"level", stored.block.level.value},
              {"loop", stored.block.level.is_open ? "open" : "closed"},
              {"repetition", stored.block.repetition},
              {"saved", stored.path}};
  for (const char* key :
       {"status", "valid", "invalid_reasons", "warnings", "results", "by_class", "steady", "workload"})
    out[key] = head.value(key, json());
  return out;
}

}  // namespace

void BenchLoadPage::print_level(const LoadLevel& level) const {
  for (size_t server = 0; server < servers_.size(); ++server) print_server(level, server);
  if (servers_.size() > 1) print_ratios(level);
  const std::string command = compare_command(level, servers_.size());
  if (!command.empty()) fmt::print("compare: {}\n", command);
  std::fflush(stdout);
}

void BenchLoadPage::print_server(const LoadLevel& level, size_t server) const {
  const auto blocks = blocks_of(level, server);
  if (blocks.empty()) return;
  const std::vector<RequestRecord> requests = measure::join_blocks(blocks);
  const measure::Slo* slo = spec_.has_slo() ? &spec_.slo : nullptr;
  const Figures all = measure::figures_of(requests, slo);
  fmt::print("\n{} ({}): {}, {} of {} requests completed in {:.1f} s; {}, seed {}, {}\n",
             base::escape_for_log(servers_[server].name, 64),
             base::escape_for_log(servers_[server].model, 64), level.level.text(), all.completed,
             all.requests(), all.duration_s, base::escape_for_log(spec_.workload.name, 64),
             spec_.workload.seed,
             level.level.is_open ? "open loop, latencies from the scheduled instant" : "closed loop");
  fmt::print("TTFT P50 {}, TPOT P50 {}, {} tokens/s, {} requests/s", bounds(all.ttft_planned),
             bounds(all.tpot), three(all.output_throughput), three(all.request_throughput));
  if (all.goodput) fmt::print(", goodput {} requests/s", three(*all.goodput));
  const std::vector<std::string> reasons = sentences(blocks, "invalid_reasons");
  fmt::print("\n{}{}\n", reasons.empty() ? "VALID" : "INVALID: ", joined(reasons));
  print_table(requests, slo, all);
  print_spread(blocks);
  print_surroundings(blocks);
  print_errors(requests);
  for (const std::string& warning : sentences(blocks, "warnings")) fmt::print("warning: {}\n", warning);
  for (const StoredBlock& stored : level.blocks)
    if (stored.block.server == server && !stored.path.empty())
      fmt::print("saved: {}\n", base::escape_for_log(stored.path));
}

void BenchLoadPage::print_ratios(const LoadLevel& level) const {
  const auto first_blocks = blocks_of(level, 0);
  if (first_blocks.empty()) return;
  const Figures first = measure::figures_of(measure::join_blocks(first_blocks));
  for (size_t server = 1; server < servers_.size(); ++server) {
    const auto blocks = blocks_of(level, server);
    if (blocks.empty()) continue;
    const Figures f = measure::figures_of(measure::join_blocks(blocks));
    fmt::print(
        "\n{} / {}: TTFT {}, TPOT {}, E2E {} (medians, below 1 is faster), tokens/s {}; verdicts: tally "
        "compare\n",
        base::escape_for_log(servers_[server].name, 64), base::escape_for_log(servers_[0].name, 64),
        of_first(f.ttft_planned.median, first.ttft_planned.median),
        of_first(f.tpot.median, first.tpot.median), of_first(f.e2e_planned.median, first.e2e_planned.median),
        of_first(f.output_throughput, first.output_throughput));
  }
}

void BenchLoadPage::print_knee(const measure::CapacitySearch& search) const {
  const auto knee = search.knee();
  if (!knee) return fmt::print("\nknee: none; not even the smallest level has 95 % good requests\n");
  fmt::print("\nknee: {}, the largest level with 95 % good requests{}\n", knee->text(),
             search.is_bounded() ? "" : " that was tried");
}

void BenchLoadPage::print_json(const std::vector<LoadLevel>& levels, const std::vector<std::string>& notes,
                               const measure::CapacitySearch* search) const {
  json out = {{"servers", json::array()}, {"notes", notes}, {"results", json::array()}};
  for (const measure::ServerFacts& s : servers_)
    out["servers"].push_back({{"name", s.name},
                              {"host", s.host},
                              {"model", s.model},
                              {"kind", s.kind},
                              {"takes_ids", s.takes_ids},
                              {"is_local", s.is_local}});
  for (const LoadLevel& level : levels)
    for (const StoredBlock& stored : level.blocks)
      out["results"].push_back(block_json(stored, servers_[stored.block.server].name));
  if (search != nullptr) {
    const auto knee = search->knee();
    out["knee"] = knee ? json(knee->value) : json(nullptr);
  }
  write_json(out);
}

}  // namespace tally::apps
