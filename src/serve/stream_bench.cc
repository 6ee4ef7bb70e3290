// What a streamed token costs of the CPUs besides the forward pass: everything between an engine without a
// model and the socket, i.e. waking the answer, detokenizing, JSON, events, writing. Reported is CPU time a
// token, of all threads but the client's; the fake engine's bookkeeping is in it, so it is an upper bound. By
// streams at once: one alone wakes a thread for each token, many share what is woken. Run it from the top of
// the tree.
#include "serve/rig_test_support.h"

#include <benchmark/benchmark.h>

#include <ctime>

namespace tally::serve {
namespace {

constexpr int kTokens = 400;  // a stream

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of the process without the calling thread.
double cpu_of_others_s() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

// Each client asks for a stream, and then all of them are read to their ends; what comes meanwhile waits in
// the kernel.
bool read_streams(const Rig& rig, int64_t streams, const std::string& path, const std::string& body) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int64_t i = 0; i < streams; ++i) {
    clients.push_back(std::make_unique<Client>(rig.port()));
    clients.back()->send(Rig::post_bytes(path, body));
  }
  bool whole = true;
  for (const auto& client : clients) whole = client->wait_for("data: [DONE]\n\n") && whole;
  return whole;
}

void stream(benchmark::State& state, const std::string& path, const std::string& fields) {
  RigOptions options;
  options.engine.step_us = 2000;  // a pass of a small model: the server has done its part before the next
  Rig rig(options);
  const int64_t streams = state.range(0);
  const std::string body = R"({"model":"tiny","stream":true,"ignore_eos":true,"max_tokens":)" +
                           std::to_string(kTokens) + fields + "}";
  for (auto _ : state) {
    const double begin_s = cpu_of_others_s();
    if (!read_streams(rig, streams, path, body)) {
      state.SkipWithError("a stream did not end");
      return;
    }
    state.SetIterationTime((cpu_of_others_s() - begin_s) / static_cast<double>(streams * kTokens));
  }
}

void completions(benchmark::State& state) { stream(state, "/v1/completions", R"(,"prompt":"x")"); }
void chat(benchmark::State& state) {
  stream(state, "/v1/chat/completions", R"(,"messages":[{"role":"user","content":"x"}])");
}
void with_logprobs(benchmark::State& state) {
  stream(state, "/v1/completions", R"(,"prompt":"x","logprobs":5)");
}

void by_streams(benchmark::internal::Benchmark* bench) {
  bench->ArgName("streams")->Arg(1)->Arg(4)->Arg(16)->Arg(64);
  bench->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
}
BENCHMARK(completions)->Apply(by_streams);
BENCHMARK(chat)->Apply(by_streams);
BENCHMARK(with_logprobs)->Apply(by_streams);

}  // namespace
}  // namespace tally::serve
