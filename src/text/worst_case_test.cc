// T1, T8. A megabyte of what hurts a tokenizer, for every family of vocabulary: each within a second of
// processor time.

#include "gguf/gguf.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <time.h>

#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::text {
namespace {

#if defined(TALLY_INSTRUMENTED)
constexpr size_t kBytes = 1u << 16;  // the bound is for a release build; here only the memory is watched
#else
constexpr size_t kBytes = 1u << 20;
#endif
constexpr double kSecondsMax = 1.0;

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string repeated(std::string_view unit) {
  std::string out;
  while (out.size() < kBytes) out += unit;
  return out;
}

std::string random_of(std::string_view letters) {
  std::mt19937 random(1);
  std::string out(kBytes, 0);
  for (char& c : out) c = letters.empty() ? static_cast<char>(random()) : letters[random() % letters.size()];
  return out;
}

std::vector<std::pair<std::string, std::string>> worst_texts() {
  return {{"one letter", repeated("a")},
          {"spaces", repeated(" ")},
          {"newlines", repeated("\n")},
          {"CRLF", repeated("\r\n")},
          {"dots", repeated(".")},
          {"apostrophes", repeated("'")},
          {"CJK", repeated("中")},
          {"digits", repeated("1234567890")},
          {"joined emoji", repeated("👩‍👩‍👧‍👦")},
          {"combining marks", repeated("e\u0301\u0302\u0303")},
          {"every pair merges", repeated("the")},
          {"newlines and spaces in turn", repeated(" \n  \n")},
          {"starts of a special token", repeated("<|im_")},
          {"random bytes", random_of("")},
          {"random letters", random_of("abcdefghijklmnopqrstuvwxyz")},
          {"two random letters", random_of("ab")},
          {"frequent letters", random_of("eeettaaoinshrdlu")},
          {"upper and lower case", random_of("Aa")}};
}

class WorstCase : public testing::TestWithParam<std::string> {};

TEST_P(WorstCase, IsBounded) {
  const auto file = gguf::File::open(GetParam());
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = Tokenizer::load(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (const auto& [name, text] : worst_texts()) {
    const double begin = thread_seconds();
    const auto ids = tokenizer->encode(text, true, true);
    const double seconds = thread_seconds() - begin;
    ASSERT_TRUE(ids || name == "random bytes") << name;  // a vocabulary may lack bytes
    EXPECT_LT(seconds, kSecondsMax) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WorstCase,
                         testing::Values("models/smollm2-135m-instruct-q4_1.gguf",
                                         "models/gemma3-270m-q4_k_m.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-gpt-2.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-llama-bpe.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-qwen2.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-falcon.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-deepseek-llm.gguf",
                                         TALLY_GOLDEN_VOCAB_DIR "/ggml-vocab-llama-spm.gguf"),
                         [](const auto& param_info) {
                           std::string name;
                           for (const char c : param_info.param.substr(param_info.param.rfind('/') + 1)) {
                             name += isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace tally::text
