#include "measure/workload.h"

#include "base/sha256.h"
#include "measure/load_draw.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

// What a draw is for: streams of different purposes never meet.
enum Purpose : uint64_t { kOrder = 1, kBody = 2, kSalt = 3, kPrefix = 4 };

struct Class {
  const char* name;
  double share;
  uint32_t prompt, output;
};
constexpr Class kMix[] = {{"short", .3, 50, 30}, {"medium", .5, 300, 100}, {"long", .2, 1200, 200}};

// Shares of `total`, largest remainders first, equal ones in order: they add up.
std::vector<uint32_t> counts_of(std::span<const Class> classes, uint32_t total) {
  std::vector<uint32_t> counts;
  std::vector<std::pair<int64_t, size_t>>
      rests;  // negative millionths: .3 x 10 is 3, whatever doubles make of it
  uint32_t given = 0;
  for (size_t i = 0; i < classes.size(); ++i) {
    const int64_t exact = std::llround(classes[i].share * total * 1e6);
    counts.push_back(static_cast<uint32_t>(exact / 1'000'000));
    rests.emplace_back(-(exact % 1'000'000), i);
    given += counts.back();
  }
  std::sort(rests.begin(), rests.end());
  for (size_t i = 0; given < total; ++i, ++given) ++counts[rests[i % rests.size()].second];
  return counts;
}

// The middle of the index-th of `count` equal parts of mean +- spread.
uint32_t length_at(uint32_t mean, double spread, uint32_t index, uint32_t count) {
  const double at = (index + .5) / count;
  return static_cast<uint32_t>(std::lround(mean * (1 - spread + 2 * spread * at)));
}

// Builds the requests of one repetition.
class Writer {
 public:
  Writer(const WorkloadSpec& spec, uint32_t repetition, uint32_t words)
      : spec_(spec), repetition_(repetition), words_(words) {
    out_.name = spec.name;
    out_.classes = json::object();
  }

  void add_words(std::vector<uint32_t>& to, Draw draw, size_t count) const {
    for (size_t i = 0; i < count; ++i) to.push_back(static_cast<uint32_t>(draw.below(words_)));
  }

  // `prompt` tokens that nobody else has: salt, then the words of (class, index), the same in every run.
  void add_alone(std::vector<uint32_t>& to, uint32_t id, uint64_t key, uint32_t prompt) const {
    const uint32_t salt = std::min(prompt, kSaltWords);
    add_words(to, Draw({spec_.seed, kSalt, repetition_, id}), salt);
    add_words(to, Draw({kBody, key}), prompt - salt);
  }

  // All of one class; lengths are equally spaced.
  void add_class(const Class& c, uint64_t class_key, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      PlannedRequest& r = add(c.name, c.output);
      add_alone(r.words, r.id, class_key << 32 | i, length_at(c.prompt, spec_.spread, i, count));
    }
    out_.classes[c.name] = {
        {"share", c.share}, {"prompt_tokens", c.prompt}, {"output_tokens", c.output}, {"n", count}};
  }

  // Groups that begin with the same tokens, salted once for a run.
  void add_groups() {
    for (uint32_t i = 0; i < spec_.requests; ++i) {
      const uint32_t group = i % spec_.groups;
      PlannedRequest& r = add("shared", spec_.output_tokens);
      r.group = fmt::format("g{}", group);
      add_words(r.words, Draw({spec_.seed, kPrefix, repetition_, group}), spec_.prefix_tokens);
      add_alone(r.words, r.id, uint64_t{0xf} << 32 | i,
                length_at(spec_.prompt_tokens, spec_.spread, i, spec_.requests));
    }
    out_.shares_prefixes = true;
    out_.classes["shared"] = {{"share", 1},
                              {"prefix_tokens", spec_.prefix_tokens},
                              {"groups", spec_.groups},
                              {"prompt_tokens", spec_.prompt_tokens},
                              {"output_tokens", spec_.output_tokens},
                              {"n", spec_.requests}};
  }

  // Each turn repeats what was said: the user's words, and in place of the answers drawn ones of their
  // length, so that the list does not depend on who answers.
  void add_conversations() {
    std::vector<uint32_t> said;
    for (uint32_t i = 0; i < spec_.requests; ++i) {
      const uint32_t conversation = i / spec_.turns, turn = i % spec_.turns;
      if (turn == 0) {
        said.clear();
        add_words(said, Draw({spec_.seed, kPrefix, repetition_}), spec_.prefix_tokens);
      }
      PlannedRequest& r = add(fmt::format("turn {}", turn + 1), spec_.output_tokens);
      r.group = fmt::format("c{}", conversation);
      r.follows = turn > 0;
      add_alone(said, r.id, uint64_t{0xe} << 32 | i, spec_.prompt_tokens);
      r.words = said;
      add_words(said, Draw({kBody, uint64_t{0xd} << 32 | i}), spec_.output_tokens);
    }
    out_.shares_prefixes = true;
    out_.classes["turn"] = {{"share", 1},
                            {"turns", spec_.turns},
                            {"prefix_tokens", spec_.prefix_tokens},
                            {"prompt_tokens", spec_.prompt_tokens},
                            {"output_tokens", spec_.output_tokens},
                            {"n", spec_.requests}};
  }

  Workload finish(bool shuffle) {
    auto& list = out_.requests;
    Draw draw({spec_.seed, kOrder, repetition_});
    for (size_t i = list.size(); shuffle && i > 1; --i) std::swap(list[i - 1], list[draw.below(i)]);
    return std::move(out_);
  }

 private:
  PlannedRequest& add(std::string class_name, uint32_t output) {
    PlannedRequest& r = out_.requests.emplace_back();
    r.id = static_cast<uint32_t>(out_.requests.size() - 1);
    r.class_name = std::move(class_name);
    r.output_tokens = output;
    r.cache_salt = fmt::format("s{}-{}", spec_.seed, repetition_);
    return r;
  }

  const WorkloadSpec& spec_;
  uint32_t repetition_, words_;
  Workload out_;
};

Error too_short(const char* flag, uint32_t value) {
  return {ErrorCode::kUsage,
          fmt::format("{} {}: too short; with the spread taken off, {} are needed for the salt", flag, value,
                      kSaltWords)};
}

}  // namespace

bool is_built_in(const std::string& name) {
  return name == "mix" || name == "random" || name == "shared-prefix" || name == "multi-turn";
}

Result<Workload> build_workload(const WorkloadSpec& spec, uint32_t repetition, uint32_t words,
                                std::string_view file) {
  TALLY_CHECK(words >= 2 && spec.groups > 0 && spec.turns > 0, "a workload without words");
  if (!is_built_in(spec.name)) {
    TALLY_TRY(Workload out, parse_workload(file, spec.name));
    if (spec.requests > 0 && spec.requests < out.requests.size()) out.requests.resize(spec.requests);
    for (PlannedRequest& r : out.requests) r.cache_salt = fmt::format("s{}-{}", spec.seed, repetition);
    return out;
  }
  Writer writer(spec, repetition, words);
  if (spec.name == "mix") {
    const std::vector<uint32_t> counts = counts_of(kMix, spec.requests);
    for (size_t i = 0; i < std::size(kMix); ++i) writer.add_class(kMix[i], i, counts[i]);
    return writer.finish(true);
  }
  const double spread = spec.name == "multi-turn" ? 0 : spec.spread;
  if (spec.prompt_tokens * (1 - spread) < kSaltWords) return too_short("--prompt-tokens", spec.prompt_tokens);
  if (spec.name == "random") {
    writer.add_class({"random", 1, spec.prompt_tokens, spec.output_tokens}, 3, spec.requests);
    return writer.finish(true);
  }
  const bool is_shared = spec.name == "shared-prefix";
  is_shared ? writer.add_groups() : writer.add_conversations();
  return writer.finish(is_shared);
}

std::string Workload::sha256() const {
  std::string canonical;
  for (const PlannedRequest& r : requests) {
    json line = {r.id, r.class_name, r.group, r.words, r.ids, r.text, r.output_tokens, r.at_s, r.follows};
    if (r.temperature > 0) line.push_back(r.temperature);
    canonical += line_of(line) + '\n';
  }
  return base::hex(base::sha256(canonical));
}

}  // namespace tally::measure
