#pragma once
// What serve counts itself. Threads: any; each number alone is right, several together may be a moment apart.

#include "serve/errors.h"
#include "serve/routes.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace tally::serve {

enum class Ended : uint8_t { kStop, kLength, kToolCalls, kDisconnect, kCancel, kDeadline, kShutdown, kError };
inline constexpr std::string_view kEndedNames[] = {"stop",   "length",   "tool_calls", "disconnect",
                                                   "cancel", "deadline", "shutdown",   "error"};
enum class Received : uint8_t { kChat, kCompletions, kTokenize, kOther };
inline constexpr std::string_view kReceivedNames[] = {"chat", "completions", "tokenize", "other"};
enum class Stage : uint8_t { kQueue, kTokenize, kPrefill, kStalled, kDecode, kSample, kDetokenize, kSend };
inline constexpr std::string_view kStageNames[] = {"queue",  "tokenize", "prefill",    "stalled",
                                                   "decode", "sample",   "detokenize", "send"};
inline constexpr size_t kStageCount = std::size(kStageNames);
inline constexpr std::string_view kClassNames[] = {"2xx", "4xx", "5xx"};

// Upper edges and counts; one lock, taken once a request.
class Distribution {
 public:
  explicit Distribution(std::vector<double> edges) : edges_(std::move(edges)), counts_(edges_.size() + 1) {}
  void observe(double value);
  struct Snapshot {
    std::vector<double> edges;
    std::vector<uint64_t> counts;
    double sum = 0;
  };
  Snapshot snapshot() const;

 private:
  const std::vector<double> edges_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> counts_;  // guarded by mutex_
  double sum_ = 0;                // guarded by mutex_
};

// 1 2 5 10 … up to the largest such number not above `max`.
std::vector<double> one_two_five_edges(uint64_t max);

struct Counters {
  std::array<std::atomic<uint64_t>, std::size(kReceivedNames)> received{};
  std::array<std::atomic<uint64_t>, kCodeCount> refused{};
  std::array<std::atomic<uint64_t>, std::size(kEndedNames)> ended{};
  std::array<std::array<std::atomic<uint64_t>, 3>, kRouteCount + 1>
      responses{};  // by route (the last: other) and class
  std::array<std::atomic<uint64_t>, kStageCount> stage_us{};
  std::atomic<uint64_t> sequences_stopped{0};  // cancelled by us at a stop string
  std::atomic<uint64_t> sequences_aborted{0};  // cancelled for a client that left
  std::atomic<int64_t> stalled_writers{0};
  std::atomic<int64_t> compiling{0};  // requests whose constraint is being compiled, or waits for that
};

}  // namespace tally::serve
