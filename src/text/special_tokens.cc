#include "text/special_tokens.h"

#include "text/unicode_classes.h"

namespace tally::text {
namespace {

// Placeholders (those of empty texts too), and single blanks, which ordinary merging finds by itself, next to
// others.
bool is_excluded(std::string_view text) {
  if (text.starts_with("[UNUSED") || text.starts_with("[EMPTY_")) return true;
  const Character first = character_at(UnicodeClasses::table(), text, 0);
  return first.length == text.size() && (first.bits & kSpace) != 0;
}

}  // namespace

LeftmostLongest::LeftmostLongest(const std::vector<std::string_view>& texts, const std::vector<uint32_t>& ids)
    : trie_(texts), links_(trie_.size()) {
  links_[ByteTrie::kRoot].fail = ByteTrie::kRoot;
  // Breadth first, so the links of a parent are ready. A state whose path contains a match has a dead link:
  // giving up its start would only find matches that begin later.
  for (uint32_t n = 1; n < trie_.size(); ++n) {
    const ByteTrie::Node& node = trie_.node(n);
    Link& link = links_[n];
    if (node.parent == ByteTrie::kRoot) {
      link.fail = ByteTrie::kRoot;
    } else {
      uint32_t f = links_[node.parent].fail;
      while (f != ByteTrie::kNone) {
        if (const uint32_t c = trie_.child(f, node.label); c != ByteTrie::kNone) {
          link.fail = c;
          break;
        }
        if (f == ByteTrie::kRoot) {
          link.fail = ByteTrie::kRoot;
          break;
        }
        f = links_[f].fail;
      }
    }
    if (node.pattern != ByteTrie::kNone) {
      link = {ByteTrie::kNone, ids[node.pattern], node.depth};
    } else if (link.fail != ByteTrie::kNone) {
      link.match = links_[link.fail].match;
      link.match_bytes = links_[link.fail].match_bytes;
    }
  }
}

std::optional<SpecialMatch> LeftmostLongest::find(std::string_view text, size_t from) const {
  std::optional<SpecialMatch> found;
  uint32_t state = ByteTrie::kRoot;
  for (size_t i = from; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    uint32_t next = trie_.child(state, byte);
    while (next == ByteTrie::kNone && state != ByteTrie::kRoot) {
      state = links_[state].fail;
      if (state == ByteTrie::kNone) return found;
      next = trie_.child(state, byte);
    }
    if (next == ByteTrie::kNone) continue;  // at the root
    state = next;
    if (const Link& link = links_[state]; link.match != ByteTrie::kNone) {
      found = SpecialMatch{i + 1 - link.match_bytes, i + 1, link.match};
    }
  }
  return found;
}

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) {
  std::vector<std::string_view> all, user;
  std::vector<uint32_t> all_ids, user_ids;
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kind(id);
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined && kind != TokenKind::kUnknown)
      continue;
    const std::string_view text = vocabulary.piece(id);
    if (is_excluded(text)) continue;
    if (text.size() > kSpecialBytesMax) {
      ++too_long_count_;
      continue;
    }
    all.push_back(text), all_ids.push_back(id);
    if (kind == TokenKind::kUserDefined) user.push_back(text), user_ids.push_back(id);
  }
  all_ = LeftmostLongest(all, all_ids);
  user_defined_ = LeftmostLongest(user, user_ids);
}

}  // namespace tally::text
