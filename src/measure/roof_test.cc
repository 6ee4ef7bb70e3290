// Roofs: what is taken from trials, what lies between thread counts, and a file that nobody vouches for.
#include "measure/roof.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

using nlohmann::json;

Roofs made() {
  Roofs r;
  r.bytes_per_s = {{1, 10e9}, {2, 18e9}, {4, 30e9}};
  r.int8_ops_per_s = 400e9, r.f32_ops_per_s = 100e9;
  r.kernel_ops_per_s = {{"q4_1", {{1, 20e9}, {8, 50e9}, {64, 100e9}}}, {"f32", {{1, 5e9}}}};
  r.isa = "avx2", r.read_form = "ymm, 1 stream";
  return r;
}

TEST(Roofs, TheLargestThatAnotherTrialConfirms) {
  EXPECT_EQ(largest_confirmed({10, 9.8, 7}), 10);
  EXPECT_EQ(largest_confirmed({20, 9.9, 10}), 10);  // 20 stands alone
  EXPECT_EQ(largest_confirmed({1, 2, 4}), 2);       // none is confirmed: the median
}

TEST(Roofs, StraightLinesBetweenThreads) {
  const Roofs r = made();
  EXPECT_EQ(r.read_at(1), 10e9);
  EXPECT_EQ(r.read_at(3), 24e9);
  EXPECT_EQ(r.read_at(64), 30e9);
  EXPECT_EQ(r.threads_max(), 4u);
}

TEST(Roofs, KernelsOfSoManyThreads) {
  const Roofs r = made();
  EXPECT_EQ(r.kernels_at(2, "Q4_1"), (RatesByRows{{1, 10e9}, {8, 25e9}, {64, 50e9}}));
  EXPECT_EQ(r.kernels_at(9, "f32"), (RatesByRows{{1, 5e9}}));
  EXPECT_TRUE(r.kernels_at(1, "q6_k").empty());
}

TEST(Roofs, JsonGoesThereAndBack) {
  const Roofs r = parse_roofs(roofs_json(made()));
  EXPECT_EQ(r.bytes_per_s, made().bytes_per_s);
  EXPECT_EQ(r.int8_ops_per_s, 400e9);
  EXPECT_EQ(r.kernel_ops_per_s, made().kernel_ops_per_s);
  EXPECT_EQ(r.isa, "avx2");
  EXPECT_FALSE(r.disturbed);
}

TEST(Roofs, WhatIsNoRateIsLeftOut) {
  for (const char* text :
       {"null", "3", "[]", "{}", R"({"bytes_per_s": 3})", R"({"bytes_per_s": {"x": 1, "0": 1, "-1": 2}})",
        R"({"bytes_per_s": {"1": "fast", "2": -3, "3": null}})"})
    EXPECT_TRUE(parse_roofs(json::parse(text)).empty()) << text;
  EXPECT_EQ(
      parse_roofs(json::parse(R"({"bytes_per_s": {"2": 5e9}, "ops_per_s": {"int8": "?"}})")).int8_ops_per_s,
      0);
}

TEST(Roofs, KeptForThisMachineOnly) {
  const std::string directory = testing::TempDir() + "roofs-" + std::to_string(::getpid());
  const std::string file = roofs_file(directory);
  EXPECT_FALSE(kept_roofs(file));
  keep_roofs(file, made());
  ASSERT_TRUE(kept_roofs(file));
  EXPECT_EQ(kept_roofs(file)->read_at(2), 18e9);
  Roofs disturbed = made();
  disturbed.disturbed = true, disturbed.bytes_per_s[2] = 1;
  keep_roofs(file, disturbed);
  EXPECT_EQ(kept_roofs(file)->read_at(2), 18e9);
  std::ofstream(file) << R"({"schema": 1, "fingerprint": "another", "roofs": {"bytes_per_s": {"1": 1e9}}})";
  EXPECT_FALSE(kept_roofs(file));
  Roofs old = made();  // of a version that measured no kernels
  old.kernel_ops_per_s.clear();
  keep_roofs(file, old);
  EXPECT_FALSE(kept_roofs(file));
  std::ofstream(file) << "no JSON";
  EXPECT_FALSE(kept_roofs(file));
  std::filesystem::remove_all(directory);
  EXPECT_EQ(roofs_file(""), "");
}

// Loops of a known speed: a byte read costs nothing, a round a fixed wait.
TEST(Roofs, MeasuresEveryThreadCount) {
  std::vector<std::byte> data(size_t{8} << 20);
  std::atomic<int> started{0};
  const auto run = [](const std::byte*, size_t bytes, uint64_t rounds) {
    uint64_t sum = 1;
    for (uint64_t i = 0; i < rounds + bytes / 4096; ++i) sum = sum * 3 + i;
    return sum;
  };
  const Roofs r = measure_roofs({.probes = {{RoofKind::kRead, "slow", 1, run},
                                            {RoofKind::kInt8, "int8", 2, run},
                                            {RoofKind::kKernel, "q4_1", 2, run, 8}},
                                 .isa = "scalar",
                                 .threads = 3,
                                 .data = data,
                                 .on_thread = [&] { ++started; }});
  ASSERT_EQ(r.bytes_per_s.size(), 3u);
  for (const auto& [threads, rate] : r.bytes_per_s) EXPECT_GT(rate, 0) << threads;
  EXPECT_GT(r.int8_ops_per_s, 0);
  ASSERT_EQ(r.kernel_ops_per_s.size(), 1u);
  EXPECT_GT(r.kernel_ops_per_s.at("q4_1").at(8), 0);
  EXPECT_GT(started, 0);
  EXPECT_EQ(r.f32_ops_per_s, 0);
  EXPECT_EQ(r.read_form, "slow");
}

}  // namespace
}  // namespace tally::measure
