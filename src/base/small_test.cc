// Result, Checked, UTF-8, SHA-256, the machine.
#include "base/checked.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/signal_stack.h"
#include "base/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <csignal>
#include <ctime>
#include <thread>

#include <unistd.h>

namespace tally::base {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Error{ErrorCode::kUsage, "odd"};
  return n / 2;
}
Result<int> quarter(int n) {
  TALLY_TRY(const int h, half(n));
  return half(h);
}

TEST(Result, TryPassesValuesAndErrors) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "odd");
  EXPECT_EQ(quarter(7).error().code, ErrorCode::kUsage);
}

TEST(ResultDeath, ValueOfAnErrorIsACheck) {
  EXPECT_DEATH((void)half(3).value(), "Result::value on an error");
}

TEST(Checked, OverflowIsSticky) {
  const Checked big = UINT64_MAX;
  EXPECT_EQ((Checked(3) * 4 + 5).get(), 17u);
  EXPECT_FALSE((big + 1).get());
  EXPECT_FALSE((big * 2).get());
  EXPECT_FALSE((big + 1 + 0).get());
  EXPECT_FALSE(big.align_up(32).get());
  EXPECT_EQ(Checked(33).align_up(32).get(), 64u);
  EXPECT_EQ(Checked(64).align_up(32).get(), 64u);
}

TEST(Utf8, Steps) {
  struct Case {
    const char* bytes;
    Utf8Step::Kind kind;
    int length;
  };
  // Unicode table 3-7: each row's limits from both sides.
  const Case cases[] = {
      {"a", Utf8Step::kValid, 1},
      {"\xC2\x80", Utf8Step::kValid, 2},
      {"\xDF\xBF", Utf8Step::kValid, 2},
      {"\xC1\xBF", Utf8Step::kInvalid, 1},
      {"\xE0\xA0\x80", Utf8Step::kValid, 3},
      {"\xE0\x9F\x80", Utf8Step::kInvalid, 1},
      {"\xED\x9F\xBF", Utf8Step::kValid, 3},
      {"\xED\xA0\x80", Utf8Step::kInvalid, 1},
      {"\xEF\xBF\xBF", Utf8Step::kValid, 3},
      {"\xF0\x90\x80\x80", Utf8Step::kValid, 4},
      {"\xF0\x8F\x80\x80", Utf8Step::kInvalid, 1},
      {"\xF4\x8F\xBF\xBF", Utf8Step::kValid, 4},
      {"\xF4\x90\x80\x80", Utf8Step::kInvalid, 1},
      {"\xF5\x80\x80\x80", Utf8Step::kInvalid, 1},
      {"\x80", Utf8Step::kInvalid, 1},
      {"\xE2\x82", Utf8Step::kIncomplete, 2},
      {"\xF0\x9F\x98", Utf8Step::kIncomplete, 3},
      {"\xC3", Utf8Step::kIncomplete, 1},
      {"\xE2\x82"
       "a",
       Utf8Step::kInvalid, 2},
      {"\xF0\x9F\x98"
       "a",
       Utf8Step::kInvalid, 3},
  };
  for (const Case& c : cases) {
    const Utf8Step step = utf8_step(c.bytes);
    EXPECT_EQ(step.kind, c.kind) << escape_for_log(c.bytes);
    EXPECT_EQ(step.length, c.length) << escape_for_log(c.bytes);
  }
}

RC_GTEST_PROP(Utf8, ReplaceMakesValidAndKeepsValid, (const std::string& bytes)) {
  const std::string once = utf8_replace_invalid(bytes);
  RC_ASSERT(utf8_find_invalid(once) == std::string::npos);
  RC_ASSERT(utf8_replace_invalid(once) == once);
  if (utf8_find_invalid(bytes) == std::string::npos) RC_ASSERT(once == bytes);
}

RC_GTEST_PROP(Utf8, AppendThenStep, ()) {
  const auto cp = static_cast<char32_t>(*rc::gen::inRange(0, 0x110000));
  RC_PRE(cp < 0xD800 || cp > 0xDFFF);
  std::string s;
  utf8_append(s, cp);
  const Utf8Step step = utf8_step(s);
  RC_ASSERT(step.kind == Utf8Step::kValid && step.length == s.size() && step.code_point == cp);
}

TEST(Utf8, EscapeCutsAndHidesControls) {
  EXPECT_EQ(escape_for_log("a\x1b[31m\n"), "a\\x1b[31m\\x0a");
  EXPECT_EQ(escape_for_log("\xC2\x85"), "\\xc2\\x85");
  EXPECT_EQ(escape_for_log(std::string(300, 'x'), 10), "xxxxxxxxxx...");
  EXPECT_EQ(escape_for_log("caf\xC3\xA9"), "caf\xC3\xA9");
}

TEST(Sha256, KnownAnswer) {
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_file("no such file").error().code, ErrorCode::kNoInput);
}

// What every timeout counts with goes on evenly whatever the date is set to.
TEST(Clock, IsNotTheWallClock) {
  timespec t{};
  ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &t), 0);
  const int64_t before_us = t.tv_sec * int64_t{1'000'000} + t.tv_nsec / 1000;
  const int64_t now = now_us();
  ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &t), 0);
  EXPECT_GE(now, before_us);
  EXPECT_LE(now, t.tv_sec * int64_t{1'000'000} + t.tv_nsec / 1000);
}

TEST(Machine, NoLimitIsNoNumber) {
  EXPECT_EQ(parse_limit("200000"), 200000u);
  EXPECT_EQ(parse_limit("0"), 0u);
  for (const char* none : {"max", "-1", "", "12x", "18446744073709551616"})
    EXPECT_FALSE(parse_limit(none)) << none;
}

TEST(Machine, SaneNumbers) {
  const CpuAllowance cpu = cpu_allowance();
  EXPECT_GE(cpu.logical, cpu.physical);
  EXPECT_GE(cpu.usable, 1u);
  EXPECT_LE(cpu.usable, cpu.physical);
  EXPECT_LT(cpu.quota, 1e6);
  EXPECT_GT(memory_allowance(), uint64_t{64} << 20);
  EXPECT_LE(memory_allowance(), memory_total());
}

#if !defined(TALLY_INSTRUMENTED)
// Pages of the stack, until there are none.
[[gnu::noinline]] size_t deeper(size_t pages) {
  volatile char page[4096];
  page[pages % sizeof page] = 1;
  return pages == SIZE_MAX ? 0 : deeper(pages + 1) + static_cast<size_t>(page[0]);
}

TEST(SignalStackDeathTest, AThreadThatHasRunOutOfStackCanSaySo) {
  constexpr int kTold = 7;
  const auto run_out = [] {
    take_signal_stack();
    struct sigaction action{};
    action.sa_handler = [](int) { ::_exit(kTold); };
    action.sa_flags = SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, nullptr);
    deeper(0);
  };
  EXPECT_EXIT(std::thread(run_out).join(), testing::ExitedWithCode(kTold), "");
}
#endif

}  // namespace
}  // namespace tally::base
