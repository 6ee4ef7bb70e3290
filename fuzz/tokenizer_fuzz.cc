// Pieces, merges and text from the input (three fields with a NUL between, one entry a line): a file loads or
// is refused, no byte is lost, the second time (from the cache) gives the same ids, what is streamed is valid
// UTF-8 without a stop string.

#include "base/check.h"
#include "base/utf8.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tally::TokenId;
using tally::text::Tokenizer;

std::string_view take_field(std::string_view& rest) {
  const size_t end = rest.find('\0');
  const std::string_view field = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return field;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

// The 256 bytes as pieces: GPT-2's spelling, or <0xXX>.
std::string byte_piece(bool byte_level, unsigned byte, unsigned& next) {
  std::string piece;
  if (!byte_level) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    piece = "<0x00>";
    piece[3] = kDigits[byte / 16];
    piece[4] = kDigits[byte % 16];
    return piece;
  }
  const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  tally::base::utf8_append(piece, itself ? byte : next++);
  return piece;
}

std::optional<Tokenizer> load(bool byte_level, std::string_view pre, const std::vector<std::string>& words,
                              const std::vector<std::string>& merges) {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back(byte_piece(byte_level, byte, next));
    kinds.push_back(byte_level ? 1 : 6);
  }
  std::set<std::string> seen(tokens.begin(), tokens.end());
  for (size_t i = 0; i < words.size(); ++i) {
    if (!seen.insert(words[i]).second) continue;  // a text that occurs twice would only be refused
    tokens.push_back(words[i]);
    kinds.push_back(i % 4 == 3 ? 4 : 1);
  }
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(static_cast<float>(i % 7));
  tally::gguf::Writer writer;
  writer.set_string("tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
  writer.set_string("tokenizer.ggml.pre", pre);
  writer.set_strings("tokenizer.ggml.tokens", tokens);
  writer.set_ints("tokenizer.ggml.token_type", kinds);
  writer.set_floats("tokenizer.ggml.scores", scores);
  writer.set_strings("tokenizer.ggml.merges", merges);
  const std::string bytes = writer.bytes();
  const int fd = memfd_create("tokenizer_fuzz", MFD_CLOEXEC);
  TALLY_CHECK(fd >= 0, "memfd_create");
  TALLY_CHECK(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
              "write to a memory file");
  const auto file = tally::gguf::File::open("/proc/self/fd/" + std::to_string(fd));
  close(fd);
  if (!file) return std::nullopt;
  auto tokenizer = Tokenizer::load(*file);
  if (!tokenizer) return std::nullopt;
  return std::move(*tokenizer);
}

void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, true, true);
  const auto again = tokenizer.encode(text, true, true);
  TALLY_CHECK(ids && again, "all bytes are in the vocabulary");
  TALLY_CHECK(*ids == *again, "the cache changed the ids");
  std::string bytes;
  for (const TokenId id : *ids) bytes += tokenizer.bytes(id);
  // SPM puts spaces in front of fragments and spells U+2581 as one.
  if (tokenizer.model() == "gpt2") TALLY_CHECK(bytes == text, "bytes lost");
}

void check_stream(const Tokenizer& tokenizer, const std::vector<std::string>& words, std::string_view text) {
  tally::text::DetokenizerOptions options;
  for (const std::string& word : words) {
    if (!word.empty() && options.stop.size() < tally::text::kStopStringsMax) {
      options.stop.push_back(word.substr(0, tally::text::kStopBytesMax));
    }
  }
  tally::text::Detokenizer detokenizer(tokenizer, options);
  std::string out;
  for (const char byte : text) {
    const int32_t id = static_cast<uint8_t>(byte) * static_cast<int32_t>(1 + words.size() / 256);
    out += detokenizer.feed(TokenId{id % static_cast<int32_t>(tokenizer.vocab_size())});
    TALLY_CHECK(tally::base::utf8_find_invalid(out) == std::string::npos, "invalid UTF-8 streamed");
  }
  out += detokenizer.finish();
  TALLY_CHECK(tally::base::utf8_find_invalid(out) == std::string::npos, "invalid UTF-8 streamed");
  for (const std::string& stop : options.stop) {
    if (tally::base::utf8_find_invalid(stop) != std::string::npos) continue;
    TALLY_CHECK(out.find(stop) == std::string::npos, "a stop string leaked");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> words = lines_of(take_field(rest));
  const std::vector<std::string> merges = lines_of(take_field(rest));
  constexpr std::string_view kPres[] = {"gpt-2",  "smollm", "llama-bpe", "qwen2",
                                        "qwen35", "falcon", "default"};
  const std::string_view pre = kPres[size % std::size(kPres)];
  for (const bool byte_level : {true, false}) {
    const std::optional<Tokenizer> tokenizer = load(byte_level, pre, words, merges);
    if (!tokenizer) continue;
    check_round_trip(*tokenizer, rest);
    check_stream(*tokenizer, words, rest);
  }
  return 0;
}
