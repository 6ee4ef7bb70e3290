// When --kv-check looks, and what it says. What it finds on a real model: tests/e2e/test_kv_check.py.
#include "engine/kv_check.h"

#include <gtest/gtest.h>

namespace tally::engine {
namespace {

using tensor::KvCodec;

TEST(KvCheck, LooksAtWhatHasFewerBitsThanInt8) {
  for (const tensor::KvCodecInfo& row : tensor::kKvCodecs) {
    const bool is_float = row.codec == KvCodec::kF32 || row.codec == KvCodec::kBf16;
    EXPECT_FALSE(wants_kv_check("off", row.codec)) << row.name;
    EXPECT_EQ(wants_kv_check("on", row.codec), !is_float) << row.name;
    EXPECT_EQ(wants_kv_check("auto", row.codec), !is_float && row.codec != KvCodec::kInt8) << row.name;
  }
}

TEST(KvCheck, NamesTheLayersAndWhatTheyLose) {
  KvCheck check;
  check.codecs.assign(18, KvCodec::kInt4);
  EXPECT_EQ(kv_check_text(check, KvCodec::kInt4), "");
  check.kept_bf16 = {5, 11}, check.worst = .391;
  EXPECT_EQ(
      kv_check_text(check, KvCodec::kInt4),
      "--kv-type int4 does not suit 2 of 18 layers (5, 11): their attention loses up to 39.1 %, and 15.0 % "
      "is let pass; they keep bf16 (with --kv-check off they do not)");
}

}  // namespace
}  // namespace tally::engine
