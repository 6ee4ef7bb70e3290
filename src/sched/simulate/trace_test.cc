#include "sched/simulate/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace tally::sched::simulate {
namespace {

Trace parsed(std::string_view text) {
  auto trace = parse_trace(text);
  EXPECT_TRUE(trace) << (trace ? "" : trace.error().message);
  return trace ? std::move(*trace) : Trace{};
}

std::string refused(std::string_view text) {
  const auto trace = parse_trace(text);
  EXPECT_FALSE(trace) << text;
  if (trace) return "";
  EXPECT_EQ(trace.error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(trace.error().message.find('\n'), std::string::npos);
  return trace.error().message;
}

std::vector<TokenId> ids(const Trace& trace, size_t request) {
  std::vector<TokenId> out;
  prompt_ids(trace, request, out);
  return out;
}

TEST(BuiltInTrace, MixHasItsClassesWhateverTheSeed) {
  std::map<uint32_t, uint32_t> first;
  for (const uint64_t seed : {1, 2}) {
    const auto trace = build_trace("mix", {.requests = 1000, .rate = 4, .seed = seed});
    ASSERT_TRUE(trace);
    std::map<uint32_t, uint32_t> outputs, prompts;
    for (const TraceRequest& r : trace->requests) ++outputs[r.output], ++prompts[r.prompt];
    EXPECT_EQ(outputs, (std::map<uint32_t, uint32_t>{{30, 300}, {100, 500}, {200, 200}}));
    EXPECT_EQ(prompts.begin()->first, 30U);
    EXPECT_EQ(prompts.rbegin()->first, 1678U);
    EXPECT_EQ(trace->prompt_tokens(), 405'000U);
    EXPECT_EQ(trace->output_tokens(), 99'000U);
    if (first.empty()) first = prompts;
    EXPECT_EQ(prompts, first);
  }
}

TEST(BuiltInTrace, CountsByLargestRemainder) {
  // 7 requests: 2.1, 3.5, 1.4 of each class.
  const auto trace = build_trace("mix", {.requests = 7, .rate = 1, .seed = 1});
  std::map<uint32_t, uint32_t> outputs;
  for (const TraceRequest& r : trace->requests) ++outputs[r.output];
  EXPECT_EQ(outputs, (std::map<uint32_t, uint32_t>{{30, 2}, {100, 4}, {200, 1}}));
  EXPECT_EQ(build_trace("mix", {.requests = 1, .rate = 1, .seed = 1})->requests.size(), 1U);
}

TEST(BuiltInTrace, ArrivalsKeepTheRateExactly) {
  for (const std::string_view name : {"mix", "shared-prefix"}) {
    const auto trace = build_trace(name, {.requests = 501, .rate = 5, .seed = 3});
    EXPECT_EQ(trace->requests.front().arrival, 0);
    EXPECT_NEAR(static_cast<double>(trace->requests.back().arrival), 100e6, 1);
    EXPECT_TRUE(std::ranges::is_sorted(trace->requests, {}, &TraceRequest::arrival));
    // Exponential gaps: a share of exp(-1) is longer than the mean.
    uint32_t longer = 0;
    for (size_t i = 1; i < 501; ++i)
      longer += trace->requests[i].arrival - trace->requests[i - 1].arrival > 200'000 ? 1 : 0;
    EXPECT_NEAR(longer / 500.0, 0.368, 0.07);
  }
}

TEST(BuiltInTrace, BurstsArriveTogether) {
  const auto trace = build_trace("bursty", {.requests = 100, .rate = 8, .seed = 1});
  std::map<Tick, uint32_t> at;
  for (const TraceRequest& r : trace->requests) ++at[r.arrival];
  std::vector<uint32_t> sizes;
  for (const auto& [tick, n] : at) sizes.push_back(n);
  EXPECT_EQ(sizes, (std::vector<uint32_t>{32, 32, 32, 4}));
  EXPECT_NEAR(static_cast<double>(at.rbegin()->first), 12e6, 1);  // three gaps of 32 / 8 s
}

TEST(BuiltInTrace, SeedsAndNames) {
  const TraceShape shape{.requests = 50, .rate = 1, .seed = 1};
  const auto list = [&](std::string_view name, const TraceShape& s) {
    std::vector<std::tuple<Tick, uint32_t, uint32_t>> out;
    const auto trace = build_trace(name, s);
    for (const TraceRequest& r : trace->requests) out.emplace_back(r.arrival, r.prompt, r.segment);
    return out;
  };
  for (const std::string_view name : trace_names()) {
    EXPECT_EQ(list(name, shape), list(name, shape));
    EXPECT_NE(list(name, shape), list(name, {.requests = 50, .rate = 1, .seed = 2}));
  }
  EXPECT_FALSE(build_trace("mixed", shape));
}

// No bit of a trace depends on the machine, its library of mathematics or the compiler.
TEST(BuiltInTrace, EveryBitOfIt) {
  std::vector<uint64_t> hashes;
  for (const std::string_view name : trace_names()) {
    uint64_t hash = 14695981039346656037ULL;
    const auto trace = build_trace(name, {.requests = 2000, .rate = 3, .seed = 1});
    for (const TraceRequest& r : trace->requests) {
      for (const uint64_t v : {static_cast<uint64_t>(r.arrival), uint64_t{r.prompt}, uint64_t{r.output}})
        hash = (hash ^ v) * 1099511628211ULL;
    }
    hashes.push_back(hash);
  }
  EXPECT_EQ(hashes,
            (std::vector<uint64_t>{13095051622729407194U, 9321646503108059480U, 8503762721033620887U}));
}

TEST(PromptIds, SharedPrefixesAreEqualAndNothingElse) {
  const auto trace = build_trace("shared-prefix", {.requests = 40, .rate = 1, .seed = 1});
  std::map<uint32_t, uint32_t> groups;
  for (const TraceRequest& r : trace->requests) ++groups[r.segment];
  EXPECT_EQ(groups.size(), 4U);
  for (size_t a = 0; a < 40; ++a) {
    const auto left = ids(*trace, a);
    ASSERT_EQ(left.size(), trace->requests[a].prompt);
    for (const TokenId id : left) ASSERT_GE(raw(id), 0);
    for (size_t b = a + 1; b < 40; ++b) {
      const auto right = ids(*trace, b);
      const size_t most = std::min(left.size(), right.size());
      const auto same = static_cast<size_t>(
          std::mismatch(left.begin(), left.begin() + static_cast<ptrdiff_t>(most), right.begin()).first -
          left.begin());
      EXPECT_EQ(same, trace->requests[a].segment == trace->requests[b].segment ? 500U : 0U);
    }
  }
}

TEST(ParseTrace, OwnColumnsInAnyOrder) {
  const Trace t = parsed(
      "\xEF\xBB\xBFoutput, input ,n,arrival,shared,group\r\n"
      "10,100,1,2.5,64,7\r\n"
      "\r\n"
      "20,200,4,1.25,0,0\r\n"
      "30,300,1,4.0000019,64,7");
  ASSERT_EQ(t.requests.size(), 3U);
  EXPECT_EQ(t.requests[0].arrival, 0);  // sorted, and from the first
  EXPECT_EQ(t.requests[1].arrival, 1'250'000);
  EXPECT_EQ(t.requests[2].arrival, 2'750'001);
  EXPECT_EQ(t.requests[0].choices, 4U);
  EXPECT_EQ(t.requests[1].prompt, 100U);
  EXPECT_EQ(t.requests[1].output, 10U);
  EXPECT_EQ(t.output_tokens(), 20U * 4 + 10 + 30);
  EXPECT_EQ(t.sequences(), 6U);
  const auto a = ids(t, 1), b = ids(t, 2);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64, b.begin()));
  EXPECT_NE(a[64], b[64]);
}

TEST(ParseTrace, AzureDates) {
  const Trace t = parsed(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:17:03.9799600,4808,10\n"
      "2023-11-16 18:17:04.0319569,3180,8\n"
      "2023-11-17 00:00:00,110,27\n"
      "2024-03-01 00:00:00.5+00:00,7,9\n"
      "2024-03-01T01:00:00.5+01:00,8,9\n"
      "2024-03-01T00:00:00.5Z,9,9\n");
  ASSERT_EQ(t.requests.size(), 6U);
  EXPECT_EQ(t.requests[0].prompt, 4808U);
  EXPECT_EQ(t.requests[1].arrival, 51'996);  // .031956 - .979960
  EXPECT_EQ(t.requests[2].arrival, (5 * 3600 + 42 * 60 + 57) * 1'000'000LL - 979'960);
  // 14 days of November, December, January, a leap February.
  EXPECT_EQ(t.requests[3].arrival - t.requests[2].arrival, (14 + 31 + 31 + 29) * 86'400'000'000LL + 500'000);
  EXPECT_EQ(t.requests[4].arrival, t.requests[3].arrival);
  EXPECT_EQ(t.requests[5].arrival, t.requests[3].arrival);
}

TEST(ParseTrace, BurstGptSkipsWhatFailed) {
  const Trace t = parsed(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,ChatGPT,1087,0,1087,Conversation log\n"
      "118,GPT-4,417,276,693,API log\n");
  ASSERT_EQ(t.requests.size(), 2U);
  EXPECT_EQ(t.skipped, 1U);
  EXPECT_EQ(t.requests[1].arrival, 113'000'000);
  EXPECT_EQ(t.requests[1].output, 276U);
  EXPECT_NE(refused("arrival,input,output\n0,5,0\n").find("'0' is not allowed"), std::string::npos);
}

TEST(ParseTrace, MooncakeLinesShareBlocksOf512) {
  const Trace t = parsed(
      R"({"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]})"
      "\n"
      R"({"timestamp": 30535, "input_length": 1600, "output_length": 26, "hash_ids": [46, 47, 9000000000000, 4, 5]})"
      "\n"
      R"({"timestamp": 30535.5, "input_length": 10, "output_length": 1})");
  ASSERT_EQ(t.requests.size(), 3U);
  EXPECT_EQ(t.requests[1].arrival, 3'053'000);
  EXPECT_EQ(t.requests[2].arrival, 3'053'500);
  EXPECT_EQ(t.requests[0].shared, 1100U);
  EXPECT_EQ(t.requests[1].shared, 1600U);  // the id beyond the prompt is of no use
  EXPECT_EQ(t.requests[2].shared, 0U);
  EXPECT_EQ(t.segments.size(), 7U);
  const auto a = ids(t, 0), b = ids(t, 1);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 1024, b.begin()));
  EXPECT_NE(a[1024], b[1024]);
  EXPECT_NE(a[0], a[512]);
}

TEST(ParseTrace, Refusals) {
  const auto says = [](std::string_view text, std::initializer_list<std::string_view> parts) {
    const std::string message = refused(text);
    for (const std::string_view part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << message << " | " << part;
  };
  const std::string header = "arrival,input,output\n";
  says("", {"empty"});
  says("\n \r\n", {"empty"});
  says(header, {"no request"});
  says("arrival,input\n0,1\n", {"line 1", "no column output", "allowed"});
  says("arrival,input,output,colour\n", {"line 1", "'colour'", "allowed"});
  says("arrival,input,output,ContextTokens\n", {"line 1", "mean the same", "input and ContextTokens"});
  says("arrival,input,output,group\n0,1,1,1\n", {"line 1", "group and shared"});
  says(header + "0,1\n", {"line 2", "2 fields", "allowed: 3"});
  says(header + "0,1,1,\n", {"line 2", "4 fields"});
  says(header + "\n0,1,1\n0,-1,1\n", {"line 4", "column input", "'-1'", "1..16777216"});
  says(header + "0,1,1e3\n", {"column output", "'1e3'"});
  says(header + "0,16777217,1\n", {"column input", "'16777217'"});
  says(header + "0,99999999999999999999,1\n", {"column input"});
  says(header + "0,\"1\",1\n", {"column input"});
  for (const char* arrival :
       {"-1", "nan", "inf", "1.", ".5", "1e9", "0x1", "+1", "", "9999999999999999", "12:00",
        "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:00", "1969-01-01 00:00:00",
        "2023-01-01 00:00:00+1", "2023-01-01 00:00:00 tomorrow", "20230101 00:00:00"})
    says(header + arrival + ",1,1\n", {"line 2, column arrival", "'", "seconds"});
  says("arrival,input,output,n\n0,1,1,0\n", {"column n", "1..1024"});
  says("arrival,input,output,group,shared\n0,5,1,1,6\n", {"column shared", "'6'", "0..5"});
  says("arrival,input,output,group,shared\n0,5,1,x,5\n", {"column group", "'x'"});
  says(header + "0,\x1b[31m,1\n", {"\\x1b[31m"});
  std::string many = "arrival,input,output,n\n";
  for (int i = 0; i < 19'532; ++i) many += "0,1,1,1024\n";
  says(many, {"20000768 choices", "20000000"});

  says("{}", {"line 1", "timestamp", "missing"});
  says("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n[1]\n", {"line 2", "no JSON object"});
  says("{\"timestamp\": 0, \"input_length\": 1,", {"line 1", "no JSON object"});
  says("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", {"column timestamp", "'-1'"});
  says("{\"timestamp\": \"0\", \"input_length\": 1, \"output_length\": 1}", {"column timestamp"});
  says("{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}", {"column input_length", "'0'"});
  says("{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1}", {"column input_length", "'1.5'"});
  says("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 3}",
       {"column hash_ids", "'3'"});
  says("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-3]}",
       {"hash_ids", "'-3'"});
  says("{\"timestamp\": 1e400, \"input_length\": 1, \"output_length\": 1}", {"line 1"});
}

TEST(ParseTrace, AnyBytesAreAnErrorOrATrace) {
  const std::string seeds[] = {
      "arrival,input,output,group,shared,n\n0.5,100,20,3,64,2\n1,7,9,0,0,1\n",
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 2, \"hash_ids\": [1, 2]}\n",
      std::string(200, '{'), std::string("\0\xff\n,,,", 6)};
  uint64_t state = 1;
  const auto next = [&] {
    return state = state * 6364136223846793005ULL + 1442695040888963407ULL, state >> 33;
  };
  const std::string spice = "0123456789,.:-+eE\"{}[]\n\r \xff\x00T";
  uint32_t good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = seeds[next() % std::size(seeds)];
    for (uint64_t edits = next() % 6; edits > 0; --edits) {
      const size_t at = next() % (text.size() + 1);
      const char c = next() % 4 == 0 ? static_cast<char>(next()) : spice[next() % spice.size()];
      if (next() % 2 == 0 || at == text.size()) {
        text.insert(at, 1, c);
      } else if (next() % 2 == 0) {
        text[at] = c;
      } else {
        text.erase(at, 1 + next() % 9);
      }
    }
    const auto trace = parse_trace(text);
    if (!trace) {
      ASSERT_EQ(trace.error().code, base::ErrorCode::kBadData);
      ASSERT_FALSE(trace.error().message.empty());
      continue;
    }
    ++good;
    ASSERT_FALSE(trace->requests.empty());
    ASSERT_EQ(trace->requests.front().arrival, 0);
    for (size_t i = 0; i < trace->requests.size(); ++i) {
      const TraceRequest& r = trace->requests[i];
      ASSERT_TRUE(r.prompt >= 1 && r.prompt <= kTokensMax && r.output >= 1 && r.choices >= 1 &&
                  r.arrival >= 0);
      ASSERT_LE(r.shared, r.prompt);
      if (r.prompt < 100'000) {
        ASSERT_EQ(ids(*trace, i).size(), r.prompt);
      }
    }
  }
  EXPECT_GT(good, 1000U);
}

TEST(Reshape, CutsAndStretches) {
  Trace t = parsed("arrival,input,output\n0,1,1\n1,2,1\n4,3,1\n100,4,1\n");
  reshape(t, 3, 0.5);
  ASSERT_EQ(t.requests.size(), 3U);
  EXPECT_EQ(t.requests[1].arrival, 1'000'000);  // 2 gaps at 0.5 a second: 4 s
  EXPECT_EQ(t.requests[2].arrival, 4'000'000);
  reshape(t, 0, 2);
  EXPECT_EQ(t.requests[2].arrival, 1'000'000);
  reshape(t, 10, 0);
  EXPECT_EQ(t.requests.size(), 3U);
}

}  // namespace
}  // namespace tally::sched::simulate
