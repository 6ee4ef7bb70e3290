#include "divergence.h"

#include "base/accounts.h"
#include "base/machine.h"
#include "base/pool.h"
#include "base/utf8.h"
#include "kernels/kernels.h"
#include "kv/view.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr size_t kPositions = 96;  // x the vocabulary of f32: 100 MB for the largest ones
constexpr uint32_t kBlockTokens = 32;
constexpr std::string_view kText =
    "The lighthouse keeper climbed the 214 steps every evening, as his father had done before him. \"Someone "
    "has to,\" he "
    "said, and lit the lamp. In 1911 the company sent a letter: the station would be closed by the end of "
    "the year.\n"
    "def mean(values):\n    return sum(values) / len(values)\n"
    "Water boils at 100 degrees Celsius at sea level; higher up it boils sooner, because the air presses "
    "less.";

struct Prompt {
  std::vector<TokenId> ids;
  std::string_view kind;
};

Prompt make_prompt(const gguf::File& file, const model::ModelSpec& spec) {
  Prompt prompt;
  const auto tokenizer = text::Tokenizer::load(file);
  if (tokenizer) {
    auto ids = tokenizer->encode(kText, true, false);
    if (ids) prompt = {std::move(ids).value(), "text"};
  }
  if (prompt.ids.empty()) {
    prompt.kind = "token ids";
    for (size_t i = 0; i < kPositions; ++i)
      prompt.ids.push_back(TokenId{static_cast<int32_t>((i * i * 7919 + i * 104729 + 1) % spec.vocab)});
  }
  prompt.ids.resize(std::min({prompt.ids.size(), kPositions, size_t{spec.context}}));
  return prompt;
}

// Feeds the prompt to a model file and writes the log-probabilities of every position, [positions][vocab].
Result<void> predict(const gguf::File& file, const std::vector<TokenId>& ids, size_t threads,
                     base::Accounts& accounts, std::span<float> out) {
  base::ThreadPool pool(threads, kernels::set_float_mode);
  const auto length = static_cast<uint32_t>(ids.size());
  const uint32_t blocks = (length + kBlockTokens - 1) / kBlockTokens;
  model::LoadOptions options;
  options.context = blocks * kBlockTokens;
  TALLY_TRY(const model::Model model,
            model::Model::load(file, kernels::kernel_table(kernels::best_isa()), options, pool, accounts));
  const size_t vocab = model.spec().vocab;
  if (vocab * length != out.size()) {
    return Error{ErrorCode::kBadData, fmt::format("{}: a vocabulary of {}, not that of the source",
                                                  base::escape_for_log(file.path()), vocab)};
  }
  const auto layouts = model::kv_layouts(model.spec(), tensor::KvCodec::kF32, kBlockTokens);
  const auto shape = kv::make_pool_shape(layouts, blocks);
  TALLY_TRY(const base::Arena memory, accounts.reserve(base::Account::kKv, "pool", shape.pool_bytes()));
  const kv::View view(&shape, memory.data());
  model::StepLimits limits;
  limits.rows_max = limits.logits_rows_max = kBlockTokens, limits.context_max = options.context;
  TALLY_TRY(model::Scratch scratch, model.make_scratch(limits, layouts, threads, accounts));
  std::vector<uint32_t> table(blocks), rows(kBlockTokens);
  std::iota(table.begin(), table.end(), 0u), std::iota(rows.begin(), rows.end(), 0u);
  for (uint32_t begin = 0; begin < length; begin += kBlockTokens) {
    const uint32_t n = std::min(kBlockTokens, length - begin);
    const model::Segment segment{0, n, begin, 0};
    model.forward({std::span(ids).subspan(begin, n), {&segment, 1}, table, std::span(rows).first(n)}, view,
                  scratch, pool);
    for (uint32_t i = 0; i < n; ++i) {
      if (scratch.nonfinite()[i] != 0) {
        return Error{ErrorCode::kBadData,
                     fmt::format("{}: position {} of the check gives values that are not finite",
                                 base::escape_for_log(file.path()), begin + i)};
      }
      const std::span<const float> logits = scratch.logits(i);
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - top);
      const double log_sum = top + std::log(sum);
      for (size_t v = 0; v < vocab; ++v)
        out[(begin + i) * vocab + v] = static_cast<float>(logits[v] - log_sum);
    }
  }
  return {};
}

}  // namespace

Result<Divergence> measure_divergence(const gguf::File& first, const gguf::File& second, size_t threads,
                                      const std::function<bool()>& go_on) {
  kernels::set_float_mode();
  TALLY_TRY(const model::ModelSpec spec, model::read_spec(first));
  const Prompt prompt = make_prompt(first, spec);
  base::Accounts accounts(base::memory_allowance() / 10 * 9);
  const size_t vocab = spec.vocab, values = prompt.ids.size() * vocab;
  TALLY_TRY(const base::Arena memory,
            accounts.reserve(base::Account::kRuntime, "predictions", 2 * values * sizeof(float)));
  const std::span<float> all(reinterpret_cast<float*>(memory.data()), 2 * values);
  const std::span<float> p = all.first(values), q = all.subspan(values);
  TALLY_TRY_VOID(predict(first, prompt.ids, threads, accounts, p));
  if (!go_on()) return Error{ErrorCode::kUnavailable, "the check was interrupted"};
  TALLY_TRY_VOID(predict(second, prompt.ids, threads, accounts, q));

  Divergence result{.positions = prompt.ids.size(), .prompt = prompt.kind};
  size_t agreed = 0;
  for (size_t at = 0; at < values; at += vocab) {
    double kld = 0;
    for (size_t v = at; v < at + vocab; ++v)
      kld += std::exp(static_cast<double>(p[v])) * (static_cast<double>(p[v]) - q[v]);
    result.mean_kld += kld;
    const auto best = [&](std::span<float> row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    agreed += best(p.subspan(at, vocab)) == best(q.subspan(at, vocab));
  }
  const auto count = static_cast<double>(result.positions);
  result.mean_kld /= count, result.top1_agreement = static_cast<double>(agreed) / count;
  return result;
}

}  // namespace tally::apps
