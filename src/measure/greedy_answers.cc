#include "measure/greedy_answers.h"

#include "measure/client.h"
#include "measure/load_draw.h"
#include "measure/store.h"
#include "measure/workload.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <thread>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

struct Question {
  uint32_t shared_words, own_words;  // the shared ones come first, and are the same for all
};
constexpr std::array<Question, 6> kQuestions{{{0, 6}, {0, 25}, {0, 90}, {80, 12}, {80, 30}, {0, 150}}};
constexpr uint32_t kTokens = 24, kLikeliest = 3;
constexpr auto kTimeout = std::chrono::minutes(5);

void add_words(std::string& to, Draw draw, uint32_t count) {
  const auto words = common_words();
  for (uint32_t i = 0; i < count; ++i)
    to += fmt::format("{}{}", to.empty() ? "" : " ", words[draw.below(words.size())]);
}

std::string body_of(const std::string& model, size_t number) {
  std::string prompt;
  add_words(prompt, Draw({0}), kQuestions[number].shared_words);
  add_words(prompt, Draw({number + 1}), kQuestions[number].own_words);
  return line_of({{"model", model},
                  {"prompt", prompt},
                  {"max_tokens", kTokens},
                  {"ignore_eos", true},
                  {"temperature", 0},
                  {"logprobs", kLikeliest}});
}

Result<std::string> model_of(const Endpoint& endpoint) {
  TALLY_TRY(const Answer answer, Caller(endpoint).call({.path = "/v1/models", .body = {}}));
  const auto page = parse_object(answer.body);
  const json* list = page && page->contains("data") ? &(*page)["data"] : nullptr;
  if (list == nullptr || !list->is_array() || list->empty() || !(*list)[0].is_object())
    return Error{ErrorCode::kUnavailable, fmt::format("GET /v1/models: {} without a model", answer.status)};
  return text_at((*list)[0], "id");
}

}  // namespace

Result<std::vector<GreedyAnswer>> greedy_answers(const std::string& url, const std::string& api_key) {
  TALLY_TRY(const Endpoint endpoint, resolve(url, api_key));
  TALLY_TRY(const std::string model, model_of(endpoint));
  std::array<std::optional<Result<Answer>>, kQuestions.size()> answers;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kQuestions.size(); ++i)
    threads.emplace_back([&, i] {
      const std::string body = body_of(model, i);
      answers[i] = Caller(endpoint).call({"POST", "/v1/completions", body, false}, kTimeout);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<GreedyAnswer> out;
  for (auto& answer : answers) {
    if (!*answer) return answer->error();
    out.emplace_back();
    if ((*answer)->status != 200) continue;
    const auto page = parse_object((*answer)->body);
    const json choice = page ? page->value(json::json_pointer("/choices/0"), json()) : json();
    if (choice.is_object()) out.back() = {text_at(choice, "text"), line_of(choice)};
  }
  return out;
}

}  // namespace tally::measure
