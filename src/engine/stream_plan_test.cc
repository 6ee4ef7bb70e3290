// --weights stream: fits where memory does not, gives the same answers, and a disk that fails ends them
// clearly.
#include "engine/stream_plan.h"

#include "base/direct_file.h"
#include "base/temp_directory_test_support.h"
#include "engine/hand_test_support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

namespace tally::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSeveralLayers = "models/smollm2-135m-instruct-q4_1.gguf";

class WeightStream : public ::testing::Test {
 protected:
  LoadRequest request(const std::string& mode) const {
    LoadRequest r = small_request();
    r.model_path = kSeveralLayers;
    r.weights = {mode, directory_.string()};
    return r;
  }

  const base::TempDirectory temp_;
  const fs::path directory_ = temp_.path() / "layers";  // not there yet
};

TEST_F(WeightStream, FewestLayersThatTheBudgetAsksFor) {
  LoadRequest r = request("memory");
  const uint64_t all = plan_memory(r).value().total_bytes;
  r.settings.memory_bytes = all;
  r.weights.mode = "stream";
  EXPECT_FALSE(plan_memory(r).value().stream) << "all fits";
  uint32_t before = 0;
  for (const uint64_t less_mib : {10u, 20u, 30u}) {
    r.settings.memory_bytes = all - (less_mib << 20);
    const auto plan = plan_memory(r);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_TRUE(plan->stream);
    EXPECT_GT(plan->stream->layers, before);
    EXPECT_LT(plan->stream->layers, plan->stream->of_layers);
    EXPECT_LE(plan->total_bytes, r.settings.memory_bytes);
    EXPECT_GT(plan->stream->passes_per_s(), 0);
    before = plan->stream->layers;
  }
}

TEST_F(WeightStream, IsOfferedWhereMemoryIsTooSmall) {
  LoadRequest r = request("memory");
  r.settings.kv_pool_bytes = 0, r.settings.max_model_len = 0;
  r.settings.memory_bytes = uint64_t{80} << 20;
  const auto refused = plan_memory(r);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("; with --weights stream it fits: "), std::string::npos)
      << refused.error().message;
  r.settings.memory_bytes = uint64_t{8} << 20;
  const auto hopeless = plan_memory(r);
  ASSERT_FALSE(hopeless);
  EXPECT_EQ(hopeless.error().message.find("--weights stream"), std::string::npos) << hopeless.error().message;
}

TEST_F(WeightStream, AnswersAreTheSameAndTheAccountsHold) {
  const LoadRequest kept = request("memory");
  LoadRequest streamed = request("stream");
  streamed.settings.memory_bytes = plan_memory(kept).value().total_bytes - (uint64_t{40} << 20);
  const auto ask = [](Hand& hand) { return hand.run({greedy(prompt(20, 7), 8)}).front(); };
  Hand all(kept);
  const Answer wanted = ask(all);
  EXPECT_EQ(wanted.finish, Finish::kLength);
  for (int start = 0; start < 2; ++start) {  // makes the file, then finds it
    Hand some(streamed);
    EXPECT_TRUE(ask(some) == wanted);
    const Stats stats = some.engine->stats();
    EXPECT_GT(stats.weight_stream.layers, 0u);
    EXPECT_GE(stats.weight_stream.read_bytes, 8 * stats.weight_stream.pass_bytes);
    EXPECT_GT(stats.weight_stream.predicted_bytes_per_s, 0);
    EXPECT_LE(some.accounts.reserved_bytes(), streamed.settings.memory_bytes);
  }
}

TEST_F(WeightStream, AFileThatIsCutUnderItEndsTheEngine) {
  LoadRequest r = request("stream");
  r.settings.memory_bytes = plan_memory(request("memory")).value().total_bytes - (uint64_t{40} << 20);
  base::Accounts accounts(r.settings.memory_bytes);
  auto engine = load_engine(r, accounts);
  ASSERT_TRUE(engine) << engine.error().message;
  fs::resize_file(fs::directory_iterator(directory_)->path(), base::DirectFile::kAlign);
  auto submitted = (*engine)->submit(greedy(prompt(20, 7), 64));
  ASSERT_FALSE(submitted.streams.empty());
  const auto ran = (*engine)->run();
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, base::ErrorCode::kIo);
  EXPECT_NE(ran.error().message.find("the file ends before"), std::string::npos) << ran.error().message;
  Answer answer;
  EXPECT_TRUE(drain(*submitted.streams[0], answer));
  EXPECT_EQ(answer.finish, Finish::kInternal);
  EXPECT_TRUE((*engine)->stats().failed);
}

// X3: whoever wants the end at once does not wait for a pass over the disk, and it is not an error.
TEST_F(WeightStream, AnEndAtOnceEndsThePass) {
  LoadRequest r = request("stream");
  r.settings.memory_bytes = plan_memory(request("memory")).value().total_bytes - (uint64_t{40} << 20);
  for (const size_t begun : {0u, 1u, 4u}) {
    base::Accounts accounts(r.settings.memory_bytes);
    auto engine = load_engine(r, accounts);
    ASSERT_TRUE(engine) << engine.error().message;
    auto submitted = (*engine)->submit(greedy(prompt(20, 7), 90));
    ASSERT_FALSE(submitted.streams.empty());
    std::thread loop([&] { EXPECT_TRUE((*engine)->run()); });
    Answer answer;
    bool ended = false;
    while (!ended && answer.ids.size() < begun) ended = drain(*submitted.streams[0], answer);
    EXPECT_FALSE(ended);
    (*engine)->stop(0);
    loop.join();
    EXPECT_TRUE(drain(*submitted.streams[0], answer));
    EXPECT_EQ(answer.finish, Finish::kShutdown) << begun;
    EXPECT_FALSE((*engine)->stats().failed);
  }
}

}  // namespace
}  // namespace tally::engine
