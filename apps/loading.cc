#include "loading.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/utf8.h"
#include "cli.h"
#include "gguf/gguf.h"
#include "text/output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr uint64_t kConnectionBytes = uint64_t{2} << 20;  // sockets and parsed bodies in flight

// What the check of the KV type reads: a little of all that models are given.
constexpr std::string_view kProbeText =
    "The harbour was quiet when the first boats came in. Nobody had expected them before noon, and the "
    "market was "
    "still closed. \"We found 1,284 of them,\" said the oldest of the men, \"and lost 37 on the way.\"\n\n"
    "def mean(values):\n    total = sum(values)\n    return total / max(1, len(values))\n\n"
    "{\"name\": \"probe\", \"size\": 4096, \"tags\": [\"a\", \"b\"]}\n"
    "Q: What is 17 + 25? A: 42. Q: What is the capital of France? A: Paris.\n"
    "Der Zug nach Wien hat heute leider zwanzig Minuten Verspätung. Il fait beau, mais il va pleuvoir.";

// Only a regular file: reading a pipe or a terminal could wait for ever.
Result<std::string> read_template(const std::string& path) {
  const std::string flag = fmt::format("--chat-template {}", base::escape_for_log(path));
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return Error{ErrorCode::kNoInput, flag + ": cannot be read"};
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kNoInput, flag + ": not a regular file"};
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{ErrorCode::kNoInput, flag + ": cannot be read"};
  if (static_cast<uint64_t>(info.st_size) > kTemplateBytesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("{}: {} bytes, at most {} are allowed", flag, info.st_size, kTemplateBytesMax)};
  }
  std::string source(static_cast<size_t>(info.st_size), '\0');
  in.read(source.data(), static_cast<std::streamsize>(source.size()));
  if (in.bad()) return Error{ErrorCode::kIo, flag + ": reading failed"};
  source.resize(static_cast<size_t>(in.gcount()));
  return source;
}

Result<text::ChatTemplate> load_given_template(const std::string& setting) {
  constexpr std::string_view kBuiltin = "builtin:";
  if (setting.starts_with(kBuiltin)) {
    auto built = text::ChatTemplate::builtin(setting.substr(kBuiltin.size()));
    if (built) return built;
    return Error{built.error().code, fmt::format("--chat-template: {}", built.error().message)};
  }
  TALLY_TRY(const std::string source, read_template(setting));
  auto parsed = text::ChatTemplate::parse(source);
  if (parsed) return parsed;
  return Error{parsed.error().code,
               fmt::format("--chat-template {}: {}", base::escape_for_log(setting), parsed.error().message)};
}

Result<text::ChatTemplate> load_own_template(const std::string& model_path, std::string_view source) {
  auto parsed = text::ChatTemplate::parse(source);
  if (parsed) return parsed;
  return Error{parsed.error().code,
               fmt::format("{}: tokenizer.chat_template: {}; --chat-template FILE or builtin:NAME ({}) "
                           "gives another",
                           base::escape_for_log(model_path), parsed.error().message,
                           text::ChatTemplate::builtin_names())};
}

}  // namespace

Result<ModelText> load_text(const std::string& model_path, const std::string& template_setting,
                            bool own_template) {
  TALLY_TRY(const gguf::File file, gguf::File::open(model_path));
  TALLY_TRY(text::Tokenizer tokenizer, text::Tokenizer::load(file));
  for (const std::string& warning : tokenizer.warnings()) base::log_warn("{}", warning);
  ModelText text{std::move(tokenizer), std::nullopt, "", 0};
  const auto own = text.tokenizer.chat_template();
  if (!template_setting.empty()) {
    TALLY_TRY(text.chat_template, load_given_template(template_setting));
  } else if (own && own_template) {
    TALLY_TRY(text.chat_template, load_own_template(model_path, *own));
  }
  std::map<tensor::DType, uint64_t> weights;
  for (const gguf::TensorInfo& t : file.tensors()) {
    weights[t.type] += t.shape.elements();
    text.parameters += t.shape.elements();
  }
  uint64_t most = 0;
  for (const auto& [type, count] : weights) {
    if (count > most) most = count, text.weight_type = tensor::dtype_info(type).name;
  }
  return text;
}

engine::LoadRequest load_request(const base::Settings& settings, const std::string& model_path,
                                 const ModelText& text) {
  engine::LoadRequest request = load_request(settings, model_path);
  request.tokenizer_bytes = text.tokenizer.memory_bytes();
  request.end_ids.assign(text.tokenizer.eog().begin(), text.tokenizer.eog().end());
  request.suppressed_ids.assign(text.tokenizer.suppressed().begin(), text.tokenizer.suppressed().end());
  for (size_t i = 0; i < text.tokenizer.vocab_size(); ++i) {
    const TokenId id{static_cast<int32_t>(i)};
    if (text.tokenizer.kind(id) == text::TokenKind::kControl) request.draft_stop_ids.push_back(id);
  }
  request.kv_check.mode = settings.text("kv-check");
  if (auto probe = text.tokenizer.encode(kProbeText, true, false)) request.kv_check.probe = std::move(*probe);
  return request;
}

engine::LoadRequest load_request(const base::Settings& settings, const std::string& model_path) {
  engine::LoadRequest request;
  request.model_path = model_path, request.connection_bytes = kConnectionBytes;
  engine::Settings& s = request.settings;
  s.memory_bytes = settings.number("memory");
  if (s.memory_bytes == 0) s.memory_bytes = base::memory_allowance() / 10 * 9;
  s.max_model_len = static_cast<uint32_t>(settings.number("max-model-len"));
  s.kv_type = settings.text("kv-type");
  s.kv_pool_bytes = settings.number("kv-pool");
  s.block_tokens = static_cast<uint32_t>(base::parse_uint(settings.text("block-tokens")).value_or(64));
  if (settings.values().contains("max-seqs")) {
    s.max_seqs = static_cast<uint32_t>(settings.number("max-seqs"));
    s.max_queue = static_cast<uint32_t>(settings.number("max-queue"));
    s.policy.batching = settings.text("batching");
    s.policy.allocator = settings.text("allocator");
    s.policy.cascade = settings.on("cascade");
    s.policy.step_latency_us = static_cast<int64_t>(settings.number("step-latency")) * 1000;
  }
  if (settings.values().contains("speculate")) {
    s.policy.speculate = settings.text("speculate");
    s.policy.speculate_max = static_cast<uint32_t>(settings.number("speculate-max"));
    s.policy.draft_model = settings.text("draft-model");
    s.policy.rejection_sampling = settings.text("speculate-verify") == "reject";
  }
  s.step_tokens = static_cast<uint32_t>(settings.number("step-tokens"));
  s.prefix_cache = settings.on("prefix-cache");
  s.policy.attention = settings.text("attention");
  s.isa = settings.text("isa");
  request.kv_disk = {settings.text("kv-disk"), settings.number("kv-disk-size")};
  request.weights = {settings.text("weights"), weights_directory(settings)};
  request.tune.on = settings.on("tune");
  s.threads = usable_threads(static_cast<uint32_t>(settings.number("threads")));
  request.tune.file = tuning_file(settings, s.threads);
  return request;
}

base::Result<void> check_draft_model(const engine::LoadRequest& request, const text::Tokenizer& tokenizer) {
  const engine::Policy& policy = request.settings.policy;
  const std::string name = base::escape_for_log(policy.draft_model);
  if ((policy.speculate == "draft") != !policy.draft_model.empty()) {
    return Error{ErrorCode::kUsage, policy.draft_model.empty()
                                        ? "--speculate draft: --draft-model FILE says which model drafts"
                                        : fmt::format("--draft-model {}: --speculate is {}, and only draft has one",
                                                      name, policy.speculate)};
  }
  if (policy.rejection_sampling && policy.speculate != "draft") {
    return Error{
        ErrorCode::kUsage,
        fmt::format("--speculate-verify reject: --speculate is {}, and only the guesses of draft are drawn: "
                    "without them compare holds as many",
                    policy.speculate)};
  }
  if (policy.draft_model.empty()) return {};
  TALLY_TRY(const gguf::File file, gguf::File::open(policy.draft_model));
  TALLY_TRY(const text::Tokenizer other, text::Tokenizer::load(file));
  const auto differs = [&](const std::string& what) {
    return Error{ErrorCode::kConfig,
                 fmt::format("--draft-model {}: its vocabulary is not that of the model: {}", name, what)};
  };
  // What one has more is padding, if it is no text and ends nothing.
  const size_t common = std::min(tokenizer.vocab_size(), other.vocab_size());
  for (size_t i = 0; i < std::max(tokenizer.vocab_size(), other.vocab_size()); ++i) {
    const TokenId id{static_cast<int32_t>(i)};
    const bool same = i < common
                          ? tokenizer.bytes_with_special(id) == other.bytes_with_special(id)
                          : (i < tokenizer.vocab_size() ? tokenizer : other).kind(id) == text::TokenKind::kUnused;
    if (!same) return differs(fmt::format("token {} differs, of {} and {}", i, tokenizer.vocab_size(), other.vocab_size()));
  }
  if (!std::ranges::equal(tokenizer.eog(), other.eog())) return differs("other ids end a text");
  if (tokenizer.bos() != other.bos()) return differs("another id begins a text");
  return {};
}

void plan_constraints(engine::LoadRequest& request, const text::Tokenizer& tokenizer) {
  request.constraint_table_bytes =
      sample::ConstraintCompiler::planned_bytes(constraint_vocabulary(tokenizer, tokenizer.vocab_size()));
  request.constraint_room_bytes = constraint_limits(request.settings, tokenizer.vocab_size()).room_bytes();
}

sample::ConstraintLimits constraint_limits(const engine::Settings& settings, size_t vocab_size) {
  sample::ConstraintLimits limits;
  const uint64_t memory = settings.memory_bytes;
  limits.held_bytes = std::min<uint64_t>(limits.held_bytes, memory / 16);
  limits.compile_bytes = std::min<uint64_t>(limits.compile_bytes, memory / 32);
  limits.matchers = settings.max_seqs;
  // At least some masks of the vocabulary, and what a form takes.
  const uint64_t least = (uint64_t{64} << 10) + vocab_size;
  const uint64_t share = memory / 32 / std::max(settings.max_seqs, 1u);
  limits.matcher_bytes = std::max(least, std::min<uint64_t>(limits.matcher_bytes, share));
  limits.forget_bytes = std::min(limits.forget_bytes, limits.matcher_bytes / 8);
  return limits;
}

sample::ConstraintVocabulary constraint_vocabulary(const text::Tokenizer& tokenizer, size_t rows) {
  sample::ConstraintVocabulary out;
  for (size_t i = 0; i < std::min(rows, tokenizer.vocab_size()); ++i)
    out.bytes.emplace_back(tokenizer.bytes(TokenId{static_cast<int32_t>(i)}));
  out.bytes.resize(rows);
  // A byte that no text has: they come where a grammar asks for the token itself, and nowhere else.
  for (const TokenId id : text::hidden_markers(tokenizer))
    if (static_cast<size_t>(raw(id)) < rows) out.bytes[static_cast<size_t>(raw(id))].assign(1, '\xFF');
  out.end_ids.assign(tokenizer.eog().begin(), tokenizer.eog().end());
  return out;
}

uint32_t usable_threads(uint32_t wanted) {
  const base::CpuAllowance cpu = base::cpu_allowance();
  if (wanted == 0) return cpu.usable;
  if (wanted > cpu.logical) {
    base::log_warn("--threads {}: this process may use {} CPUs, so {} threads are started", wanted,
                   cpu.logical, cpu.logical);
  }
  return std::min(wanted, cpu.logical);
}

std::string tuning_file(const base::Settings& settings, uint32_t threads) {
  const std::string& given = settings.text("tuning-cache");
  const std::string directory = given.empty() ? cache_directory() : given;
  return directory.empty() ? "" : fmt::format("{}/tuning-{}-{}", directory, settings.text("isa"), threads);
}

std::string weights_directory(const base::Settings& settings) {
  if (const std::string& given = settings.text("weights-dir"); !given.empty()) return given;
  const bool has_cache = settings.values().contains("tuning-cache");
  const std::string given = has_cache ? settings.text("tuning-cache") : "";
  return given.empty() ? cache_directory() : given;
}

Result<std::string> model_argument(const std::vector<std::string>& arguments, size_t most) {
  if (arguments.empty()) return Error{ErrorCode::kUsage, "MODEL is missing: the path of a GGUF file"};
  if (arguments.size() > most) {
    return Error{ErrorCode::kUsage,
                 fmt::format("{}: one argument too many", base::escape_for_log(arguments[most], 64))};
  }
  return arguments[0];
}

void warn_of_small_pages(const base::Accounts& accounts) {
  const uint64_t large =
      accounts.use(base::Account::kWeights).reserved + accounts.use(base::Account::kKv).reserved;
  const uint64_t huge = base::process_memory().anon_huge;
  constexpr uint64_t kWorthwhile = uint64_t{32} << 20;
  const double share = static_cast<double>(huge) / static_cast<double>(std::max<uint64_t>(1, large));
  if (large < kWorthwhile || share >= 0.9) return;
  base::log_warn(
      "only {} MiB of {} MiB of weights and KV cache lie in huge pages ({:.0f} %, 90 % are wanted): see "
      "/sys/kernel/mm/transparent_hugepage/enabled, which must be always or madvise, and free memory",
      huge >> 20, large >> 20, 100 * share);
}

void configure_log(const base::Settings& settings) {
  constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (settings.text("log-level") == kLevels[i]) {
      base::log_configure(static_cast<base::LogLevel>(i), settings.on("log-json"));
    }
  }
}

Progress::Progress(std::string what)
    : what_(std::move(what)),
      begin_us_(base::now_us()),
      shown_us_(begin_us_),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_ && terminal_) fmt::print(stderr, "\r\x1b[K");
}

bool Progress::due(int64_t now_us) {
  if (now_us - shown_us_ < (terminal_ ? 200'000 : 5'000'000)) return false;
  shown_us_ = now_us;
  drawn_ = true;
  return true;
}

void Progress::draw(double share, const std::string& line) {
  if (!terminal_) return fmt::print(stderr, "{}\n", line);
  constexpr int kWidth = 24;
  const auto filled = static_cast<size_t>(share * kWidth);
  fmt::print(stderr, "\r\x1b[K[{}{}] {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), line);
}

void Progress::update(uint64_t done, uint64_t total) {
  const int64_t now = base::now_us();
  if (!due(now)) return;
  const double seconds = static_cast<double>(now - begin_us_) * 1e-6;
  const double rate = static_cast<double>(done) / seconds;
  const double share = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  draw(share, fmt::format("{} {:3.0f} %, {:.0f} MiB/s, {:.0f} s left", what_, share * 100, rate / 0x1p20,
                          rate > 0 ? static_cast<double>(total - done) / rate : 0));
}

void Progress::update(double share, const std::string& now) {
  const int64_t now_us = base::now_us();
  if (!due(now_us)) return;
  const double seconds = static_cast<double>(now_us - begin_us_) * 1e-6;
  draw(share, fmt::format("{} {:3.0f} %, {}, {:.0f} s left", what_, share * 100, now,
                          share > 0 ? seconds * (1 - share) / share : 0));
}

}  // namespace tally::apps
