// The plan: equal to what loading books, to the byte; refused with what is missing; and what could be had
// instead.
#include "engine/hand_test_support.h"
#include "engine/plan_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tally::engine {
namespace {

using base::Account;

const base::AccountPart* find_part(const base::AccountUse& use, std::string_view name) {
  const auto found =
      std::find_if(use.parts.begin(), use.parts.end(), [&](const auto& p) { return p.name == name; });
  return found == use.parts.end() ? nullptr : &*found;
}

LoadRequest request_of(const std::string& model) {
  LoadRequest request = small_request();
  request.model_path = model;
  request.settings.max_model_len = 0;
  request.settings.kv_pool_bytes = 0;
  request.settings.memory_bytes = uint64_t{96} << 20;
  request.tokenizer_bytes = 12345, request.connection_bytes = 54321;
  return request;
}

// Every part of the plan, and nothing else, is booked.
void expect_booked(const LoadRequest& request) {
  const auto plan = plan_memory(request);
  ASSERT_TRUE(plan) << request.model_path << ": " << plan.error().message;
  base::Accounts accounts(request.settings.memory_bytes);
  const auto engine = load_engine(request, accounts);
  ASSERT_TRUE(engine) << engine.error().message;
  uint64_t total = 0;
  for (const PlanAccount& a : plan->accounts) {
    const base::AccountUse use = accounts.use(a.account);
    EXPECT_EQ(use.planned, a.bytes);
    EXPECT_EQ(use.parts.size(), a.parts.size()) << base::account_name(a.account);
    for (const PlanPart& part : a.parts) {
      const base::AccountPart* booked = find_part(use, part.name);
      ASSERT_NE(booked, nullptr) << part.name;
      EXPECT_EQ(booked->planned, part.bytes) << part.name;
      // Streams are booked as they come.
      EXPECT_EQ(booked->reserved, part.name == "token streams" ? 0 : part.bytes)
          << request.model_path << part.name;
      total += part.bytes;
    }
  }
  EXPECT_EQ(plan->total_bytes, total);
  EXPECT_LE(plan->total_bytes, plan->budget_bytes);
}

TEST(Plan, IsTheBytesThatAreBooked) {
  for (const char* model : {"llama_gqa", "llama_mha_tied", "gemma3", "mixtral", "deepseek2", "gpt2", "bloom"})
    expect_booked(request_of(std::string("tests/golden/arch/") + model + ".gguf"));
}

TEST(Plan, IsTheBytesThatAreBookedForEveryCodecAndForm) {
  for (const tensor::KvCodecInfo& codec : tensor::kKvCodecs)
    for (const char* attention : {"paged", "standard"}) {
      LoadRequest request = request_of(kModel);
      request.settings.kv_type = codec.name, request.settings.policy.attention = attention;
      expect_booked(request);
    }
}

TEST(Plan, ShowsTheScoreMatrixOfStandardAttentionAlone) {
  LoadRequest request = small_request();
  const MemoryPlan paged = plan_memory(request).value();
  request.settings.policy.attention = "standard";
  const Sizes sizes = Sizes::read(request).value();
  const MemoryPlan standard = plan_memory(request).value();
  const auto find = [](const MemoryPlan& plan) {
    const auto& parts = plan.of(Account::kActivations).parts;
    return std::find_if(parts.begin(), parts.end(),
                        [](const PlanPart& p) { return p.name == "score matrix"; });
  };
  EXPECT_EQ(find(paged), paged.of(Account::kActivations).parts.end());
  ASSERT_NE(find(standard), standard.of(Account::kActivations).parts.end());
  EXPECT_EQ(find(standard)->bytes, uint64_t{sizes.spec().attention.heads} * 64 * 128 * sizeof(float));
}

TEST(Plan, RefusesWhatCannotFit) {
  LoadRequest request = small_request();
  request.settings.memory_bytes = uint64_t{9} << 20;
  const auto small = plan_memory(request);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, base::ErrorCode::kUnavailable);
  EXPECT_NE(small.error().message.find("weights"), std::string::npos) << small.error().message;

  request = small_request();
  request.settings.max_model_len = 100'000;
  EXPECT_EQ(plan_memory(request).error().code, base::ErrorCode::kConfig);

  request = small_request();
  request.settings.kv_pool_bytes = uint64_t{1} << 40;
  EXPECT_EQ(plan_memory(request).error().code, base::ErrorCode::kUnavailable);

  request = small_request();
  request.settings.isa = "amx";
  const auto isa = plan_memory(request);
  if (!isa) {
    EXPECT_NE(isa.error().message.find("this CPU has scalar"), std::string::npos) << isa.error().message;
  }

  request.model_path = "tests/golden/tiny";
  EXPECT_EQ(plan_memory(request).error().code, base::ErrorCode::kNoInput);
}

TEST(Outlook, SaysWhatFitsAndWhatIsOneTooMany) {
  LoadRequest request = request_of(kModel);
  request.settings.memory_bytes = uint64_t{40} << 20;
  const Outlook outlook = look_ahead(request).value();
  EXPECT_FALSE(outlook.refusal);
  ASSERT_EQ(outlook.codecs.size(), std::size(tensor::kKvCodecs));
  const auto total_of = [&](const KvOutlook& k, uint32_t context, uint32_t seqs) {
    LoadRequest one = request;
    one.settings.kv_type = k.codec, one.settings.max_seqs = seqs, one.settings.max_model_len = context;
    one.settings.memory_bytes = uint64_t{1} << 40;
    one.settings.kv_pool_bytes = seqs * ((context + 15) / 16) * k.block_bytes;
    return plan_memory(one).value().total_bytes;
  };
  for (const KvOutlook& k : outlook.codecs) {
    EXPECT_EQ(k.bytes_per_token * request.settings.block_tokens, static_cast<double>(k.block_bytes));
    EXPECT_GE(static_cast<double>(k.break_even_tokens) * k.bytes_per_token,
              static_cast<double>(outlook.plan.of(Account::kWeights).parts[0].bytes));
    for (const KvOutlook::Cell& cell : k.cells) {
      EXPECT_EQ(cell.fits, cell.total_bytes <= request.settings.memory_bytes);
      if (uint64_t{cell.seqs} * cell.context >= 32) {
        EXPECT_EQ(cell.total_bytes, total_of(k, cell.context, cell.seqs))
            << k.codec << cell.context << cell.seqs;
      }
    }
    for (const KvOutlook::Cell& best : k.most) {
      if (best.seqs == 0 || best.seqs == 1024) continue;
      EXPECT_LE(total_of(k, best.context, best.seqs), request.settings.memory_bytes);
      EXPECT_GT(total_of(k, best.context, best.seqs + 1), request.settings.memory_bytes);
    }
    for (const KvOutlook::Cell& best : k.longest) {
      if (best.context == 0 || best.context + 16 > outlook.context) continue;
      EXPECT_GT(total_of(k, best.context + 16, best.seqs), request.settings.memory_bytes);
    }
  }
}

TEST(Outlook, OfWhatIsRefusedSaysWhy) {
  LoadRequest request = request_of(kModel);
  request.settings.max_model_len = 256;
  request.settings.kv_pool_bytes = uint64_t{1} << 40;
  const Outlook outlook = look_ahead(request).value();
  ASSERT_TRUE(outlook.refusal);
  EXPECT_EQ(outlook.refusal->code, base::ErrorCode::kUnavailable);
  EXPECT_EQ(outlook.plan.blocks, kPoolBlocksMin);
  EXPECT_FALSE(outlook.codecs.empty());
  request.model_path = "tests/golden/tiny";
  EXPECT_FALSE(look_ahead(request));
}

}  // namespace
}  // namespace tally::engine
