// What constraints cost on the vocabularies of real models: constraint_bench, from the top of the tree.

#include "gguf/gguf.h"
#include "sample/constraint.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>

namespace tally::sample {
namespace {

constexpr const char* kModels[] = {"models/smollm2-135m-instruct-q4_1.gguf",
                                   "models/gemma3-270m-q4_k_m.gguf"};

// A form with nested objects, an enumeration, a pattern and bounds.
constexpr const char* kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,"maximum":150},)"
    R"("tags":{"type":"array","items":{"enum":["red","green","blue"]},"maxItems":5},"address":{"type":"object","properties":)"
    R"({"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","zip"],)"
    R"("additionalProperties":false}},"required":["name","age","tags","address"],"additionalProperties":false})";

ConstraintVocabulary vocabulary(int64_t model) {
  const auto file = gguf::File::open(kModels[model]);
  const auto tokenizer = text::Tokenizer::load(*file);
  ConstraintVocabulary out;
  for (size_t i = 0; i < tokenizer->vocab_size(); ++i)
    out.bytes.emplace_back(tokenizer->bytes(TokenId{static_cast<int32_t>(i)}));
  out.end_ids.assign(tokenizer->eog().begin(), tokenizer->eog().end());
  return out;
}

ConstraintSpec spec(int64_t number) {
  using Kind = ConstraintSpec::Kind;
  const ConstraintSpec specs[] = {{Kind::kJsonObject, ""},
                                  {Kind::kJsonSchema, kSchema},
                                  {Kind::kRegex, "[A-Za-z ,.]+"},
                                  {Kind::kRegex, "[a-z ]{2,40}"}};
  return specs[number];
}

void tables(benchmark::State& state) {
  const ConstraintVocabulary words = vocabulary(state.range(0));
  size_t made = 0;
  for (auto _ : state) made = ConstraintCompiler(words, {}, {}).table_bytes();
  state.counters["bytes"] = static_cast<double>(made);
  state.counters["planned"] = static_cast<double>(ConstraintCompiler::planned_bytes(words));
}

void compile(benchmark::State& state) {
  const ConstraintVocabulary words = vocabulary(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    ConstraintCompiler compiler(words, {}, {});
    state.ResumeTiming();
    const auto made = compiler.compile(spec(state.range(1)));
    state.counters["bytes"] = static_cast<double>((*made)->bytes());
  }
}

// One token of a text that takes any allowed token: follow it, and find what may come next.
void mask(benchmark::State& state) {
  const ConstraintVocabulary words = vocabulary(state.range(0));
  ConstraintCompiler compiler(words, {}, {});
  const auto made = compiler.compile(spec(state.range(1)));
  std::mt19937 random(1);
  auto matcher = std::make_unique<ConstraintMatcher>(*made);
  std::vector<TokenId> tokens;
  double most = 0;
  size_t held = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(matcher->follow(tokens));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    state.PauseTiming();
    most = std::max(most, took.count());
    held = std::max(held, matcher->bytes());
    std::vector<int32_t> open;
    for (size_t i = 0; i < words.bytes.size(); ++i)
      if ((matcher->allowed()[i / 32] >> (i % 32)) & 1) open.push_back(static_cast<int32_t>(i));
    const TokenId next{open[random() % open.size()]};
    tokens.push_back(next);
    const bool end = std::find(words.end_ids.begin(), words.end_ids.end(), next) != words.end_ids.end();
    if (end || tokens.size() == 200) {
      tokens.clear();
      matcher = std::make_unique<ConstraintMatcher>(*made);
    }
    state.ResumeTiming();
  }
  state.counters["most_us"] = most;
  state.counters["held"] = static_cast<double>(held);
}

// What the mask adds to the choice of a token: a pick without one (0), and with one that allows every second
// id.
void pick_of_row(benchmark::State& state) {
  const size_t vocab = vocabulary(state.range(0)).bytes.size();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> row(vocab), logits;
  for (float& x : row) x = normal(random);
  const std::vector<uint32_t> mask((vocab + 31) / 32, 0x55555555u);
  Scratch scratch(vocab);
  Params params;
  Context context{.prompt = {}, .generated = {}, .end_ids = {}, .suppressed_ids = {}};
  if (state.range(1) == 1) context.allowed = mask;
  for (auto _ : state) {
    logits = row;
    benchmark::DoNotOptimize(pick(logits, params, context, scratch));
  }
}

BENCHMARK(pick_of_row)->ArgsProduct({{0, 1}, {0, 1}})->Unit(benchmark::kMicrosecond);
BENCHMARK(tables)->DenseRange(0, 1)->Unit(benchmark::kMillisecond);
BENCHMARK(compile)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->Unit(benchmark::kMillisecond)->Iterations(5);
BENCHMARK(mask)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->Unit(benchmark::kMicrosecond)->Iterations(2000);

}  // namespace
}  // namespace tally::sample
