// Blocks through a file: the same bits as without it, across restarts, and whatever happens to the file.
#include "engine/disk/disk_tier.h"

#include "base/temp_directory_test_support.h"
#include "engine/hand_test_support.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tally::engine {
namespace {

namespace fs = std::filesystem;

// A directory of this test alone.
class DiskTierFiles : public ::testing::Test {
 protected:
  fs::path file() const { return fs::directory_iterator(directory_)->path(); }

  void flip(const fs::path& path, uint64_t at) const {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(f.get() ^ 0x40);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
  }

  const base::TempDirectory temp_;
  const fs::path directory_ = temp_.path();
};

using SlotFiles = DiskTierFiles;

constexpr uint64_t kPayload = 1000;

std::vector<std::byte> slot_of(uint8_t value) {
  return std::vector<std::byte>(SlotFile::kSlotHeaderBytes + kPayload, std::byte{value});
}

DiskKey key_of(uint8_t value) {
  DiskKey key{};
  key.fill(value);
  return key;
}

bool reads(const SlotFile& f, uint32_t slot, uint8_t value) {
  std::vector<std::byte> a(300), b(kPayload - 300);
  const std::span<std::byte> pieces[] = {a, b};
  if (!f.read(slot, key_of(value), pieces)) return false;
  const auto is_value = [&](std::byte byte) { return byte == std::byte{value}; };
  return std::ranges::all_of(a, is_value) && std::ranges::all_of(b, is_value);
}

TEST_F(SlotFiles, KeepsWhatWasWrittenAcrossAnOpen) {
  const std::string path = (directory_ / "f").string();
  const SlotFileShape shape{key_of(9), kPayload, 5};
  {
    auto f = SlotFile::open(path, shape);
    ASSERT_TRUE(f) << f.error().message;
    EXPECT_FALSE(f->is_kept());
    EXPECT_TRUE(f->scan().empty());
    auto bytes = slot_of(7);
    ASSERT_TRUE(f->write(4, key_of(7), 11, bytes));
    EXPECT_TRUE(reads(*f, 4, 7));
    EXPECT_FALSE(reads(*f, 3, 7)) << "an empty slot";
    EXPECT_FALSE(reads(*f, 4, 8)) << "another key";
    const auto second = SlotFile::open(path, shape);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, base::ErrorCode::kConfig);
    EXPECT_NE(second.error().message.find("in use by another server"), std::string::npos);
  }
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  {
    auto f = SlotFile::open(path, shape);
    ASSERT_TRUE(f);
    EXPECT_TRUE(f->is_kept());
    ASSERT_EQ(f->scan().size(), 1u);
    EXPECT_EQ(f->scan()[0].slot, 4u);
    EXPECT_EQ(f->scan()[0].number, 11u);
    EXPECT_TRUE(reads(*f, 4, 7));
    ASSERT_TRUE(f->forget_all());
    EXPECT_TRUE(f->scan().empty());
    EXPECT_FALSE(reads(*f, 4, 7));
  }
  auto again = SlotFile::open(path, shape);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->scan().empty()) << "what was forgotten stays forgotten";
}

TEST_F(SlotFiles, ReplacesWhatAnotherShapeLeft) {
  const std::string path = (directory_ / "f").string();
  const SlotFileShape shapes[] = {
      {key_of(9), kPayload, 5}, {key_of(8), kPayload, 5}, {key_of(8), kPayload, 6}, {key_of(8), 500, 6}};
  for (const SlotFileShape& shape : shapes) {
    auto f = SlotFile::open(path, shape);
    ASSERT_TRUE(f);
    EXPECT_FALSE(f->is_kept());
    EXPECT_TRUE(f->scan().empty());
    std::vector<std::byte> bytes(SlotFile::kSlotHeaderBytes + shape.payload_bytes);
    ASSERT_TRUE(f->write(0, key_of(1), 1, bytes));
    EXPECT_EQ(fs::file_size(path), SlotFile::file_bytes(shape.payload_bytes, shape.slots));
  }
}

// Whatever bit of a slot changes, that slot is not read, and its neighbours are.
TEST_F(SlotFiles, AFlippedBitOrATornEndLosesOneSlot) {
  const std::string path = (directory_ / "f").string();
  const SlotFileShape shape{key_of(9), kPayload, 3};
  const uint64_t slot_begin = SlotFile::file_bytes(kPayload, 1);
  const uint64_t places[] = {0, 8, 16, 24, 40, 63, 64, 79, 80, 87, 128, 427, 428, 1127};
  for (const uint64_t at : places) {
    fs::remove(path);
    {
      auto f = SlotFile::open(path, shape);
      ASSERT_TRUE(f);
      for (uint8_t s = 0; s < 3; ++s) {
        auto bytes = slot_of(s);
        ASSERT_TRUE(f->write(s, key_of(s), s, bytes));
      }
    }
    flip(path, slot_begin + at);
    auto f = SlotFile::open(path, shape);
    ASSERT_TRUE(f);
    EXPECT_TRUE(f->is_kept());
    EXPECT_TRUE(reads(*f, 0, 0) && reads(*f, 2, 2)) << at;
    EXPECT_FALSE(reads(*f, 1, 1)) << at;
    EXPECT_EQ(f->scan().size(), at < 88 ? 2u : 3u) << "headers are looked at when the file is opened: " << at;
  }
  fs::resize_file(path, slot_begin + 200);
  auto f = SlotFile::open(path, shape);
  ASSERT_TRUE(f);
  EXPECT_TRUE(reads(*f, 0, 0));
  EXPECT_FALSE(reads(*f, 1, 1) || reads(*f, 2, 2));
  EXPECT_EQ(fs::file_size(path), SlotFile::file_bytes(kPayload, 3)) << "its space is taken again";
}

TEST_F(SlotFiles, SaysWhatIsWrong) {
  const SlotFileShape shape{key_of(9), kPayload, 3};
  const auto missing = SlotFile::open((directory_ / "no" / "f").string(), shape);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, base::ErrorCode::kIo);
  EXPECT_NE(missing.error().message.find("No such file"), std::string::npos) << missing.error().message;
  fs::create_symlink("/dev/null", directory_ / "link");
  EXPECT_FALSE(SlotFile::open((directory_ / "link").string(), shape)) << "links are not followed";
  const auto large = SlotFile::open((directory_ / "large").string(), {key_of(9), uint64_t{1} << 40, 1u << 20});
  ASSERT_FALSE(large) << "no disk has room for it";
  EXPECT_EQ(large.error().code, base::ErrorCode::kIo);
}

// A pool of so few blocks that a prompt does not outlive two others.
LoadRequest disk_request(const fs::path& directory, uint64_t bytes = uint64_t{64} << 20,
                         const std::string& kv_type = "int8") {
  LoadRequest request = small_request();
  request.settings.kv_type = kv_type;
  const auto plan = plan_memory(request);
  EXPECT_TRUE(plan);
  request.settings.kv_pool_bytes = 14 * plan->kv_bytes_per_token * request.settings.block_tokens;
  request.kv_disk = {directory.string(), bytes};
  return request;
}

Request asked(uint32_t seed, const std::string& tenant = "") {
  Request r = greedy(prompt(90, seed), 6);
  r.tenant = tenant;
  return r;
}

Answer without_disk(uint32_t seed) {
  LoadRequest request = disk_request("");
  request.kv_disk = {};
  return Hand(request).run({asked(seed)}).at(0);
}

KvDiskStats stats(Hand& hand) { return hand.engine->stats().kv_disk; }

// The writer works beside the engine.
void wait_written(Hand& hand, uint64_t blocks) {
  for (int i = 0; i < 5000 && stats(hand).written_blocks < blocks; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    hand.run({greedy(prompt(2, 99), 1)});  // a step publishes the counts
  }
  EXPECT_GE(stats(hand).written_blocks, blocks);
}

// Five of the six blocks of a prompt are full, but for its last token.
constexpr uint32_t kDiskTokens = 80;

TEST_F(DiskTierFiles, APromptThatLeftIsReadAgainWithTheSameBits) {
  Hand hand(disk_request(directory_));
  const Answer first = hand.run({asked(1)}).at(0);
  EXPECT_EQ(first.receipt.disk_tokens, 0u);
  hand.run({asked(2)}), hand.run({asked(3)}), hand.run({asked(4)});
  wait_written(hand, 5);
  const Answer again = hand.run({asked(1)}).at(0);
  EXPECT_TRUE(again == first);
  EXPECT_TRUE(again == without_disk(1));
  EXPECT_EQ(again.receipt.disk_tokens, kDiskTokens);
  EXPECT_GE(again.receipt.cached_tokens, kDiskTokens);
  EXPECT_EQ(hand.run({asked(1, "another")}).at(0).receipt.disk_tokens, 0u) << "a namespace of its own";
  const Stats s = hand.engine->stats();
  EXPECT_EQ(s.blocks_held, 0u);
  EXPECT_EQ(s.kv_disk.damaged_blocks, 0u);
  EXPECT_GT(s.kv_disk.read_bytes_per_s, 0);
}

// Many at once, some of them with the same text: all are answered, and right.
TEST_F(DiskTierFiles, ACrowdOfNewcomersIsAnswered) {
  Hand hand(disk_request(directory_));
  for (uint32_t round = 0; round < 3; ++round) {
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 9; ++i) requests.push_back(asked(i % 5));
    requests[3].choices = 2;
    requests[4].deadline_us = 1;  // over before it begins
    const std::vector<Answer> answers = hand.run(requests);
    for (size_t i = 0; i < answers.size(); ++i) {
      const size_t request = i <= 3 ? i : i - 1;
      if (request == 4) {
        EXPECT_EQ(answers[i].finish, Finish::kDeadline);
      } else {
        EXPECT_EQ(answers[i].ids, without_disk(static_cast<uint32_t>(request % 5)).ids) << round << " " << i;
      }
    }
  }
  EXPECT_GT(stats(hand).read_blocks, 0u);
  EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
}

// Runs the engine on its thread until it has drained, as serve does.
void end(Hand& hand) {
  hand.engine->stop(INT64_MAX);
  EXPECT_TRUE(hand.engine->run());
}

TEST_F(DiskTierFiles, TheIndexOutlivesTheProcess) {
  Answer first;
  {
    Hand hand(disk_request(directory_));
    first = hand.run({asked(1)}).at(0);
    end(hand);
  }
  {
    Hand hand(disk_request(directory_));
    const Answer again = hand.run({asked(1)}).at(0);
    EXPECT_TRUE(again == first);
    EXPECT_EQ(again.receipt.disk_tokens, kDiskTokens);
    hand.engine->reset_prefix_cache();
    EXPECT_EQ(hand.run({asked(1)}).at(0).receipt.cached_tokens, 0u) << "a reset is for the file too";
    hand.engine->reset_prefix_cache();
    end(hand);
  }
  Hand hand(disk_request(directory_));
  EXPECT_EQ(hand.run({asked(1)}).at(0).receipt.disk_tokens, 0u);
  EXPECT_EQ(Hand(disk_request(directory_, uint64_t{64} << 20, "bf16")).run({asked(1)}).at(0).receipt.disk_tokens, 0u) << "another KV type has another file";
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 2);
}

TEST_F(DiskTierFiles, DamageIsFoundAndComputedAnew) {
  Answer first;
  uint64_t block_bytes = 0;
  {
    Hand hand(disk_request(directory_));
    first = hand.run({asked(1)}).at(0);
    block_bytes = hand.engine->stats().block_bytes;
    end(hand);
  }
  // The third slot that was written, in the middle of its payload.
  const uint64_t at = SlotFile::file_bytes(block_bytes, 2) + SlotFile::kSlotHeaderBytes + block_bytes / 2;
  flip(file(), at);
  Hand hand(disk_request(directory_));
  const Answer again = hand.run({asked(1)}).at(0);
  EXPECT_TRUE(again == first);
  EXPECT_EQ(again.receipt.disk_tokens, 32u) << "the two blocks before it";
  EXPECT_EQ(stats(hand).damaged_blocks, 1u);
  EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
}

// A file of few blocks: what was used longest ago gives way, and nothing else goes wrong.
TEST_F(DiskTierFiles, AFullFileForgetsTheOldest) {
  const LoadRequest large = disk_request(directory_);
  const uint64_t block_bytes = plan_memory(large)->kv_bytes_per_token * large.settings.block_tokens;
  Hand hand(disk_request(directory_, SlotFile::file_bytes(block_bytes, 7)));
  for (uint32_t round = 0; round < 3; ++round)
    for (uint32_t seed = 0; seed < 6; ++seed) EXPECT_TRUE(hand.run({asked(seed)}).at(0) == without_disk(seed));
  EXPECT_LE(stats(hand).used, 7u);
  EXPECT_EQ(stats(hand).slots, 7u);
}

TEST_F(DiskTierFiles, RefusesWhatCannotBe) {
  base::Accounts accounts(uint64_t{512} << 20);
  const auto message = [&](const LoadRequest& request) {
    const auto engine = load_engine(request, accounts);
    return engine ? std::string("loaded") : engine.error().message;
  };
  EXPECT_NE(message(disk_request(directory_, 100)).find("one KV block takes"), std::string::npos);
  LoadRequest off = disk_request(directory_);
  off.settings.prefix_cache = false;
  EXPECT_NE(message(off).find("--prefix-cache on"), std::string::npos);
  std::ofstream(directory_ / "plain") << "x";
  EXPECT_NE(message(disk_request(directory_ / "plain")).find("--kv-disk"), std::string::npos);
}

TEST_F(DiskTierFiles, IsPlannedAndBooked) {
  const LoadRequest request = disk_request(directory_);
  const auto plan = plan_memory(request);
  ASSERT_TRUE(plan);
  uint64_t planned = 0;
  for (const PlanPart& part : plan->of(base::Account::kRuntime).parts)
    if (part.name == "kv disk") planned = part.bytes;
  EXPECT_GT(planned, 0u);
  const Hand hand(request);
  for (const base::AccountPart& part : hand.accounts.use(base::Account::kRuntime).parts) {
    if (part.name == "kv disk") {
      EXPECT_EQ(part.reserved, planned);
    }
  }
}

}  // namespace
}  // namespace tally::engine
