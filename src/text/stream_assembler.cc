#include "text/stream_assembler.h"

#include "base/utf8.h"

namespace tally::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

StreamAssembler::StreamAssembler(std::span<const std::string> stops, bool include_stop)
    : automaton_(stops), include_stop_(include_stop) {}

void StreamAssembler::set_context(std::string_view prompt_bytes) {
  while (!prompt_bytes.empty()) {
    const base::Utf8Step step = base::utf8_step(prompt_bytes);
    if (step.kind == base::Utf8Step::kIncomplete) {
      pending_ = prompt_bytes;
      pending_is_prompt_ = true;
      return;
    }
    prompt_bytes.remove_prefix(step.length);
  }
}

void StreamAssembler::give_out(size_t bytes, std::string& out) {
  out.append(held_, 0, bytes);
  held_.erase(0, bytes);
  while (bytes > 0) {
    Share& share = shares_.front();
    tokens_shown_ = share.token;
    if (share.bytes > bytes) {
      share.bytes -= bytes;
      return;
    }
    bytes -= share.bytes;
    shares_.pop_front();
  }
}

bool StreamAssembler::take(std::string_view character, size_t token, std::string& out) {
  for (const char byte : character) {
    held_ += byte;
    if (!shares_.empty() && shares_.back().token == token) {
      ++shares_.back().bytes;
    } else {
      shares_.push_back({1, token});
    }
    if (const auto match = automaton_.feed(byte)) {
      stopped_ = match->stop_idx;
      give_out(include_stop_ ? held_.size() : held_.size() - match->bytes, out);
      held_.clear();
      pending_.clear();
      return false;
    }
  }
  if (held_.size() > automaton_.depth()) give_out(held_.size() - automaton_.depth(), out);
  return true;
}

std::string StreamAssembler::feed(std::string_view bytes) {
  std::string out;
  if (stopped_) return out;
  ++tokens_fed_;
  if (bytes.empty()) return out;
  const size_t before = pending_.size();
  pending_ += bytes;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const base::Utf8Step step = base::utf8_step(rest);
    if (step.kind == base::Utf8Step::kIncomplete) break;
    at += step.length;
    const bool valid = step.kind == base::Utf8Step::kValid;
    const std::string character(valid ? rest.substr(0, step.length) : kReplacement);
    if (pending_is_prompt_) {
      pending_is_prompt_ = false;
    } else if (!take(character, at <= before ? pending_token_ : tokens_fed_, out)) {
      return out;
    }
  }
  pending_.erase(0, at);
  pending_token_ = tokens_fed_;
  return out;
}

std::string StreamAssembler::finish() {
  std::string out;
  if (stopped_) return out;
  if (!pending_.empty() && !pending_is_prompt_ && !take(kReplacement, pending_token_, out)) return out;
  pending_.clear();
  give_out(held_.size(), out);
  return out;
}

}  // namespace tally::text
