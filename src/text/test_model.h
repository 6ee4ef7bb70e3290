#pragma once
// Small tokenizers for tests: a gpt2 or llama vocabulary in a GGUF file of its own.

#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

// A token of the test: its text and its kind.
struct TestToken {
  std::string text;
  int32_t kind = 1;
  float score = 0;
};

class TestModel {
 public:
  // Byte-level: the 256 bytes, then `more`; ids in that order. `merges` as the format has them.
  static TestModel bpe(std::string_view pre, std::vector<TestToken> more,
                       const std::vector<std::string>& merges) {
    TestModel m;
    m.writer.set_string("tokenizer.ggml.model", "gpt2");
    if (!pre.empty()) m.writer.set_string("tokenizer.ggml.pre", pre);
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      m.tokens.push_back({byte_level_spelling({&c, 1})});
    }
    m.tokens.insert(m.tokens.end(), more.begin(), more.end());
    m.writer.set_strings("tokenizer.ggml.merges", merges);
    return m;
  }

  // SPM: <unk> 0, <s> 1, </s> 2, 256 byte tokens from 3, then `more` from 259.
  static TestModel spm(std::vector<TestToken> more) {
    TestModel m;
    m.writer.set_string("tokenizer.ggml.model", "llama");
    m.tokens = {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}};
    for (int byte = 0; byte < 256; ++byte) m.tokens.push_back({byte_token(byte), 6});
    m.tokens.insert(m.tokens.end(), more.begin(), more.end());
    m.writer.set_uint("tokenizer.ggml.bos_token_id", 1);
    m.writer.set_uint("tokenizer.ggml.eos_token_id", 2);
    m.writer.set_uint("tokenizer.ggml.unknown_token_id", 0);
    return m;
  }

  static std::string byte_token(int byte) {
    const std::string_view digits = "0123456789ABCDEF";
    std::string text = "<0x00>";
    text[3] = digits[static_cast<size_t>(byte) / 16];
    text[4] = digits[static_cast<size_t>(byte) % 16];
    return text;
  }

  base::Result<Tokenizer> load() {
    std::vector<std::string> texts;
    std::vector<int32_t> kinds;
    std::vector<float> scores;
    for (const TestToken& t : tokens) {
      texts.push_back(t.text);
      kinds.push_back(t.kind);
      scores.push_back(t.score);
    }
    if (with_tokens) writer.set_strings("tokenizer.ggml.tokens", texts);
    if (with_kinds) writer.set_ints("tokenizer.ggml.token_type", kinds);
    if (with_scores) writer.set_floats("tokenizer.ggml.scores", scores);
    writer.set_string("general.architecture", "llama");
    const std::string path = testing::TempDir() + "tokenizer_test_" + std::to_string(getpid()) + ".gguf";
    TALLY_TRY_VOID(writer.write(path));
    auto file = gguf::File::open(path);
    std::filesystem::remove(path);
    if (!file) return file.error();
    return Tokenizer::load(*file);
  }

  std::vector<TestToken> tokens;
  bool with_tokens = true, with_kinds = true, with_scores = true;
  gguf::Writer writer;  // for more keys
};

inline std::vector<int32_t> numbers(const base::Result<std::vector<TokenId>>& ids) {
  std::vector<int32_t> out;
  EXPECT_TRUE(ids) << (ids ? "" : ids.error().message);
  if (ids) {
    for (const TokenId id : *ids) out.push_back(raw(id));
  }
  return out;
}

}  // namespace tally::text
