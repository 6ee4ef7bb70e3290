#pragma once
// What a Tokenizer owns, and how it is read from a file.

#include "base/result.h"
#include "gguf/gguf.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/special_tokens.h"
#include "text/spm.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

// Answers of the file to yes-or-no questions, with the defaults of the model kind filled in.
struct EncodeRules {
  bool add_bos = false;
  bool add_eos = false;
  bool space_prefix = false;     // SPM: a space before a fragment that is first or follows a special token
  bool squeeze_spaces = false;   // SPM: remove_extra_whitespaces
  bool eat_space_right = false;  // phi-3: special tokens swallow the whitespace behind them
};

struct Tokenizer::State {
  explicit State(Vocabulary v) : vocabulary(std::move(v)), specials(vocabulary) {}
  State(State&&) = delete;  // the encoders point at the vocabulary

  const Vocabulary vocabulary;
  const SpecialTokens specials;
  EncodeRules rules;
  std::string model, pre;
  std::optional<std::string> chat_template;
  std::vector<std::string> warnings;
  const PreTokenizer* pre_tokenizer = nullptr;  // BPE only
  std::optional<BpeEncoder> bpe;                // exactly one of the two
  std::optional<SpmEncoder> spm;
  std::atomic<bool> double_bos_logged = false;
  std::unique_ptr<WordCache> cache = std::make_unique<WordCache>(vocabulary.size());
};

// Errors: kBadData, naming the key.
base::Result<VocabularyFields> read_vocabulary_fields(const gguf::File& file, bool byte_level);

}  // namespace tally::text
