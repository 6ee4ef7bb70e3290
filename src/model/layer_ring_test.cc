// The file of packed layers and the ring that reads it: every byte in its turn, and damage is an error.
#include "model/layer_ring.h"

#include "base/temp_directory_test_support.h"
#include "model/rig_test_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

namespace tally::model {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = base::DirectFile::kAlign;

class LayerFiles : public ::testing::Test {
 protected:
  std::string path() const { return (directory_ / "weights").string(); }

  LayerFile::Shape shape(size_t slices, uint8_t model = 1) const {
    LayerFile::Shape s;
    s.fingerprint.fill(model);
    for (size_t i = 0; i < slices; ++i) s.slice_bytes.push_back((1 + i % 3) * kPage);
    return s;
  }

  static std::byte value(uint32_t slice, size_t at) { return static_cast<std::byte>(17 * slice + at % 251); }

  base::Result<LayerFile> make(const LayerFile::Shape& s) const {
    std::vector<std::byte> bytes(3 * kPage);
    return LayerFile::make(path(), s, [&](uint32_t slice) -> base::Result<std::span<const std::byte>> {
      for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = value(slice, at);
      return std::span<const std::byte>(bytes).first(s.slice_bytes[slice]);
    });
  }

  void flip(uint64_t at) const {
    std::fstream f(path(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(f.get() ^ 0x40);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
  }

  base::Accounts accounts_{uint64_t{64} << 20};
  const base::TempDirectory temp_;
  const fs::path directory_ = temp_.path();
};

TEST_F(LayerFiles, IsFoundAgainByItsShapeAlone) {
  ASSERT_TRUE(make(shape(5)));
  const auto again = LayerFile::open(path(), shape(5));
  ASSERT_TRUE(again && again->has_value());
  EXPECT_EQ((*again)->slices(), 5u);
  for (const LayerFile::Shape& other : {shape(4), shape(6), shape(5, 2)}) {
    const auto file = LayerFile::open(path(), other);
    ASSERT_TRUE(file);
    EXPECT_FALSE(file->has_value());
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1) << "a draft was left";
  flip(8);  // the header
  const auto damaged = LayerFile::open(path(), shape(5));
  ASSERT_TRUE(damaged);
  EXPECT_FALSE(damaged->has_value());
}

TEST_F(LayerFiles, AFailedPackLeavesNothing) {
  const auto failed =
      LayerFile::make(path(), shape(2), [](uint32_t) -> base::Result<std::span<const std::byte>> {
        return base::Error{base::ErrorCode::kBadData, "cut meanwhile"};
      });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "cut meanwhile");
  EXPECT_TRUE(fs::is_empty(directory_));
}

// X1, X6: who is killed while it makes the file leaves none, and is in nobody's way.
TEST_F(LayerFiles, AKilledMakerLeavesNothing) {
  const int nameless = ::open(directory_.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless >= 0) ::close(nameless);
  const pid_t maker = ::fork();
  ASSERT_GE(maker, 0);
  if (maker == 0) {
    const std::vector<std::byte> bytes(3 * kPage);
    const auto killed =
        LayerFile::make(path(), shape(3), [&](uint32_t slice) -> base::Result<std::span<const std::byte>> {
          if (slice == 2) ::raise(SIGKILL);
          return std::span(bytes).first(shape(3).slice_bytes[slice]);
        });
    ::_exit(killed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(maker, &status, 0), maker);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto left = [&] { return std::distance(fs::directory_iterator(directory_), {}); };
  EXPECT_EQ(left(), nameless >= 0 ? 0 : 1);
  std::ofstream(path() + "." + std::to_string(::getpid())) << "of a process that had this number";
  ASSERT_TRUE(make(shape(5)));
  ASSERT_TRUE(make(shape(4))) << "in its place";
  const auto again = LayerFile::open(path(), shape(4));
  EXPECT_TRUE(again && again->has_value());
  EXPECT_EQ(left(), nameless >= 0 ? 1 : 2);
}

TEST_F(LayerFiles, WhatIsNotThereCannotBeMade) {
  const auto failed = LayerFile::make((directory_ / "none" / "weights").string(), shape(2), {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("none/weights"), std::string::npos);
  LayerFile::Shape huge = shape(1);
  huge.slice_bytes = {uint64_t{1} << 55};
  const auto full = LayerFile::make(path(), huge, {});
  ASSERT_FALSE(full);
  EXPECT_NE(full.error().message.find("36028797018968064 bytes, and the disk has"), std::string::npos)
      << full.error().message;
}

// Passes over a ring in which every turn must have its bytes while the pass is in it.
void run_passes(LayerRing& ring, const std::byte* memory, uint64_t slot_bytes, int passes, int pause_us,
                std::byte (*value)(uint32_t, size_t)) {
  const uint32_t slices = ring.file().slices(), slots = LayerRing::slots_for(slices);
  for (int pass = 0; pass < passes; ++pass) {
    for (uint32_t turn = 0; turn < slices; ++turn) {
      ASSERT_TRUE(ring.enter(turn));
      if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      const std::byte* at = memory + turn % slots * slot_bytes;
      for (size_t i = 0; i < ring.file().slice_bytes(turn); ++i) ASSERT_EQ(at[i], value(turn, i)) << turn;
      ring.leave(turn);
    }
    ring.end_pass();
  }
}

TEST_F(LayerFiles, EveryTurnHasItsBytes) {
  for (const size_t slices : {1u, 2u, 3u, 4u, 7u, 12u}) {
    for (const int pause_us : {0, 200}) {
      auto file = make(shape(slices));
      ASSERT_TRUE(file) << file.error().message;
      const uint64_t slot = 3 * kPage;
      const base::Arena memory = accounts_.reserve(base::Account::kWeights, "ring", 3 * slot).value();
      LayerRing ring(std::move(*file), {memory.data(), memory.size()}, slot);
      run_passes(ring, memory.data(), slot, 5, pause_us, &value);
      EXPECT_FALSE(ring.fault());
      const RingStats stats = ring.stats();
      EXPECT_EQ(stats.passes, 5u);
      EXPECT_GE(stats.read_bytes, 5 * ring.pass_bytes());
      EXPECT_LE(stats.read_bytes, 6 * ring.pass_bytes());
    }
  }
}

TEST_F(LayerFiles, DamageInAPassEndsIt) {
  for (const bool is_cut : {false, true}) {
    auto file = make(shape(6));
    ASSERT_TRUE(file);
    if (is_cut) {
      fs::resize_file(path(), fs::file_size(path()) - kPage);
    } else {
      flip(fs::file_size(path()) - 5);
    }
    const uint64_t slot = 3 * kPage;
    const base::Arena memory = accounts_.reserve(base::Account::kWeights, "ring", 3 * slot).value();
    LayerRing ring(std::move(*file), {memory.data(), memory.size()}, slot);
    uint32_t turn = 0;
    for (; turn < 6 && ring.enter(turn); ++turn) ring.leave(turn);
    EXPECT_EQ(turn, 5u);
    ring.end_pass();
    ASSERT_TRUE(ring.fault());
    EXPECT_NE(ring.fault()->message.find(is_cut ? "the file ends before" : "not those that were written"),
              std::string::npos)
        << ring.fault()->message;
  }
}

TEST_F(LayerFiles, WhoWaitsIsLetGoWhenReadsAreGivenUp) {
  auto file = make(shape(6));
  ASSERT_TRUE(file);
  const uint64_t slot = 3 * kPage;
  const base::Arena memory = accounts_.reserve(base::Account::kWeights, "ring", 3 * slot).value();
  LayerRing ring(std::move(*file), {memory.data(), memory.size()}, slot);
  for (uint32_t turn = 0; turn < 3; ++turn) ASSERT_TRUE(ring.enter(turn));
  std::thread other([&] { ring.give_up(); });
  EXPECT_FALSE(ring.enter(3)) << "no slot was left, so that it cannot have been read";
  other.join();
  ring.end_pass();
  EXPECT_FALSE(ring.enter(0));
  ASSERT_TRUE(ring.fault());
  EXPECT_EQ(ring.fault()->code, base::ErrorCode::kUnavailable);
}

// Law 1: where the weights are changes no bit, however many of the layers are read.
TEST_F(LayerFiles, StreamedWeightsGiveTheSameBits) {
  for (const char* model : {"tests/golden/tiny/tiny-q-q4_k_m.gguf", "tests/golden/arch/gemma3.gguf",
                            "tests/golden/arch/mixtral.gguf", "tests/golden/arch/deepseek2.gguf"}) {
    for (const kernels::Isa isa : {kernels::Isa::kScalar, kernels::best_isa()}) {
      const auto logits = [&](uint32_t streamed) {
        RigOptions options;
        options.isa = isa, options.context = 64, options.rows_max = 32;
        options.stream = {streamed, directory_.string()};
        Rig rig(model, options);
        std::vector<int> ids(40);
        for (size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<int>((i * 37 + 5) % std::min(200u, rig.model().spec().vocab));
        std::vector<float> out;
        rig.feed(ids, 7, [&](uint32_t, std::span<const float> row) {
          out.insert(out.end(), row.begin(), row.end());
        });
        EXPECT_EQ(rig.model().stream_stats().layers, streamed);
        EXPECT_FALSE(rig.model().stream_fault());
        return std::make_pair(out, rig.model().spec().layers);
      };
      const auto [wanted, layers] = logits(0);
      for (uint32_t streamed = 1; streamed <= layers; ++streamed) {
        const auto got = logits(streamed).first;
        ASSERT_EQ(got.size(), wanted.size());
        EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
            << model << ": " << streamed << " of " << layers;
      }
    }
  }
}

}  // namespace
}  // namespace tally::model
