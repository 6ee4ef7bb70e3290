// Bytes of text, told in different tokens, give the same text: whatever the stop strings, and wherever a
// character is split. The first line of the input holds the stop strings, split by \x01.

#include "base/check.h"
#include "base/utf8.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tally::TokenId;
using tally::text::Detokenizer;
using tally::text::DetokenizerOptions;
using tally::text::Tokenizer;

// Byte-level: token b is the byte b, then pieces that cut characters in many ways.
constexpr std::string_view kPieces[] = {"ab",
                                        "abc",
                                        "ba",
                                        " a",
                                        "\xC3\xA9",
                                        "\xE2\x82",
                                        "\x82\xAC",
                                        "\xAC",
                                        "a\xE2",
                                        "\xF0\x9F",
                                        "\x9F\x98",
                                        "\xF0\x9F\x98\x80",
                                        "\xFF\xFE",
                                        "\xEF\xBF\xBD",
                                        "a\x80",
                                        "\n\n",
                                        "abab",
                                        "\xA9"
                                        "a"};

Tokenizer make_tokenizer() {
  std::vector<std::string> tokens;
  std::string spelling[256];
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    tally::base::utf8_append(spelling[byte], itself ? byte : next++);
    tokens.push_back(spelling[byte]);
  }
  for (const std::string_view piece : kPieces) {
    std::string spelt;
    for (const char c : piece) spelt += spelling[static_cast<uint8_t>(c)];
    if (std::find(tokens.begin(), tokens.end(), spelt) == tokens.end()) tokens.push_back(spelt);
  }
  tally::gguf::Writer writer;
  writer.set_string("tokenizer.ggml.model", "gpt2");
  writer.set_string("tokenizer.ggml.pre", "gpt-2");
  writer.set_strings("tokenizer.ggml.tokens", tokens);
  writer.set_strings("tokenizer.ggml.merges", std::vector<std::string>{});
  const std::string bytes = writer.bytes();
  const int fd = memfd_create("detokenizer_fuzz", MFD_CLOEXEC);
  TALLY_CHECK(fd >= 0, "memfd_create");
  TALLY_CHECK(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
              "write to a memory file");
  const auto file = tally::gguf::File::open("/proc/self/fd/" + std::to_string(fd));
  close(fd);
  TALLY_CHECK(file.has_value(), "the vocabulary is no file");
  auto tokenizer = Tokenizer::load(*file);
  TALLY_CHECK(tokenizer.has_value(), "the vocabulary does not load");
  return std::move(*tokenizer);
}

// Pieces of more than a byte are taken where `bits` says so.
std::vector<TokenId> tokens_of(const Tokenizer& tokenizer, std::string_view text, uint64_t bits) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < text.size(); bits = bits << 63 | bits >> 1) {
    auto best = static_cast<int32_t>(static_cast<uint8_t>(text[i]));
    for (auto id = int32_t{256}; bits % 2 == 1 && static_cast<size_t>(id) < tokenizer.vocab_size(); ++id) {
      const std::string_view piece = tokenizer.bytes(TokenId{id});
      if (text.substr(i).starts_with(piece) && piece.size() > tokenizer.bytes(TokenId{best}).size())
        best = id;
    }
    ids.push_back(TokenId{best});
    i += tokenizer.bytes(TokenId{best}).size();
  }
  return ids;
}

struct Told {
  std::string text;
  std::optional<size_t> stopped;
};

Told tell(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, const DetokenizerOptions& options) {
  Detokenizer detokenizer(tokenizer, options);
  Told told;
  for (const TokenId id : ids) {
    const std::string more = detokenizer.feed(id);
    told.text += more;
    TALLY_CHECK(tally::base::utf8_find_invalid(more) == std::string::npos, "invalid UTF-8 streamed");
  }
  told.text += detokenizer.finish();
  told.stopped = detokenizer.stopped();
  TALLY_CHECK(detokenizer.tokens_shown() <= ids.size(), "more tokens shown than fed");
  return told;
}

// The stop string that is complete first, the longest of those; of equal ones any.
std::optional<size_t> first_stop(std::string_view text, const std::vector<std::string>& stops,
                                 std::string_view& before) {
  std::optional<size_t> best;
  size_t best_end = std::string_view::npos;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (tally::base::utf8_find_invalid(stops[i]) != std::string::npos) continue;
    const size_t at = text.find(stops[i]);
    if (at == std::string_view::npos) continue;
    const size_t end = at + stops[i].size();
    if (best && (end > best_end || (end == best_end && stops[i].size() <= stops[*best].size()))) continue;
    best = i, best_end = end, before = text.substr(0, at);
  }
  return best;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(input.find('\n'), size);
  DetokenizerOptions options;
  for (std::string_view rest = input.substr(0, line); !rest.empty();) {
    const size_t end = std::min(rest.find('\x01'), rest.size());
    const std::string_view stop = rest.substr(0, std::min(end, tally::text::kStopBytesMax));
    if (!stop.empty() && options.stop.size() < tally::text::kStopStringsMax) options.stop.emplace_back(stop);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const std::string_view text = input.substr(std::min(line + 1, size));

  const std::string clean = tally::base::utf8_replace_invalid(text);
  std::string_view wanted = clean;
  const auto stopped = first_stop(clean, options.stop, wanted);
  for (const uint64_t bits : {uint64_t{0}, ~uint64_t{0}, uint64_t{0x9E3779B97F4A7C15} * (size + 1)}) {
    const Told told = tell(tokenizer, tokens_of(tokenizer, text, bits), options);
    TALLY_CHECK(told.text == wanted, "another text", told.text.size(), wanted.size());
    TALLY_CHECK(told.stopped.has_value() == stopped.has_value(),
                "a stop string was missed, or seen where none is");
    if (stopped) TALLY_CHECK(options.stop[*told.stopped] == options.stop[*stopped], "another stop string");
  }
  return 0;
}
