#include "serve/desk.h"

#include "base/clock.h"
#include "base/sha256.h"
#include "serve/answer.h"
#include "serve/build_info.h"

namespace tally::serve {
namespace {

std::string make_fingerprint(const engine::Info& info) {
  return "tally-" + base::hex(base::sha256(build_id() + '\n' + info.model_fingerprint + '\n' + info.kv_type))
                        .substr(0, 12);
}

}  // namespace

Desk::Desk(const Settings& s, const Backend& b)
    : settings(s),
      backend(b),
      fingerprint(make_fingerprint(b.engine->info())),
      chat_shape(b.chat_template ? b.chat_template->shape() : text::ChatShape()),
      output(b.chat_template ? text::find_output_format(*b.chat_template, *b.tokenizer, s.output)
                             : text::OutputFormat()),
      created(base::wall_seconds()),
      choices({1, 2, 5, 10, 20}),
      max_tokens(one_two_five_edges(b.engine->info().max_model_len)),
      longest(one_two_five_edges(b.engine->info().max_model_len)) {}

size_t Desk::sequences_per_tenant() const {
  if (settings.api_keys.size() < 2 || backend.max_queue == 0) return SIZE_MAX;
  return (size_t{backend.engine->info().max_seqs} + backend.max_queue) / 2;
}

bool Desk::add(std::shared_ptr<Answer> answer, const std::string& tenant, size_t sequences) {
  const std::lock_guard lock(mutex_);
  size_t total = sequences;
  for (const auto& [other, seat] : answers_)
    if (seat.tenant == tenant) total += seat.sequences;
  if (total > sequences_per_tenant()) return false;
  answers_.emplace(std::move(answer), Seat{tenant, sequences});
  return true;
}

void Desk::remove(const Answer* answer) {
  std::shared_ptr<Answer> last;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  for (auto at = answers_.begin(); at != answers_.end(); ++at) {
    if (at->first.get() != answer) continue;
    last = at->first;
    answers_.erase(at);
    return;
  }
}

size_t Desk::live() const {
  const std::lock_guard lock(mutex_);
  return answers_.size();
}

}  // namespace tally::serve
