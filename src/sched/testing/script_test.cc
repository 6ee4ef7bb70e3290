#include "sched/testing/script.h"

#include <charconv>
#include <sstream>

namespace tally::sched::testing {

namespace {

constexpr int32_t kPriorityZero = 100;  // prio=100 is the usual one, prio=99 goes before it
constexpr Tick kStepTicks = 1000;       // a step takes a millisecond

void add_word(std::string& out, std::string_view word) {
  if (!out.empty()) out += ' ';
  out += word;
}

std::string joined(const std::vector<std::string>& words, size_t from) {
  std::string out;
  for (size_t i = from; i < words.size(); ++i) add_word(out, words[i]);
  return out;
}

// Key and value of "key=value".
std::pair<std::string, std::string> pair_of(const std::string& word) {
  const size_t at = word.find('=');
  return at == std::string::npos ? std::pair{word, std::string()}
                                 : std::pair{word.substr(0, at), word.substr(at + 1)};
}

struct BadScript {};  // thrown where a line cannot be run, caught by run(): the report is in error_

// Ids that no two prompts share by chance.
TokenId prompt_token(uint64_t stream, uint64_t i) {
  return TokenId{static_cast<int32_t>(mix(mix(stream ^ 0x70726F6D7074) ^ i) % 1'000'000)};
}

}  // namespace

std::vector<ScriptCase> split_cases(const std::string& file, const std::string& text) {
  std::vector<ScriptCase> cases;
  std::istringstream in(text);
  std::string raw_line;
  bool open = false;
  for (size_t number = 1; std::getline(in, raw_line); ++number) {
    ScriptLine line{number, raw_line, {}};
    std::istringstream words(raw_line.substr(0, raw_line.find('#')));
    for (std::string word; words >> word;) line.words.push_back(word);
    if (raw_line.find_first_not_of(" \t") == std::string::npos) open = false;
    if (line.words.empty()) continue;
    if (!open) cases.push_back({file + ":" + std::to_string(number), {}});
    open = true;
    cases.back().lines.push_back(std::move(line));
  }
  return cases;
}

std::string ScriptRunner::run(const ScriptCase& script) {
  for (const ScriptLine& line : script.lines) {
    try {
      execute(line);
    } catch (const BadScript&) {
    }
    if (error_.empty() && rig_ && !rig_->error().empty()) error_ = rig_->error() + "\n";
    if (!error_.empty()) {
      return script.name + ": line " + std::to_string(line.number) + ": " + line.text + "\n" + error_ +
             ledger_text();
    }
  }
  try {
    finish();
  } catch (const BadScript&) {
  }
  return error_.empty() ? "" : script.name + ": after the last line\n" + error_ + ledger_text();
}

void ScriptRunner::execute(const ScriptLine& line) {
  const std::string& verb = line.words[0];
  const size_t count = line.words.size();
  if (verb == "config") return configure(line);
  if (!rig_) configure({});
  if (verb == "submit" && count >= 2) {
    submit(line);
  } else if (verb == "step") {
    for (uint64_t n = count > 1 ? number(line.words[1]) : 1; n > 0; --n) step();
  } else if (verb == "run") {
    run_until_idle(count > 1 ? number(line.words[1]) : 10'000);
  } else if (verb == "cancel" && count == 2) {
    rig_->cancel(id(line.words[1]));
  } else if (verb == "tick" && count == 2) {
    now_ += static_cast<Tick>(number(line.words[1]));
  } else if (verb == "reset" && count == 1) {
    rig_->ledger().reset_prefix();
  } else if (verb == "drafts" && (count == 2 || count == 3)) {
    const auto most = static_cast<uint32_t>(number(line.words[1]));
    rig_->set_drafting({most, count == 3 ? static_cast<uint32_t>(number(line.words[2])) : most});
  } else if (verb == "fault" && count >= 2) {
    fault(line);
  } else if (verb == "expect" && count >= 2) {
    expect(line);
  } else {
    bad("no such line: " + line.text);
  }
}

void ScriptRunner::configure(const ScriptLine& line) {
  if (rig_) return bad("config comes first, and once");
  std::map<std::string, uint64_t> values{{"block", 16}, {"pool", 8},   {"step", 64}, {"seqs", 4},
                                         {"queue", 8},  {"len", 4096}, {"hash", 64}, {"queue_tokens", 0}};
  values["latency"] = 0, values["logits"] = 0;
  bool cache = true;
  Config config;
  for (size_t i = 1; i < line.words.size(); ++i) {
    const auto [key, value] = pair_of(line.words[i]);
    if (key == "cache" && (value == "on" || value == "off")) {
      cache = value == "on";
    } else if (key == "batching" && (value == "static" || value == "continuous")) {
      config.batching = value == "static" ? Batching::kStatic : Batching::kContinuous;
    } else if (key == "allocator" && (value == "reserve" || value == "paged")) {
      config.allocator = value == "reserve" ? Allocator::kReserve : Allocator::kPaged;
    } else if (values.contains(key)) {
      values[key] = number(value);
    } else {
      return bad("no such setting: " + line.words[i]);
    }
  }
  const auto u32 = [&](const char* key) { return static_cast<uint32_t>(values[key]); };
  config.step_latency = static_cast<Tick>(values["latency"]);
  config.logits_rows_max = u32("logits");
  config.seqs_max = u32("seqs");
  config.queue_max = u32("queue");
  config.queue_tokens_max = values["queue_tokens"];
  config.step_tokens = u32("step");
  config.model_len_max = u32("len");
  block_tokens_ = u32("block");
  rig_ = std::make_unique<Rig>(config, kv::LedgerConfig{u32("pool"), block_tokens_, cache, u32("hash")});
  // A pass over the weights costs as much as 8 rows of arithmetic: 800 ticks, and 100 for each row beyond.
  rig_->scheduler().set_cost({.weights = 800, .row = 100});
}

void ScriptRunner::submit(const ScriptLine& line) {
  Request request;
  FakeSampler sampler;
  uint64_t prompt = 1;
  request.arrival = now_;
  sampler.seed = rig_->records().size() + 1;
  for (size_t i = 2; i < line.words.size(); ++i) {
    const auto [key, value] = pair_of(line.words[i]);
    if (key == "prompt")
      prompt = number(value);
    else if (key == "new") {
      request.max_tokens = static_cast<uint32_t>(number(value));
      request.prompt_only = request.max_tokens == 0;
    } else if (key == "score")
      request.score_from = static_cast<uint32_t>(number(value));
    else if (key == "salt")
      request.prefix_namespace[0] = mix(std::hash<std::string>{}(value));
    else if (key == "tenant")
      request.tenant = number(value);
    else if (key == "at")
      request.arrival = static_cast<Tick>(number(value));
    else if (key == "deadline")
      request.deadline = now_ + static_cast<Tick>(number(value));
    else if (key == "n" || key == "beams") {
      request.choices = static_cast<uint32_t>(number(value));
      request.beams = key == "beams";
    } else if (key == "prio")
      request.priority = static_cast<int32_t>(number(value)) - kPriorityZero;
    else if (key == "stop")
      sampler.stop_at = static_cast<uint32_t>(number(value));
    else if (key == "seed")
      sampler.seed = number(value);
    else if (key == "share") {
      // The first tokens of another's prompt and answer.
      const size_t colon = value.find(':');
      if (colon == std::string::npos) return bad("share=<id>:<tokens>");
      const Record& other = rig_->record(id(value.substr(0, colon)));
      std::vector<TokenId> stream = other.request.prompt;
      stream.insert(stream.end(), other.emitted.begin(), other.emitted.end());
      const uint64_t shared = number(value.substr(colon + 1));
      if (shared > stream.size()) return bad("it has " + std::to_string(stream.size()) + " tokens to share");
      request.prompt.assign(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(shared));
    } else {
      return bad("no such key: " + line.words[i]);
    }
  }
  for (uint64_t i = request.prompt.size(); i < prompt; ++i) {
    request.prompt.push_back(prompt_token(rig_->records().size() + 1, i));
  }
  request.prompt.resize(prompt);
  const uint32_t choices = request.choices;
  const SeqId first = rig_->submit(std::move(request), sampler);
  for (uint32_t c = 0; c < choices; ++c) {
    names_.push_back(line.words[1] + (c == 0 ? "" : "." + std::to_string(c)));
    ids_[names_.back()] = SeqId{raw(first) + c};
  }
}

void ScriptRunner::fault(const ScriptLine& line) {
  const std::string& what = line.words[1];
  if (what == "row" && line.words.size() == 3) {
    faults_.rows.insert(id(pair_of(line.words[2]).second));
  } else if (what == "all" && line.words.size() == 2) {
    faults_.all_rows = true;
  } else if (what == "step" && line.words.size() == 2) {
    faults_.abandon = true;
  } else if (what == "reset" && line.words.size() == 2) {
    faults_.reset_in_flight = true;
  } else {
    bad("fault row id=<id> | all | step | reset");
  }
}

void ScriptRunner::step() {
  rig_->step(now_, faults_);
  faults_ = {};
  now_ += kStepTicks;
  rig_->scheduler().check();
}

void ScriptRunner::run_until_idle(uint64_t steps_max) {
  for (uint64_t n = 0; n < steps_max && rig_->error().empty(); ++n) {
    if (rig_->scheduler().idle()) return;
    step();
  }
  if (!rig_->scheduler().idle()) bad("not idle after " + std::to_string(steps_max) + " steps");
}

void ScriptRunner::expect(const ScriptLine& line) {
  const std::string& what = line.words[1];
  const auto word = [&](size_t i) { return i < line.words.size() ? line.words[i] : std::string(); };
  if (what == "plan") {
    want(joined(line.words, 2), plan_text());
  } else if (what == "state") {
    want(word(3), state_text(id(word(2))));
  } else if (what == "tokens") {
    // The oracle's tokens are compared as they are emitted; here remains that there are as many as asked for.
    const Record& r = rig_->record(id(word(2)));
    const uint64_t wanted = word(3) == "oracle" ? r.admission.max_tokens : number(word(3));
    want(std::to_string(wanted), std::to_string(r.emitted.size()));
  } else if (what == "end") {
    const Record& r = rig_->record(id(word(2)));
    want(word(3), r.end ? name_of(*r.end) : "running");
  } else if (what == "refused") {
    want(word(3), name_of(rig_->record(id(word(2))).admission.refusal));
  } else if (what == "scored") {
    const Record& r = rig_->record(rig_->record(id(word(2))).request.seq);
    want(word(3), std::to_string(r.scored_next - std::max(r.request.score_from, 1U)));
  } else if (what == "limit") {
    want(word(3), std::to_string(rig_->record(id(word(2))).admission.max_tokens));
  } else if (what == "blocks") {
    expect_blocks(line);
  } else if (what == "hit") {
    const SeqId seq = id(word(2));
    const Record& r = rig_->record(seq);
    want(word(3), std::to_string((r.end ? r.stats : rig_->scheduler().stats(seq)).cached_tokens));
  } else if (what == "preempted") {
    std::string got;
    for (const Preempted& p : rig_->last_plan().preempted) {
      add_word(got, name(p.seq));
      add_word(got, std::to_string(p.tokens));
    }
    want(word(2) == "none" ? "" : joined(line.words, 2), got);
  } else if (what == "order") {
    std::string got;
    for (const SeqId seq : rig_->admission_order()) add_word(got, name(seq));
    want(joined(line.words, 2), got);
  } else if (what == "counter") {
    want(word(3), counter_text(word(2)));
  } else if (what == "copies") {
    std::string got;
    for (const BlockCopy& c : rig_->last_plan().copies)
      add_word(got, std::to_string(raw(c.from)) + ">" + std::to_string(raw(c.to)));
    want(word(2) == "none" ? "" : joined(line.words, 2), got);
  } else if (what == "idle") {
    want("idle", rig_->scheduler().idle() ? "idle" : "busy");
  } else {
    bad("no such expectation");
  }
}

void ScriptRunner::expect_blocks(const ScriptLine& line) {
  const kv::LedgerStats s = rig_->ledger().stats();
  const std::map<std::string, uint64_t> counts{{"free", s.free},     {"held", s.held},
                                               {"cached", s.cached}, {"both", s.both},
                                               {"shared", s.shared}, {"waste", s.waste_tokens}};
  for (size_t i = 2; i < line.words.size(); ++i) {
    const auto [key, value] = pair_of(line.words[i]);
    if (counts.contains(key)) {
      want(line.words[i], key + "=" + std::to_string(counts.at(key)));
    } else if (key == "table") {
      const std::string who = value.substr(0, value.find(':'));
      std::string got = "table=" + who + ":[";
      const auto table = rig_->scheduler().table(id(who));
      for (size_t b = 0; b < table.size(); ++b) {
        if (b > 0) got += ',';
        got += std::to_string(raw(table[b]));
      }
      want(line.words[i], got + "]");
    } else {
      bad("no such count: " + line.words[i]);
    }
  }
}

std::string ScriptRunner::plan_text() const {
  std::string out;
  for (const PlannedRows& g : rig_->last_plan().rows) {
    add_word(out, name(g.seq) + (g.decode ? ":d" : ":p") + std::to_string(g.rows));
    if (g.scores > 0) out += "s" + std::to_string(g.scores);
  }
  return out;
}

std::string ScriptRunner::state_text(SeqId seq) const {
  return rig_->record(seq).live() ? name_of(rig_->scheduler().state(seq)) : "ended";
}

std::string ScriptRunner::counter_text(const std::string& counter) const {
  const QueueStats q = rig_->scheduler().queue_stats();
  const kv::LedgerStats s = rig_->ledger().stats();
  const std::map<std::string, uint64_t> values{{"preemptions", q.preemptions},
                                               {"preempted_tokens", q.preempted_tokens},
                                               {"recomputed", q.recomputed_tokens},
                                               {"queries", q.prefix_queries_tokens},
                                               {"hits", q.prefix_hits_tokens},
                                               {"cached_recomputed", q.cached_recomputed_tokens},
                                               {"running", q.running},
                                               {"waiting", q.waiting},
                                               {"deferred", q.deferred},
                                               {"waiting_tokens", q.waiting_tokens},
                                               {"forks", q.forks},
                                               {"copies", q.copied_blocks},
                                               {"evictions", s.evictions},
                                               {"registered", rig_->ledger().moves(kv::Move::kRegister)}};
  return values.contains(counter) ? std::to_string(values.at(counter)) : "no such counter";
}

// At every end: the ended ones had the oracle's tokens (compared as they came), and at rest nothing is owned.
void ScriptRunner::finish() {
  run_until_idle(10'000);
  if (!rig_->error().empty()) return bad(rig_->error());
  const kv::LedgerStats s = rig_->ledger().stats();
  want("held=0 both=0", "held=" + std::to_string(s.held) + " both=" + std::to_string(s.both));
  for (const Record& r : rig_->records()) {
    if (r.live()) bad("never ended: " + name(Rig::id_of(r)));
  }
}

void ScriptRunner::want(const std::string& wanted, const std::string& got) {
  if (wanted != got) error_ += "wanted: " + wanted + "\ngot:    " + got + "\n";
}

void ScriptRunner::bad(const std::string& what) {
  error_ += what + "\n";
  throw BadScript{};
}

uint64_t ScriptRunner::number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) bad("not a number: " + text);
  return value;
}

SeqId ScriptRunner::id(const std::string& text) {
  const auto found = ids_.find(text);
  if (found != ids_.end()) return found->second;
  bad("no such sequence: " + text);
  return SeqId{1};
}

std::string ScriptRunner::name(SeqId seq) const { return names_[raw(seq) - 1]; }

std::string ScriptRunner::ledger_text() const {
  if (!rig_) return "";
  constexpr const char* kStates[] = {"free", "held", "cached", "both"};
  std::string out = "plan:   " + plan_text() + "\nledger:";
  for (uint32_t b = 0; b < rig_->ledger().blocks(); ++b) {
    const kv::BlockInfo info = rig_->ledger().info(BlockId{b});
    add_word(out, std::to_string(b) + ":" + kStates[static_cast<size_t>(info.state)]);
    if (info.owners > 0) out += std::to_string(info.owners) + "/" + std::to_string(info.fill);
  }
  out += "\n";
  for (const Record& r : rig_->records()) {
    if (!r.live()) continue;
    const SeqId seq = Rig::id_of(r);
    out += name(seq) + ": " + state_text(seq) + ", blocks";
    for (const BlockId b : rig_->scheduler().table(seq)) add_word(out, std::to_string(raw(b)));
    out += "\n";
  }
  return out;
}

}  // namespace tally::sched::testing
