// What a streamed token costs of the CPUs besides the forward pass: everything between an engine without a
// model and the socket, i.e. waking the answer, detokenizing, JSON, events, writing. Reported is CPU time a
// token, of all threads but the client's; `engine` of it is what the same engine takes alone in the same run,
// with nobody to tell (its timer in place of a pass, and its bookkeeping), and `front_end` the rest. By
// streams at once: one alone wakes a thread for each token, many share what is woken. Run it from the top of
// the tree.
#include "serve/rig_test_support.h"

#include <benchmark/benchmark.h>

#include <chrono>
#include <ctime>
#include <thread>

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

// CPU seconds of as many sequences in an engine that nobody listens to.
double engine_alone_s(const FakeOptions& options, int64_t streams, int32_t logprobs) {
  engine::Request request;
  request.prompt = {TokenId{5}};
  request.params.ignore_eos = true, request.params.logprobs = logprobs;
  request.max_tokens = kTokens;
  request.notify = [] {};
  FakeEngine engine(options);
  std::thread loop([&engine] { static_cast<void>(engine.run()); });
  const double begin_s = cpu_of_others_s();
  for (int64_t i = 0; i < streams; ++i) engine.submit(request);
  while (engine.live() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double spent_s = cpu_of_others_s() - begin_s;
  engine.stop(0);
  loop.join();
  return spent_s;
}

void stream(benchmark::State& state, const std::string& path, const std::string& fields,
            int32_t logprobs = -1) {
  RigOptions options;
  options.engine.step_us = 2000;  // a pass of a small model: the server has done its part before the next
  const int64_t streams = state.range(0);
  const auto tokens = static_cast<double>(streams * kTokens);
  double all_s = 0, engine_s = 0;
  const std::string body = R"({"model":"tiny","stream":true,"ignore_eos":true,"max_tokens":)" +
                           std::to_string(kTokens) + fields + "}";
  for (auto _ : state) {
    engine_s += engine_alone_s(options.engine, streams, logprobs) / tokens;
    Rig rig(options);
    const double begin_s = cpu_of_others_s();
    if (!read_streams(rig, streams, path, body)) {
      state.SkipWithError("a stream did not end");
      return;
    }
    const double spent_s = (cpu_of_others_s() - begin_s) / tokens;
    all_s += spent_s;
    state.SetIterationTime(spent_s);
  }
  const double to_us = 1e6 / static_cast<double>(state.iterations());
  state.counters["engine"] = engine_s * to_us;
  state.counters["front_end"] = (all_s - engine_s) * to_us;
}

void completions(benchmark::State& state) { stream(state, "/v1/completions", R"(,"prompt":"x")"); }
void chat(benchmark::State& state) {
  stream(state, "/v1/chat/completions", R"(,"messages":[{"role":"user","content":"x"}])");
}
void with_logprobs(benchmark::State& state) {
  stream(state, "/v1/completions", R"(,"prompt":"x","logprobs":5)", 5);
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
