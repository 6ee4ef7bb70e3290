// From changes to arms and contrasts, and the rounds in which they run.
#include "measure/ablate.h"

#include "base/check.h"
#include "base/utf8.h"
#include "measure/load_draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

// Settings that may change the bits of an answer, by Law 1. Any other that does is a defect, and makes the
// comparison INVALID.
constexpr std::array<std::string_view, 5> kMayChangeBits{"attention", "chat-template", "kv-check", "kv-sinks",
                                                         "kv-type"};
constexpr size_t kArmsMax = 32;
constexpr uint32_t kStandardRounds = 8;
constexpr int kAttempts = 3;
constexpr uint64_t kOrderStream = 0xab1a7e;

Flags with(Flags flags, const Flags& set) {
  for (const auto& [name, value] : set) flags[name] = value;
  return flags;
}

class Designer {
 public:
  Designer(const AblateFile& file, const ResolveFlags& resolve) : file_(file), resolve_(resolve) {}

  Result<AblateDesign> design() {
    TALLY_TRY_VOID(add("base", "base", file_.base));
    TALLY_TRY_VOID(check_names());
    TALLY_TRY_VOID(add_vary());
    TALLY_TRY_VOID(add_ladder());
    for (size_t i = 0; i < file_.interactions.size(); ++i)
      TALLY_TRY_VOID(add_interaction(fmt::format("interactions[{}]", i), file_.interactions[i]));
    if (out_.contrasts.empty())
      return Error{ErrorCode::kUsage,
                   "nothing varies: vary or ladder must have a value that is not the base's"};
    if (out_.arms.size() > kArmsMax)
      return Error{ErrorCode::kUsage,
                   fmt::format("{} arms; at most {} are allowed", out_.arms.size(), kArmsMax)};
    return std::move(out_);
  }

 private:
  // The arm of these flags: one there is, of the same effective settings, or a new one.
  Result<size_t> add(const std::string& where, const std::string& name, const Flags& flags) {
    auto settings = resolve_(flags);
    if (!settings)
      return Error{settings.error().code, fmt::format("{}: {}", where, settings.error().message)};
    const auto same = std::find_if(out_.arms.begin(), out_.arms.end(),
                                   [&](const Arm& arm) { return arm.settings == *settings; });
    if (same != out_.arms.end()) return static_cast<size_t>(same - out_.arms.begin());
    out_.arms.push_back({name, flags, std::move(*settings)});
    return out_.arms.size() - 1;
  }

  void contrast(size_t from, size_t to) {
    const bool known = std::any_of(out_.contrasts.begin(), out_.contrasts.end(),
                                   [&](const Contrast& c) { return c.from == from && c.to == to; });
    if (from != to && !known) out_.contrasts.push_back({from, to});
  }

  Result<void> check_names() {
    for (const auto* list : {&file_.vary, &file_.ladder}) {
      for (const Change& change : *list) {
        if (!changes_.emplace(change.name, &change).second)
          return Error{ErrorCode::kUsage,
                       fmt::format("{}: two changes have this name", base::escape_for_log(change.name, 64))};
      }
    }
    return {};
  }

  Result<void> add_vary() {
    for (const Change& change : file_.vary) {
      const std::string where = fmt::format("vary.{}", change.set.begin()->first);
      const size_t known = out_.arms.size();
      TALLY_TRY(const size_t arm, add(where, change.name, with(file_.base, change.set)));
      if (arm < known)
        out_.notes.push_back(
            fmt::format("{}: the same as {}: no arm of its own", change.name, out_.arms[arm].name));
      else
        contrast(0, arm);
    }
    return {};
  }

  Result<void> add_ladder() {
    Flags flags = file_.base;
    size_t before = 0;
    for (size_t i = 0; i < file_.ladder.size(); ++i) {
      flags = with(std::move(flags), file_.ladder[i].set);
      const std::string where = fmt::format("ladder[{}]", i);
      TALLY_TRY(const size_t arm, add(where, file_.ladder[i].name, flags));
      if (arm == before) return Error{ErrorCode::kUsage, fmt::format("{}: changes nothing", where)};
      contrast(before, arm);
      contrast(0, arm);
      before = arm;
    }
    return {};
  }

  Result<void> add_interaction(const std::string& where, const std::pair<std::string, std::string>& names) {
    std::array<const Change*, 2> changes{};
    for (const size_t i : {0u, 1u}) {
      const std::string& name = i == 0 ? names.first : names.second;
      const auto at = changes_.find(name);
      if (at == changes_.end())
        return Error{ErrorCode::kUsage, fmt::format("{}: '{}' is no change of vary or ladder", where,
                                                    base::escape_for_log(name, 64))};
      changes[i] = at->second;
    }
    const auto& [x, y] = changes;
    for (const auto& [flag, value] : x->set)
      if (y->set.contains(flag))
        return Error{ErrorCode::kUsage, fmt::format("{}: both changes set {}", where, flag)};
    Interaction out{x->name, y->name, 0, 0, 0};
    TALLY_TRY(out.first, add(where, x->name + " alone", with(file_.base, x->set)));
    TALLY_TRY(out.second, add(where, y->name + " alone", with(file_.base, y->set)));
    TALLY_TRY(out.both,
              add(where, fmt::format("{} + {}", x->name, y->name), with(with(file_.base, x->set), y->set)));
    if (out.first == 0 || out.second == 0)
      return Error{ErrorCode::kUsage, fmt::format("{}: one of them changes nothing of the base", where)};
    out_.interactions.push_back(std::move(out));
    return {};
  }

  const AblateFile& file_;
  const ResolveFlags& resolve_;
  std::map<std::string, const Change*> changes_;
  AblateDesign out_;
};

// The run of an arm, made again while its own audit says that it counts for nothing.
Result<Run> valid_run(size_t arm, uint32_t round, ArmRunner& runner) {
  for (int attempt = 1;; ++attempt) {
    TALLY_TRY(Run run, runner.run(arm, round));
    const bool is_valid = run.head.is_object() && run.head.value("valid", false);
    if (is_valid || attempt == kAttempts || runner.is_stopped()) return run;
  }
}

}  // namespace

Result<AblateDesign> ablate_design(const AblateFile& file, const ResolveFlags& resolve) {
  auto out = Designer(file, resolve).design();
  if (!out)
    return Error{out.error().code,
                 fmt::format("{}: {}", base::escape_for_log(file.path), out.error().message)};
  return out;
}

bool must_give_equal_bits(const Arm& a, const Arm& b) {
  const auto value = [](const Arm& arm, std::string_view name) {
    const auto at = arm.settings.find(std::string(name));
    return at == arm.settings.end() ? std::string() : at->second;
  };
  return std::all_of(kMayChangeBits.begin(), kMayChangeBits.end(),
                     [&](std::string_view name) { return value(a, name) == value(b, name); });
}

uint32_t rounds_for(size_t tests) {
  const auto needed = pairs_needed({}, MetricKind::kLatency, tests);
  return std::max(kStandardRounds, static_cast<uint32_t>(needed.value_or(0)));
}

std::vector<size_t> round_order(size_t arms, uint64_t seed, uint32_t round) {
  std::vector<size_t> order(arms);
  std::iota(order.begin(), order.end(), size_t{0});
  Draw draw({seed, kOrderStream, round});
  for (size_t i = arms; i > 1; --i) std::swap(order[i - 1], order[draw.below(i)]);
  return order;
}

Result<void> run_rounds(size_t arms, uint32_t rounds, uint64_t seed, ArmRunner& runner,
                        std::vector<std::vector<Run>>& done) {
  TALLY_CHECK(arms >= 2 && rounds >= 1, "run_rounds", arms, rounds);
  for (uint32_t round = 0; round < rounds; ++round) {
    std::vector<Run> runs(arms);
    for (const size_t arm : round_order(arms, seed, round)) {
      TALLY_TRY(runs[arm], valid_run(arm, round, runner));
      if (runner.is_stopped()) return {};
    }
    done.push_back(std::move(runs));
    runner.on_round(round);
  }
  return {};
}

}  // namespace tally::measure
