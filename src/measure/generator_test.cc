#include "measure/generator.h"

#include "measure/scripted_server_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace tally::measure {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// The body of a test's request is its id.
uint32_t id_of(const Heard& heard) {
  uint32_t id = 0;
  std::from_chars(heard.body.data(), heard.body.data() + heard.body.size(), id);
  return id;
}

Workload list(uint32_t count, uint32_t output_tokens = 4) {
  Workload out;
  for (uint32_t i = 0; i < count; ++i) {
    PlannedRequest& r = out.requests.emplace_back();
    r.id = i, r.class_name = "c", r.output_tokens = output_tokens;
    r.ids = {1, 2};
  }
  return out;
}

struct Bench {
  explicit Bench(ScriptedServer::Script script) : server(std::move(script)) {
    auto resolved = resolve(server.url(), "");
    EXPECT_TRUE(resolved.has_value());
    endpoint = *resolved;
  }

  BlockTrace run(const Workload& workload, uint32_t users, std::vector<double> arrivals_s = {},
                 uint32_t in_flight_max = 0, double timeout_s = 30) {
    const BlockSpec spec{.endpoint = endpoint,
                         .workload = workload,
                         .bytes_of =
                             [&](const PlannedRequest& r) {
                               return request_bytes(
                                   endpoint, {.method = "POST", .path = "/", .body = std::to_string(r.id)});
                             },
                         .users = users,
                         .arrivals_s = std::move(arrivals_s),
                         .in_flight_max = in_flight_max,
                         .timeout_s = timeout_s,
                         .is_stream = true};
    return run_block(spec, live);
  }

  ScriptedServer server;
  Endpoint endpoint;
  LoadLive live;
};

const RequestRecord& record_of(const BlockTrace& trace, uint32_t id) {
  return *std::find_if(trace.requests.begin(), trace.requests.end(), [&](auto& r) { return r.id == id; });
}

void three_tokens(Talk& talk) {
  talk.begin_events();
  for (int i = 0; i < 3; ++i) talk.token();
  talk.end_events(2, 3);
}

// What the client measures is what the server did, within a millisecond.
TEST(Generator, MeasuresWhatTheServerDid) {
  struct Truth {
    double ttft_s = 0, last_s = 0;
  };
  std::mutex mutex;
  std::map<uint32_t, Truth> truths;
  Bench bench([&](Talk& talk, const Heard& heard) {
    Truth truth;
    talk.wait(15);
    talk.begin_events();
    truth.ttft_s = since(heard.at);
    for (int i = 0; i < 8; ++i) {
      if (i > 0) talk.wait(4);
      truth.last_s = since(heard.at);
      talk.token();
    }
    talk.end_events(2, 8);
    const std::lock_guard lock(mutex);
    truths[id_of(heard)] = truth;
  });
  const BlockTrace trace = bench.run(list(24, 8), 3);
  ASSERT_EQ(trace.requests.size(), 24u);
  std::vector<double> first, last;
  for (const RequestRecord& r : trace.requests) {
    ASSERT_TRUE(r.completed()) << r.error;
    ASSERT_EQ(r.events.size(), 8u);
    EXPECT_EQ(r.planned_s, r.sent_s);
    const RequestFigures f = request_figures(r);
    first.push_back(*f.ttft_s - truths[r.id].ttft_s);
    last.push_back(*f.e2e_s - truths[r.id].last_s);
  }
  EXPECT_LT(std::abs(median_of(first)), .001);
  EXPECT_LT(std::abs(median_of(last)), .001);
  EXPECT_LT(trace.cpu_s, trace.wall_s);
  EXPECT_GT(trace.wake_lags_s.size(), 5u);
}

TEST(Generator, SeesStallsAndEventsOfSeveralTokens) {
  Bench bench([](Talk& talk, const Heard& heard) {
    talk.begin_events();
    talk.token();
    if (id_of(heard) == 1) talk.wait(120);
    talk.event(R"({"choices":[{"text":"abc"}],"tally":{"tokens":3,"t_us":1}})");
    talk.end_events(2, 4);
  });
  const BlockTrace trace = bench.run(list(4), 2);
  EXPECT_GE(request_figures(record_of(trace, 1)).itl_max_s, .119);
  for (const RequestRecord& r : trace.requests) {
    ASSERT_TRUE(r.completed()) << r.error;
    EXPECT_EQ(r.events[1].tokens, 3u);
    EXPECT_EQ(r.output_tokens, 4u);
  }
}

// Each answer is wrong in a way of its own; the request after it is not harmed.
TEST(Generator, TakesEveryFailureAsARecord) {
  const std::vector<std::pair<std::string, std::function<void(Talk&)>>> failures = {
      {"error in the answer: c: m",
       [](Talk& t) {
         t.begin_events(), t.token(), t.event(R"({"error":{"code":"c","message":"m"}})"), t.event("[DONE]");
       }},
      {"HTTP 503 full: m", [](Talk& t) { t.answer(503, R"({"error":{"code":"full","message":"m"}})"); }},
      {"HTTP 400", [](Talk& t) { t.answer(400, "not JSON"); }},
      {"closed early", [](Talk& t) { t.begin_events(), t.token(), t.close(); }},
      {"closed early", [](Talk& t) { t.close(); }},
      {"closed early", [](Talk& t) { t.begin_events(), t.token(), t.send("0\r\n\r\n"); }},
      {"timeout", [](Talk& t) { t.wait_for_end(); }},
      {"timeout", [](Talk& t) { t.begin_events(), t.token(), t.wait_for_end(); }},
      {"no event stream: application/json", [](Talk& t) { t.answer(200, "{}"); }},
      {"bad stream: an event that is no JSON object",
       [](Talk& t) { t.begin_events(), t.event("{\"choices\":"); }},
      {"bad stream: an event without end",
       [](Talk& t) {
         t.begin_events();
         const std::string piece = fmt::format("100000\r\n{}\r\n", std::string(0x100000, 'x'));
         while (t.send(piece)) {
         }
       }},
      {"bad HTTP", [](Talk& t) { t.begin_events(), t.send("nonsense\r\n"), t.wait_for_end(); }},
      {"bad HTTP", [](Talk& t) { t.begin_events(), t.send("ffffffffffffffffffff\r\n"), t.wait_for_end(); }},
      {"bad HTTP",
       [](Talk& t) {
         const std::string piece(0x10000, 'x');
         t.begin_events();
         while (t.send(piece)) {
         }
       }},
      {"bad HTTP", [](Talk& t) { t.send("SMTP\r\n\r\n"), t.wait_for_end(); }},
      {"bad HTTP",
       [](Talk& t) {
         t.send("HTTP/1.1 200 OK\r\n");
         while (t.send(fmt::format("X: {}\r\n", std::string(1000, 'x')))) {
         }
       }},
  };
  const auto count = static_cast<uint32_t>(failures.size());
  Bench bench([&](Talk& talk, const Heard& heard) {
    const uint32_t id = id_of(heard);
    id % 2 == 0 ? failures[id / 2].second(talk) : three_tokens(talk);
  });
  const BlockTrace trace = bench.run(list(2 * count), 1, {}, 0, .4);
  ASSERT_EQ(trace.requests.size(), 2 * count);
  for (uint32_t id = 0; id < 2 * count; ++id) {
    const RequestRecord& r = record_of(trace, id);
    if (id % 2 == 1) {
      EXPECT_TRUE(r.completed()) << "after failure " << id / 2 << ": " << r.error;
      continue;
    }
    const bool is_refusal = r.http_status == 503;
    EXPECT_EQ(r.outcome, is_refusal ? Outcome::kRefused : Outcome::kFailed) << id / 2;
    EXPECT_TRUE(r.error.starts_with(failures[id / 2].first)) << id / 2 << ": " << r.error;
    EXPECT_LT(r.end_s - r.sent_s, 5);
  }
  EXPECT_EQ(bench.live.failed, count);
}

TEST(Generator, OpensAConnectionAgainThatTheServerLeft) {
  Bench bench([](Talk& talk, const Heard&) {
    three_tokens(talk);
    talk.close();
  });
  const BlockTrace trace = bench.run(list(6), 2);
  for (const RequestRecord& r : trace.requests) EXPECT_TRUE(r.completed()) << r.error;
}

TEST(Generator, TellsWhenNobodyListens) {
  std::string url;
  {
    url = ScriptedServer([](Talk&, const Heard&) {}).url();
  }
  const auto endpoint = resolve(url, "");
  const Workload workload = list(3);
  const BlockSpec spec{.endpoint = *endpoint,
                       .workload = workload,
                       .bytes_of = [](const PlannedRequest&) { return std::string("x"); },
                       .users = 2,
                       .arrivals_s = {}};
  LoadLive live;
  const BlockTrace trace = run_block(spec, live);
  ASSERT_EQ(trace.requests.size(), 3u);
  for (const RequestRecord& r : trace.requests) EXPECT_TRUE(r.error.starts_with("connect: ")) << r.error;
}

// A server that is behind: what waited for a place waited on the clock.
TEST(Generator, CountsFromTheScheduledInstant) {
  Bench bench([](Talk& talk, const Heard&) {
    talk.wait(30);
    three_tokens(talk);
  });
  std::vector<double> arrivals_s;
  for (int i = 0; i < 8; ++i) arrivals_s.push_back(.01 * (i + 1));
  const BlockTrace trace = bench.run(list(8), 0, arrivals_s, 1);
  ASSERT_EQ(trace.requests.size(), 8u);
  for (uint32_t id = 0; id < 8; ++id) {
    const RequestRecord& r = record_of(trace, id);
    ASSERT_TRUE(r.completed()) << r.error;
    EXPECT_NEAR(r.planned_s, arrivals_s[id], 1e-6);
    const RequestFigures f = request_figures(r);
    EXPECT_GE(*f.ttft_s, .03 * (id + 1) - .01 * id - .001);  // 20 ms later with each
    EXPECT_LT(*f.ttft_sent_s, *f.ttft_s + 1e-9);
  }
  EXPECT_GE(*request_figures(record_of(trace, 7)).ttft_s, .16);
}

TEST(Generator, SendsOnTimeWhateverIsUnderWay) {
  Bench bench([](Talk& talk, const Heard&) {
    talk.wait(100);
    three_tokens(talk);
  });
  std::vector<double> arrivals_s;
  for (int i = 0; i < 20; ++i) arrivals_s.push_back(.005 * i);
  const BlockTrace trace = bench.run(list(20), 0, arrivals_s);
  std::vector<double> lags;
  for (const RequestRecord& r : trace.requests) lags.push_back(r.sent_s - r.planned_s);
  EXPECT_LT(median_of(lags), .001);
  EXPECT_EQ(trace.send_lags_s.size(), 20u);
  EXPECT_LT(trace.wall_s, 1);
}

TEST(Generator, TakesTurnsInOrder) {
  std::mutex mutex;
  std::vector<uint32_t> heard_ids;
  Bench bench([&](Talk& talk, const Heard& heard) {
    {
      const std::lock_guard lock(mutex);
      heard_ids.push_back(id_of(heard));
    }
    talk.wait(3);
    three_tokens(talk);
  });
  Workload workload = list(9);
  for (size_t i = 0; i < 9; ++i) workload.requests[i].follows = i % 3 != 0;
  for (const bool is_open : {false, true}) {
    heard_ids.clear();
    const BlockTrace trace = bench.run(workload, is_open ? 0 : 2,
                                       is_open ? std::vector<double>{0, .001, .002} : std::vector<double>());
    ASSERT_EQ(trace.requests.size(), 9u);
    for (uint32_t id = 0; id < 9; ++id) {
      if (id % 3 == 0) continue;
      EXPECT_GE(record_of(trace, id).planned_s, record_of(trace, id - 1).end_s - 1e-9);
      EXPECT_LT(std::find(heard_ids.begin(), heard_ids.end(), id - 1),
                std::find(heard_ids.begin(), heard_ids.end(), id));
    }
  }
}

TEST(Generator, StopsWhenToldTo) {
  Bench bench(
      [](Talk& talk, const Heard& heard) { id_of(heard) < 2 ? three_tokens(talk) : talk.wait_for_end(); });
  std::thread onlooker([&] {
    while (bench.live.ended < 2) std::this_thread::yield();
    bench.live.stop = true;
  });
  const BlockTrace trace = bench.run(list(50), 2);
  onlooker.join();
  EXPECT_TRUE(trace.is_stopped);
  EXPECT_LT(trace.wall_s, 10);
  ASSERT_EQ(trace.requests.size(), 4u);
  EXPECT_EQ(
      std::count_if(trace.requests.begin(), trace.requests.end(), [](auto& r) { return r.completed(); }), 2);
  EXPECT_EQ(std::count_if(trace.requests.begin(), trace.requests.end(),
                          [](auto& r) { return r.outcome == Outcome::kIncomplete; }),
            2);
}

}  // namespace
}  // namespace tally::measure
