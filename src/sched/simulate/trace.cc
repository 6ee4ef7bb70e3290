#include "sched/simulate/trace.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace tally::sched::simulate {

namespace {

// The finaliser of SplitMix64: neighbours in, unrelated numbers out.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t n) { return next() % n; }
  double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

 private:
  uint64_t state_;
};

// The natural logarithm by basic operations, which IEEE 754 rounds one way: a library's last bit may differ
// from machine to machine, and with it the trace.
double logarithm(double x) {
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  const double t = (mantissa - 1) / (mantissa + 1);
  double sum = 0, power = t;
  for (int k = 1; k < 32; k += 2) sum += power / k, power *= t * t;
  return 2 * sum + exponent * 0.6931471805599453;
}

struct Class {
  uint32_t share;           // of 100
  uint32_t prompt, output;  // prompt lengths lie within 40 % of this
};
constexpr Class kMix[] = {{30, 50, 30}, {50, 300, 100}, {20, 1200, 200}};
constexpr uint32_t kBurst = 32;                                              // requests at one instant
constexpr uint32_t kGroups = 4, kPrefix = 500, kSuffix = 40, kAnswer = 100;  // of shared-prefix

// How many of n requests each class has, by largest remainder (ties: the earlier class).
std::vector<uint32_t> class_counts(uint32_t n) {
  std::vector<uint32_t> counts;
  uint32_t left = n;
  for (const Class& c : kMix) {
    counts.push_back(static_cast<uint32_t>(uint64_t{n} * c.share / 100));
    left -= counts.back();
  }
  std::vector<bool> rounded(counts.size(), false);
  for (; left > 0; --left) {
    size_t best = 0;
    const auto remainder = [&](size_t i) { return rounded[i] ? 0 : uint64_t{n} * kMix[i].share % 100; };
    for (size_t i = 1; i < counts.size(); ++i)
      if (remainder(i) > remainder(best)) best = i;
    ++counts[best], rounded[best] = true;
  }
  return counts;
}

// The i-th of n equally spaced quantiles of [0.6 mean, 1.4 mean]: no draw, so that every seed has the same
// lengths.
uint32_t quantile(uint32_t mean, uint32_t i, uint32_t n) {
  const uint64_t low = uint64_t{mean} * 6 / 10, high = uint64_t{mean} * 14 / 10;
  return static_cast<uint32_t>(low + ((2 * uint64_t{i} + 1) * (high - low) + n) / (2 * uint64_t{n}));
}

std::vector<TraceRequest> mix_requests(uint32_t n) {
  std::vector<TraceRequest> out;
  out.reserve(n);
  const std::vector<uint32_t> counts = class_counts(n);
  for (size_t c = 0; c < counts.size(); ++c) {
    for (uint32_t i = 0; i < counts[c]; ++i)
      out.push_back({.prompt = quantile(kMix[c].prompt, i, counts[c]), .output = kMix[c].output});
  }
  return out;
}

void shuffle(std::vector<TraceRequest>& requests, Draw& draw) {
  for (size_t i = requests.size(); i > 1; --i) std::swap(requests[i - 1], requests[draw.below(i)]);
}

// Poisson arrivals of groups of `together`: exponential gaps, rescaled to their mean, so that the load
// offered is the same for every seed.
void set_arrivals(std::vector<TraceRequest>& requests, double rate, uint32_t together, Draw& draw) {
  std::vector<double> at{0};
  while (at.size() * together < requests.size()) at.push_back(at.back() - logarithm(draw.unit()));
  const double wanted = static_cast<double>(at.size() - 1) * together / rate;  // s
  const double scale = at.size() > 1 ? wanted * 1e6 / at.back() : 0;
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].arrival = static_cast<Tick>(at[i / together] * scale);
}

Trace build_mix(const TraceShape& shape, uint32_t together) {
  Trace trace;
  Draw draw(shape.seed);
  trace.requests = mix_requests(shape.requests);
  shuffle(trace.requests, draw);
  set_arrivals(trace.requests, shape.rate, together, draw);
  return trace;
}

Trace build_shared_prefix(const TraceShape& shape) {
  Trace trace;
  Draw draw(shape.seed);
  for (uint32_t group = 0; group < kGroups; ++group) trace.segments.push_back(group);
  trace.requests.reserve(shape.requests);
  for (uint32_t i = 0; i < shape.requests; ++i) {
    trace.requests.push_back({.prompt = kPrefix + quantile(kSuffix, i, shape.requests),
                              .output = kAnswer,
                              .shared = kPrefix,
                              .segment = i % kGroups});
  }
  shuffle(trace.requests, draw);
  set_arrivals(trace.requests, shape.rate, 1, draw);
  return trace;
}

// 31 bits that follow from a name; the stride from the same name keeps two names from running into each
// other.
struct IdStream {
  explicit IdStream(uint64_t name)
      : base(mix(name)), stride(static_cast<uint32_t>(mix(name ^ 0x5EED) >> 32) | 1) {}
  TokenId at(uint32_t i) const {
    return TokenId{static_cast<int32_t>((static_cast<uint32_t>(base) + i * stride) & 0x7FFFFFFF)};
  }
  uint64_t base;
  uint32_t stride;
};

}  // namespace

uint64_t Trace::prompt_tokens() const {
  uint64_t sum = 0;
  for (const TraceRequest& r : requests) sum += r.prompt;
  return sum;
}
uint64_t Trace::output_tokens() const {
  uint64_t sum = 0;
  for (const TraceRequest& r : requests) sum += uint64_t{r.output} * r.choices;
  return sum;
}
uint64_t Trace::sequences() const {
  uint64_t sum = 0;
  for (const TraceRequest& r : requests) sum += r.choices;
  return sum;
}

void prompt_ids(const Trace& trace, size_t request, std::vector<TokenId>& into) {
  const TraceRequest& r = trace.requests[request];
  into.resize(r.prompt);
  uint32_t at = 0;
  for (uint32_t segment = r.segment; at < r.shared; ++segment) {
    const IdStream ids(trace.segments[segment]);
    const uint32_t tokens = std::min(trace.segment_tokens, r.shared - at);
    for (uint32_t i = 0; i < tokens; ++i) into[at++] = ids.at(i);
  }
  const IdStream own(request | uint64_t{1} << 40);  // no segment's name
  for (uint32_t i = 0; at < r.prompt; ++i) into[at++] = own.at(i);
}

std::span<const std::string_view> trace_names() {
  static constexpr std::string_view kNames[] = {"mix", "shared-prefix", "bursty"};
  return kNames;
}

std::optional<Trace> build_trace(std::string_view name, const TraceShape& shape) {
  TALLY_CHECK(shape.requests >= 1 && shape.requests <= kRequestsMax && shape.rate > 0, "shape of a trace",
              shape.requests, shape.rate);
  if (name == trace_names()[0]) return build_mix(shape, 1);
  if (name == trace_names()[1]) return build_shared_prefix(shape);
  if (name == trace_names()[2]) return build_mix(shape, kBurst);
  return std::nullopt;
}

void reshape(Trace& trace, uint32_t requests, double rate) {
  if (requests != 0 && requests < trace.requests.size()) trace.requests.resize(requests);
  if (rate == 0 || trace.requests.size() < 2 || trace.requests.back().arrival == 0) return;
  const double wanted = static_cast<double>(trace.requests.size() - 1) / rate * 1e6;
  const double scale = wanted / static_cast<double>(trace.requests.back().arrival);
  for (TraceRequest& r : trace.requests)
    r.arrival = static_cast<Tick>(static_cast<double>(r.arrival) * scale);
}

}  // namespace tally::sched::simulate
