#include "eval_settings.h"

#include "base/machine.h"
#include "base/utf8.h"
#include "bench_lists.h"
#include "loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::EvalKind;
namespace fs = std::filesystem;

constexpr const char* kOwnText = "share/tally/english.txt";
constexpr uint32_t kContextMin = 256;
constexpr uint64_t kTextBytesMax = uint64_t{64} << 20;

// Of an installation (PREFIX/bin/tally), or of the tree that the binary was built in.
std::optional<fs::path> find_own_text() {
  std::error_code ec;
  fs::path at = fs::read_symlink("/proc/self/exe", ec).parent_path();
  constexpr int kFloors = 4;
  for (int floor = 0; floor < kFloors && !at.empty(); ++floor, at = at.parent_path())
    if (fs::is_regular_file(at / kOwnText, ec)) return at / kOwnText;
  return std::nullopt;
}

Result<measure::EvalText> read_text(const std::string& given) {
  fs::path path = given;
  if (given.empty()) {
    const auto own = find_own_text();
    if (!own) {
      return Error{ErrorCode::kNoInput,
                   fmt::format("--text FILE is missing: there is no {} above this binary", kOwnText)};
    }
    path = *own;
  }
  const std::string shown = base::escape_for_log(path.string());
  std::error_code ec;
  if (!fs::is_regular_file(path, ec))
    return Error{ErrorCode::kNoInput, fmt::format("--text {}: no such regular file", shown)};
  const uint64_t bytes = fs::file_size(path, ec);
  if (ec || bytes > kTextBytesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("--text {}: {} bytes, at most {} are allowed", shown, bytes, kTextBytesMax)};
  }
  measure::EvalText text{path.filename().string(), std::string(bytes, '\0')};
  std::ifstream in(path, std::ios::binary);
  if (!in.read(text.bytes.data(), static_cast<std::streamsize>(bytes)))
    return Error{ErrorCode::kNoInput, fmt::format("--text {}: cannot be read", shown)};
  return text;
}

Result<std::vector<std::string>> read_types(const base::Settings& s) {
  const std::vector<std::string> known = engine::kv_type_names();
  std::vector<std::string> out;
  for (const std::string& given : s.list("kv-type")) {
    out.push_back(lower(given));
    if (std::find(known.begin(), known.end(), out.back()) != known.end()) continue;
    std::string allowed;
    for (const std::string& name : known) allowed += ' ' + name;
    return Error{ErrorCode::kUsage,
                 fmt::format("--kv-type: '{}' is not allowed; allowed:{}, separated by commas",
                             base::escape_for_log(given, 64), allowed)};
  }
  return out.empty() ? known : out;
}

uint32_t count(const base::Settings& s, std::string_view name) {
  return static_cast<uint32_t>(s.number(name));
}

}  // namespace

Result<EvalPlan> eval_plan(const Invocation& call, EvalKind kind, const std::string& model) {
  const base::Settings& s = call.settings;
  EvalPlan plan;
  measure::EvalOptions& o = plan.options;
  o.kind = kind;
  TALLY_TRY(o.kv_types, read_types(s));
  TALLY_TRY(const uint32_t most, engine::model_context(model));
  o.context = s.given("context") ? count(s, "context") : std::min(count(s, "context"), most);
  o.tokens = count(s, "tokens");
  if (kind == EvalKind::kKv) {
    o.prompts = count(s, "prompts"), o.new_tokens = count(s, "new-tokens");
    o.questions = count(s, "questions"), o.seed = s.number("seed");
  }
  // A prompt and what follows it.
  const uint32_t least = kContextMin + (kind == EvalKind::kKv ? o.new_tokens : 0);
  if (o.context < least || o.context > most) {
    return Error{ErrorCode::kConfig, fmt::format("--context {}: {} to {} (the model's own) are possible here",
                                                 o.context, least, most)};
  }
  plan.mode = s.text("mode");
  if (kind != EvalKind::kPpl) plan.svg = s.text("svg");
  TALLY_TRY(plan.text, read_text(s.text("text")));
  plan.memory_bytes = s.number("memory");
  if (plan.memory_bytes == 0) plan.memory_bytes = base::memory_allowance() / 10 * 9;
  plan.score.model_path = model, plan.score.context = o.context;
  plan.score.threads = usable_threads(count(s, "threads")), plan.score.isa = s.text("isa");
  plan.score.dequantize_to_f32 = plan.mode == "codec-alone";
  plan.score.tune = kind == EvalKind::kKv && s.on("tune");
  return plan;
}

}  // namespace tally::apps
