// Any bytes as a model file with a tokenizer; what stands behind the header is text. It loads or is refused,
// the second time (from the cache) gives the same ids, no byte is lost, what is streamed is valid UTF-8.

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/input_file.h"
#include "gguf/gguf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tally::TokenId;
using tally::text::Tokenizer;

// Text is not cut, and a token stands for its own bytes, where the vocabulary is of bytes.
bool keeps_bytes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  if (tokenizer.model() != "gpt2") return false;
  return std::none_of(ids.begin(), ids.end(), [&](TokenId id) {
    return id == tokenizer.unknown() || tokenizer.kind(id) == tally::text::TokenKind::kUnknown ||
           tokenizer.kind(id) == tally::text::TokenKind::kByte;
  });
}

void check_encoding(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, false, false);
  const auto again = tokenizer.encode(text, false, false);
  TALLY_CHECK(ids.has_value() == again.has_value(), "the cache changed the answer");
  (void)tokenizer.encode_spans(std::vector<tally::text::TextSpan>{{"<s>a", true}, {std::string(text), false}},
                               true);
  if (!ids) return;
  TALLY_CHECK(*ids == *again, "the cache changed the ids");
  std::string bytes;
  for (const TokenId id : *ids) {
    TALLY_CHECK(tokenizer.contains(raw(id)), "an id that is none", raw(id));
    bytes += tokenizer.bytes(id);
  }
  if (keeps_bytes(tokenizer, *ids)) TALLY_CHECK(bytes == text, "bytes lost", bytes.size(), text.size());
  TALLY_CHECK(tally::base::utf8_find_invalid(tokenizer.decode(*ids, false)) == std::string::npos,
              "decoded to invalid UTF-8");
}

// Every token once, and once more after the one before it.
void check_stream(const Tokenizer& tokenizer) {
  tally::text::DetokenizerOptions options;
  options.stop = {"ab", "\xC3\xA9"};
  tally::text::Detokenizer detokenizer(tokenizer, options);
  std::string out;
  const auto count = static_cast<int32_t>(std::min<size_t>(tokenizer.vocab_size(), 64));
  for (int32_t id = 0; id < count; ++id) {
    (void)tokenizer.bytes_with_special(TokenId{id});
    out += detokenizer.feed(TokenId{id});
  }
  out += detokenizer.finish();
  TALLY_CHECK(tally::base::utf8_find_invalid(out) == std::string::npos, "invalid UTF-8 streamed");
  TALLY_CHECK(out.find("ab") == std::string::npos, "a stop string leaked");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = tally::gguf::File::open(input_file(data, size));
  if (!file) return 0;
  const auto tokenizer = Tokenizer::load(*file);
  if (!tokenizer) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_encoding(*tokenizer, bytes.substr(file->header_bytes()));
  check_stream(*tokenizer);
  return 0;
}
