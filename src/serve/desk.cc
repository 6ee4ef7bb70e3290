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

// A share of all seats and of the queue, so that one of several keys cannot have all. SIZE_MAX: no limit.
size_t sequences_per_tenant(const Settings& settings, const Backend& backend) {
  if (settings.api_keys.size() < 2 || backend.max_queue == 0) return SIZE_MAX;
  return (size_t{backend.engine->info().max_seqs} + backend.max_queue) / 2;
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
      longest(one_two_five_edges(b.engine->info().max_model_len)),
      tenants_(sequences_per_tenant(s, b), s.keys) {}

void Desk::add(std::shared_ptr<Answer> answer) {
  const std::lock_guard lock(mutex_);
  const Answer* key = answer.get();
  answers_.emplace(key, std::move(answer));
}

void Desk::remove(const Answer* answer) {
  std::shared_ptr<Answer> last;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(answer);
  if (found == answers_.end()) return;
  last = std::move(found->second);
  answers_.erase(found);
}

std::optional<ApiError> Desk::judge(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  return tenants_.judge(tenant, base::now_us());
}

size_t Desk::live() const {
  const std::lock_guard lock(mutex_);
  return answers_.size();
}

Seat::~Seat() {
  if (sequences_ == 0) return;
  if (!is_used_) pay(0);
  const std::lock_guard lock(desk_->mutex_);
  desk_->tenants_.leave(tenant_, sequences_);
}

std::optional<ApiError> Seat::take(const TenantNeeds& needs) {
  const std::lock_guard lock(desk_->mutex_);
  if (auto error = desk_->tenants_.enter(tenant_, needs, base::now_us())) return error;
  sequences_ = needs.sequences;
  paid_tokens_ = needs.prompt_tokens;
  return std::nullopt;
}

void Seat::pay(uint64_t tokens) {
  is_used_ = true;
  const std::lock_guard lock(desk_->mutex_);
  desk_->tenants_.charge(tenant_, static_cast<int64_t>(tokens) - static_cast<int64_t>(paid_tokens_),
                         base::now_us());
  paid_tokens_ = tokens;
}

}  // namespace tally::serve
