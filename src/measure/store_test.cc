#include "measure/store.h"

#include "base/temp_directory_test_support.h"
#include "measure/machine.h"
#include "measure/run.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using StoredRun = Run;  // in a test, Run is gtest's

class Store : public ::testing::Test {
 protected:
  std::string home() const { return home_.string(); }
  static void write(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::string read(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }

 private:
  const base::TempDirectory temp_;
  const fs::path home_ = temp_.path();
};

Run example() {
  Run run;
  run.head = {{"label", "kv int8"},   {"started", "2026-11-30T06:17:36Z"}, {"status", "complete"},
              {"valid", true},        {"results", {{"completed", 1}}},     {"invalid_reasons", json::array()},
              {"of tomorrow", {1, 2}}};
  RequestRecord r;
  r.id = 7;
  r.class_name = "long", r.group = "g1";
  r.outcome = Outcome::kCompleted;
  r.http_status = 200;
  r.planned_s = .1, r.sent_s = .1 + 1e-9, r.end_s = 1. / 3;
  r.events = {{.2, 1}, {.2, 0}, {.3, 4}};
  r.prompt_tokens_planned = 50, r.output_tokens_planned = 5;
  r.prompt_tokens = 51, r.output_tokens = 5, r.cached_tokens = 0;
  r.finish = "length";
  r.receipt = {{"queue_ms", 1.5}};
  RequestRecord failed;
  failed.id = 8, failed.outcome = Outcome::kFailed, failed.error = "reset by peer \xff", failed.end_s = 1;
  run.requests = {r, failed};
  run.steps = {{{"step", 1}, {"duration_us", 900}}, {{"step", 2}}};
  MemorySample m;
  m.at_s = .1, m.rss_anon = 12345678901, m.swap = 0;
  m.accounts = {{"kv", 5}};
  m.load = {{"running", 3}, {"kv_held", 9}};
  MemorySample bare;
  bare.at_s = .2;
  run.memory = {m, bare};
  return run;
}

TEST_F(Store, RoundTrip) {
  const StoredRun run = example();
  const auto path = store_run(run, home() + "/runs");
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_TRUE(fs::path(*path).filename().string().starts_with("20261130-061736-kv_int8-")) << *path;
  EXPECT_EQ(list_runs(home() + "/runs"), std::vector{*path});  // and nothing unfinished beside it
  const auto back = load_run(*path);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->head["schema"], kSchema);
  EXPECT_EQ(back->head["of tomorrow"], run.head["of tomorrow"]);
  ASSERT_EQ(back->requests.size(), 2u);
  const RequestRecord &a = run.requests[0], &b = back->requests[0];
  EXPECT_EQ(request_json(a), request_json(b));
  EXPECT_EQ(b.id, 7u);
  EXPECT_EQ(b.class_name, "long");
  EXPECT_EQ(b.outcome, Outcome::kCompleted);
  EXPECT_EQ(b.sent_s, a.sent_s);  // to the last bit
  EXPECT_EQ(b.end_s, a.end_s);
  ASSERT_EQ(b.events.size(), 3u);
  EXPECT_EQ(b.events[2].at_s, .3);
  EXPECT_EQ(b.events[2].tokens, 4u);
  EXPECT_EQ(b.prompt_tokens, 51u);
  EXPECT_EQ(b.cached_tokens, 0u);
  EXPECT_EQ(b.receipt, a.receipt);
  EXPECT_EQ(back->requests[1].outcome, Outcome::kFailed);
  EXPECT_FALSE(back->requests[1].output_tokens.has_value());
  EXPECT_TRUE(back->requests[1].receipt.is_null());
  EXPECT_EQ(back->steps, run.steps);
  ASSERT_EQ(back->memory.size(), 2u);
  EXPECT_EQ(back->memory[0].rss_anon, 12345678901u);
  EXPECT_EQ(back->memory[0].swap, 0u);
  EXPECT_FALSE(back->memory[0].rss_file.has_value());
  EXPECT_EQ(back->memory[0].accounts, run.memory[0].accounts);
  EXPECT_EQ(back->memory[0].load, run.memory[0].load);
  EXPECT_TRUE(back->memory[1].accounts.is_null());
}

TEST_F(Store, LinesCarryWhatOtherReadersWant) {
  const json line = request_json(example().requests[0]);
  EXPECT_DOUBLE_EQ(line["ttft_s"].get<double>(), .1);
  EXPECT_DOUBLE_EQ(line["tpot_s"].get<double>(), .025);
  EXPECT_DOUBLE_EQ(line["first_s"].get<double>(), .2);
  EXPECT_EQ(line["status"], "completed");
  EXPECT_EQ(line["output_tokens_server"], 5);
  EXPECT_FALSE(request_json(example().requests[1]).contains("ttft_s"));
}

TEST_F(Store, TheSameRunTwiceIsOne) {
  const auto a = store_run(example(), home()), b = store_run(example(), home());
  ASSERT_TRUE(a && b);
  EXPECT_EQ(*a, *b);
  StoredRun other = example();
  other.requests[0].end_s += 1e-6;
  EXPECT_NE(*store_run(other, home()), *a);
  EXPECT_EQ(list_runs(home()).size(), 2u);
}

TEST_F(Store, LabelsStayInsideTheDirectory) {
  StoredRun run = example();
  run.head["label"] = "../../etc/x y\n";
  const auto path = store_run(run, home());
  ASSERT_TRUE(path);
  EXPECT_EQ(fs::path(*path).parent_path(), fs::path(home()));
  EXPECT_EQ(load_run(*path)->head["label"], "../../etc/x y\n");
}

TEST_F(Store, SaysWhyItCannotWrite) {
  write(home() + "/file", "");
  const auto path = store_run(example(), home() + "/file/runs");
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code, base::ErrorCode::kIo);
  EXPECT_NE(path.error().message.find("file/runs"), std::string::npos) << path.error().message;
}

// Each: the file that is replaced, its bytes, and what the message must name.
struct Broken {
  const char *file, *bytes, *named;
};

TEST_F(Store, RefusesWhatItCannotRead) {
  const std::string good = request_json(example().requests[0]).dump() + "\n";
  const auto path = store_run(example(), home());
  ASSERT_TRUE(path);
  const Broken kBroken[] = {
      {kHeadFile, "{", "run.json: no JSON"},
      {kHeadFile, "[]", "run.json: [] instead of an object"},
      {kHeadFile, "{}", "run.json: schema: null instead of a value"},
      {kHeadFile, R"({"schema":2})", "schema: 2 is newer than 1"},
      {kHeadFile, R"({"schema":0})", "schema: 0 instead of 1"},
      {kHeadFile, R"({"schema":1,"valid":"yes"})", "valid: \"yes\" instead of true or false"},
      {kHeadFile, R"({"schema":1,"results":[]})", "results: [] instead of an object"},
      {kRequestsFile, "nonsense\n", "requests.jsonl: line 1: no JSON"},
      {kRequestsFile, "{\"status\":\"failed\"}\n", "line 1: id: null"},
      {kRequestsFile, "{\"id\":1,\"status\":\"lost\"}\n", "status: \"lost\" instead of completed"},
      {kRequestsFile, "{\"id\":-1,\"status\":\"failed\"}\n",
       "id: -1 instead of a whole number up to 4294967295"},
      {kRequestsFile, "{\"id\":4294967296,\"status\":\"failed\"}\n", "id: 4294967296"},
      {kRequestsFile, "{\"id\":1,\"status\":\"failed\",\"end_s\":\"x\"}\n", "end_s: \"x\""},
      {kRequestsFile, "{\"id\":1,\"status\":\"failed\",\"end_s\":1e99}\n", "end_s: 1e+99"},
      {kRequestsFile, "{\"id\":1,\"status\":\"failed\",\"events\":[[1]]}\n", "events: [1]"},
      {kRequestsFile, "{\"id\":1,\"status\":\"failed\",\"events\":[[2,1],[1,1]]}\n",
       "events: [1,1] instead of a later"},
      {kStepsFile, "{}\n{}\n7\n", "steps.jsonl: line 3: 7 instead of an object"},
      {kMemoryFile, "{\"rss_anon\":1}\n", "memory.jsonl: line 1: t_s"},
      {kMemoryFile, "{\"t_s\":1,\"rss_anon\":-5}\n", "rss_anon: -5"},
  };
  for (const Broken& broken : kBroken) {
    const fs::path file = fs::path(*path) / broken.file;
    const std::string before = read(file);
    write(file, broken.bytes);
    const auto run = load_run(*path);
    ASSERT_FALSE(run) << broken.bytes;
    EXPECT_NE(run.error().message.find(broken.named), std::string::npos) << run.error().message;
    EXPECT_NE(run.error().message.find(broken.file), std::string::npos) << run.error().message;
    EXPECT_EQ(run.error().code, base::ErrorCode::kBadData);
    write(file, before);
  }
  write(fs::path(*path) / kRequestsFile, good + "\n" + good + "{");
  EXPECT_NE(load_run(*path).error().message.find("line 4"), std::string::npos);
  write(fs::path(*path) / kHeadFile,
        "{\"schema\":1,\"deep\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_NE(load_run(*path).error().message.find("nested deeper"), std::string::npos);
  fs::remove(fs::path(*path) / kHeadFile);
  EXPECT_EQ(load_run(*path).error().code, base::ErrorCode::kNoInput);
}

TEST_F(Store, NoSuchRunNamesThoseThatMayHaveBeenMeant) {
  const std::string runs = home() + "/runs";
  EXPECT_NE(load_run(runs + "/x").error().message.find("no run.json"), std::string::npos);
  for (const char* name :
       {"20261130-060000-a", "20261130-070000-b", "20261130-080000-c", "20261130-090000-d"}) {
    fs::create_directories(fs::path(runs) / name);
    write(fs::path(runs) / name / kHeadFile, R"({"schema":1})");
  }
  const auto slip = load_run(runs + "/20261130-070000-B/");
  ASSERT_FALSE(slip);
  EXPECT_EQ(slip.error().code, base::ErrorCode::kNoInput);
  EXPECT_NE(slip.error().message.find("did you mean " + runs + "/20261130-070000-b?"), std::string::npos)
      << slip.error().message;
  EXPECT_NE(
      slip.error().message.find(
          "20261130-090000-d, 20261130-080000-c, 20261130-070000-b (and 1 more: tally runs " + runs + ")"),
      std::string::npos)
      << slip.error().message;
  // A directory of runs is none itself; what is like no name is taken for none.
  const std::string other = load_head(runs).error().message;
  EXPECT_NE(other.find("the newest in " + runs + ": 20261130-090000-d"), std::string::npos) << other;
  EXPECT_EQ(other.find("did you mean"), std::string::npos) << other;
}

TEST_F(Store, ARunMayHaveNoRequestsFile) {
  write(home() + "/run.json", R"({"schema":1})");
  const auto run = load_run(home());
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_TRUE(run->requests.empty());
}

// Whatever the bytes, there is an answer.
TEST_F(Store, AnyBytesAreAnswered) {
  const auto path = store_run(example(), home());
  ASSERT_TRUE(path);
  const bool held = rc::check("mutated bytes of a stored run", [&] {
    const char* name = *rc::gen::elementOf(std::vector<const char*>{kHeadFile, kRequestsFile, kMemoryFile});
    const fs::path file = fs::path(*path) / name;
    const std::string before = read(file);
    std::string bytes = before;
    const auto edits = *rc::gen::inRange(1, 6);
    for (int i = 0; i < edits && !bytes.empty(); ++i) {
      const auto at = *rc::gen::inRange<size_t>(0, bytes.size());
      switch (*rc::gen::inRange(0, 4)) {
        case 0:
          bytes[at] = static_cast<char>(*rc::gen::inRange(0, 256));
          break;
        case 1:
          bytes.erase(at, *rc::gen::inRange<size_t>(1, 20));
          break;
        case 2:
          bytes.insert(at, bytes.substr(at / 2, 15));
          break;
        default:
          bytes[at] = *rc::gen::elementOf(std::string("{}[]\",:-e09n\n"));
          break;
      }
    }
    write(file, bytes);
    const auto run = load_run(*path);
    if (run) {  // what was read can be written and read again
      const auto again = store_run(*run, home() + "/again");
      RC_ASSERT(static_cast<bool>(again));
      RC_ASSERT(static_cast<bool>(load_run(*again)));
      fs::remove_all(home() + "/again");
    } else {
      RC_ASSERT(run.error().message.find(name) != std::string::npos);
    }
    write(file, before);
  });
  EXPECT_TRUE(held);
}

TEST(Machine, SaysWhatItCan) {
  const json machine = machine_json();
  for (const char* key :
       {"cpu_model", "cores_physical", "cores_logical", "isa", "ram_bytes", "cgroup_cpu_quota",
        "cgroup_memory_max", "governor", "thp", "kernel", "numa_nodes", "smt"})
    EXPECT_TRUE(machine.contains(key)) << key;
  EXPECT_GT(machine["ram_bytes"].get<uint64_t>(), uint64_t{1} << 20);
  EXPECT_EQ(machine["fingerprint"].get<std::string>().size(), 64u);
  EXPECT_EQ(machine, machine_json());
}

}  // namespace
}  // namespace tally::measure
