#include "measure/generator.h"

#include "measure/stream.h"
#include "measure/watch_proc.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>

namespace tally::measure {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Duration kTick = std::chrono::milliseconds(10);
constexpr uint64_t kTicksPerSample = 10;
constexpr double kAfterDoneS = 1;  // [DONE] was read: how long the rest of the answer may take

class Generator;

// Sends one request after another on a connection of its own: a user, or a place in an open loop.
class Sender final : public ExchangeSink {
 public:
  explicit Sender(Generator& generator);
  // Requires: idle. `due`: the planned instant, null: that of sending.
  void send(size_t request, std::string bytes, const Instant* due);
  bool is_busy() const { return connection_->is_busy(); }
  void give_up() { connection_->give_up("interrupted"); }
  size_t request() const { return request_; }

  void on_sent(Instant at) override;
  void on_head(int status, std::string_view content_type) override { reader_->begin(status, content_type); }
  bool on_body(std::string_view bytes, Instant at) override;
  void on_end(std::string_view failure, Instant at) override;

 private:
  Generator& generator_;
  std::shared_ptr<Connection> connection_;
  std::string bytes_;
  RequestRecord record_;
  std::optional<AnswerReader> reader_;
  size_t request_ = 0;
  bool is_planned_ = false, is_sent_ = false;
};

class Generator {
 public:
  Generator(const BlockSpec& spec, LoadLive& live)
      : spec_(spec),
        live_(live),
        watch_(io_, spec.endpoint, spec.windows),
        arrival_(io_),
        tick_(io_),
        start_(std::chrono::steady_clock::now()) {}

  BlockTrace run();

  // For lanes.
  double at_s(Instant at) const { return seconds(at - start_); }
  void ended(Sender& sender, RequestRecord record);
  const BlockSpec& spec() const { return spec_; }
  asio::io_context& io() { return io_; }
  LoadLive& live() { return live_; }
  BlockTrace& trace() { return out_; }

 private:
  const PlannedRequest& planned(size_t i) const { return spec_.workload.requests[i]; }
  size_t after(size_t i) const;  // the first one from i on that follows none
  bool has_following(size_t i) const;
  void next_of_user(Sender& sender);
  void wait_for_arrival();
  void arrive();
  void tick();
  void stop();
  void end_if_done();

  const BlockSpec& spec_;
  LoadLive& live_;
  asio::io_context io_{1};
  ServerWatch watch_;
  asio::steady_timer arrival_, tick_;
  Instant start_;
  BlockTrace out_;
  std::deque<Sender> senders_;  // addresses stay
  std::vector<Sender*> idle_;
  struct Waiting {
    size_t request;
    std::string bytes;
    Instant due;
  };
  std::deque<Waiting> waiting_;  // for a place
  size_t next_ = 0;              // of the workload, that follows none
  size_t arrived_ = 0;           // arrivals so far
  std::string next_bytes_;       // of `next_`, made while nothing was due
  uint64_t ticks_ = 0;
  uint32_t running_ = 0;
  bool is_over_ = false;  // a timer that ran out already cannot be called back
};

Sender::Sender(Generator& generator)
    : generator_(generator), connection_(Connection::create(generator.io(), generator.spec().endpoint)) {}

void Sender::send(size_t request, std::string bytes, const Instant* due) {
  const PlannedRequest& planned = generator_.spec().workload.requests[request];
  request_ = request;
  bytes_ = std::move(bytes);
  record_ = {};
  record_.id = planned.id, record_.class_name = planned.class_name, record_.group = planned.group;
  record_.prompt_tokens_planned = planned.prompt_tokens();
  record_.output_tokens_planned = planned.output_tokens;
  record_.events.reserve(planned.output_tokens + 1);
  is_planned_ = due != nullptr, is_sent_ = false;
  if (is_planned_) record_.planned_s = generator_.at_s(*due);
  reader_.emplace(record_, generator_.spec().is_stream);
  connection_->start(bytes_, *this, duration(generator_.spec().timeout_s));
}

void Sender::on_sent(Instant at) {
  if (std::exchange(is_sent_, true)) return;
  record_.sent_s = generator_.at_s(at);
  if (!is_planned_) record_.planned_s = record_.sent_s;
}

bool Sender::on_body(std::string_view bytes, Instant at) {
  const size_t before = record_.events.size();
  const bool goes_on = reader_->add(bytes, generator_.at_s(at));
  generator_.live().events.fetch_add(record_.events.size() - before, std::memory_order_relaxed);
  if (goes_on && reader_->is_done()) connection_->set_deadline(duration(kAfterDoneS));
  return goes_on;
}

void Sender::on_end(std::string_view failure, Instant at) {
  const double at_s = generator_.at_s(at);
  if (!is_sent_) record_.sent_s = at_s;
  if (!is_sent_ && !is_planned_) record_.planned_s = at_s;
  reader_->end(failure, at_s);
  if (generator_.trace().is_stopped && !record_.completed()) record_.outcome = Outcome::kIncomplete;
  generator_.ended(*this, std::move(record_));
}

BlockTrace Generator::run() {
  const auto& requests = spec_.workload.requests;
  out_.requests.reserve(requests.size());
  live_.total = static_cast<uint32_t>(requests.size());
  live_.ended = 0, live_.failed = 0, live_.running = 0, live_.events = 0;
  const double cpu_s = thread_cpu_s();
  start_ = std::chrono::steady_clock::now();
  out_.start_us = std::chrono::duration_cast<std::chrono::microseconds>(start_.time_since_epoch()).count();
  next_ = after(0);
  if (spec_.users > 0) {
    const size_t users = std::min<size_t>(spec_.users, requests.size());
    for (size_t i = 0; i < users && next_ < requests.size(); ++i) next_of_user(senders_.emplace_back(*this));
  } else {
    wait_for_arrival();
  }
  tick();
  io_.run();
  out_.cpu_s = thread_cpu_s() - cpu_s;
  out_.wall_s = seconds(std::chrono::steady_clock::now() - start_);
  out_.memory = watch_.take();
  out_.step_pages = watch_.take_steps();
  out_.kv_utilisations = watch_.utilisations();
  out_.kv_peak_bytes = watch_.kv_peak_bytes();
  return std::move(out_);
}

size_t Generator::after(size_t i) const {
  while (i < spec_.workload.requests.size() && planned(i).follows) ++i;
  return i;
}

bool Generator::has_following(size_t i) const {
  return i + 1 < spec_.workload.requests.size() && planned(i + 1).follows;
}

// Closed loop: the next request, or conversation, that nobody has begun.
void Generator::next_of_user(Sender& sender) {
  if (next_ >= spec_.workload.requests.size()) return;
  const size_t request = next_;
  next_ = after(next_ + 1);
  ++running_;
  sender.send(request, spec_.bytes_of(planned(request)), nullptr);
}

void Generator::wait_for_arrival() {
  if (next_ >= spec_.workload.requests.size()) return;
  next_bytes_ = spec_.bytes_of(planned(next_));
  arrival_.expires_at(start_ + duration(spec_.arrivals_s[arrived_]));
  arrival_.async_wait([this](const error_code& ec) {
    if (!ec && !out_.is_stopped) arrive();
  });
}

void Generator::arrive() {
  const Instant due = arrival_.expiry();
  const size_t request = next_;
  next_ = after(next_ + 1);
  ++arrived_;
  if (spec_.in_flight_max > 0 && running_ >= spec_.in_flight_max) {
    waiting_.push_back({request, std::move(next_bytes_), due});
  } else {
    if (idle_.empty()) idle_.push_back(&senders_.emplace_back(*this));
    Sender& sender = *idle_.back();
    idle_.pop_back();
    ++running_;
    out_.send_lags_s.push_back(seconds(std::chrono::steady_clock::now() - due));
    sender.send(request, std::move(next_bytes_), &due);
  }
  wait_for_arrival();
}

void Generator::ended(Sender& sender, RequestRecord record) {
  live_.ended.fetch_add(1, std::memory_order_relaxed);
  if (!record.completed()) live_.failed.fetch_add(1, std::memory_order_relaxed);
  const bool goes_on = record.completed() && !out_.is_stopped;
  const Instant now = std::chrono::steady_clock::now();
  out_.requests.push_back(std::move(record));
  const size_t request = sender.request();
  if (goes_on && has_following(request)) {  // the same conversation: due as the answer is there
    return sender.send(request + 1, spec_.bytes_of(planned(request + 1)), spec_.users > 0 ? nullptr : &now);
  }
  --running_;
  if (!out_.is_stopped && spec_.users > 0) {
    next_of_user(sender);
  } else if (!out_.is_stopped && !waiting_.empty()) {
    Waiting first = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    sender.send(first.request, std::move(first.bytes), &first.due);
  } else {
    idle_.push_back(&sender);
  }
  end_if_done();
}

void Generator::tick() {
  if (is_over_) return;
  const Instant due = start_ + kTick * static_cast<int64_t>(ticks_);
  const Instant now = std::chrono::steady_clock::now();
  if (ticks_ > 0) out_.wake_lags_s.push_back(seconds(now - due));
  if (ticks_ % kTicksPerSample == 0) {
    live_.running = running_;
    watch_.sample(at_s(now));
    if (live_.stop && !out_.is_stopped) return stop();
  }
  // Ticks that were missed are in the lag of the one that was late.
  ticks_ = std::max(ticks_ + 1, static_cast<uint64_t>((now - start_) / kTick) + 1);
  tick_.expires_at(start_ + kTick * static_cast<int64_t>(ticks_));
  tick_.async_wait([this](const error_code& ec) {
    if (!ec) tick();
  });
}

void Generator::stop() {
  out_.is_stopped = true;
  waiting_.clear();
  for (Sender& sender : senders_)
    if (sender.is_busy()) sender.give_up();
  end_if_done();
}

void Generator::end_if_done() {
  const bool is_all_sent = out_.is_stopped || next_ >= spec_.workload.requests.size();
  if (is_over_ || !is_all_sent || running_ > 0 || !waiting_.empty()) return;
  is_over_ = true;
  watch_.sample(at_s(std::chrono::steady_clock::now()));
  watch_.stop();
  arrival_.cancel();
  tick_.cancel();
}

}  // namespace

BlockTrace run_block(const BlockSpec& spec, LoadLive& live) {
  TALLY_CHECK(!spec.workload.requests.empty(), "an empty workload");
  Generator generator(spec, live);
  return generator.run();
}

}  // namespace tally::measure
