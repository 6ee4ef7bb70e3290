// Any bytes as a model file, from the header to logits: it is refused, or it loads within its account and
// computes, whatever its numbers say.

#include "base/accounts.h"
#include "base/check.h"
#include "base/pool.h"
#include "fuzz/input_file.h"
#include "kernels/kernels.h"
#include "model/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace base = tally::base;
namespace kernels = tally::kernels;
namespace kv = tally::kv;
namespace model = tally::model;
using tally::TokenId;

constexpr uint64_t kAccountBytes = uint64_t{64} << 20;
constexpr uint32_t kRows = 3, kBlockTokens = 16;

// Three tokens in one sequence. What a row that is not flagged gives was computed from numbers that are.
void compute(const model::Model& loaded, tally::tensor::KvCodec codec, base::ThreadPool& pool,
             base::Accounts& accounts) {
  const auto layouts = model::kv_layouts(loaded.spec(), codec, kBlockTokens);
  const kv::PoolShape shape = kv::make_pool_shape(layouts, 1);
  const auto memory = accounts.reserve(base::Account::kKv, "pool", shape.pool_bytes());
  if (!memory) return;
  const kv::View view(&shape, memory->data());
  view.poison(tally::BlockId{0});
  const uint32_t rows = std::min(kRows, loaded.spec().context);
  model::StepLimits limits;
  limits.rows_max = rows, limits.logits_rows_max = rows, limits.context_max = rows;
  auto scratch = loaded.make_scratch(limits, layouts, pool.threads(), accounts);
  if (!scratch) return;
  const auto last = static_cast<int32_t>(loaded.spec().vocab - 1);
  const std::array<TokenId, kRows> tokens = {TokenId{0}, TokenId{last}, TokenId{last / 2}};
  const std::array<uint32_t, kRows> wanted = {0, 1, 2};
  const uint32_t table = 0;
  const model::Segment segment{0, rows, 0, 0};
  loaded.forward({std::span(tokens).first(rows), {&segment, 1}, {&table, 1}, std::span(wanted).first(rows)},
                 view, *scratch, pool);
  TALLY_CHECK(scratch->nonfinite().size() == rows, "flags of the rows");
  volatile float sum = 0;  // every logit is written: the instrumented build sees a read of what is not
  for (uint32_t r = 0; r < rows; ++r) {
    for (const float logit : scratch->logits(r)) sum = sum + logit;
  }
}

void load(const std::string& path, tally::tensor::KvCodec codec, bool is_planned) {
  static base::ThreadPool pool(1, kernels::set_float_mode);
  static const kernels::KernelTable table = kernels::kernel_table(kernels::best_isa());
  kernels::set_float_mode();
  const auto file = tally::gguf::File::open(path);
  if (!file) return;
  base::Accounts accounts(kAccountBytes);
  model::LoadOptions options;
  options.context = kBlockTokens;
  const auto loaded = model::Model::load(*file, table, options, pool, accounts);
  if (is_planned) {
    const auto planned = model::Model::packed_bytes(*file, table, options);
    TALLY_CHECK(planned || !loaded, "what cannot be planned was loaded");
    const uint64_t taken = accounts.use(base::Account::kWeights).reserved;
    TALLY_CHECK(!loaded || (taken >= *planned && taken < *planned + 2 * 4096), "the plan was wrong", taken);
  }
  if (!loaded) return;
  compute(*loaded, codec, pool, accounts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tally::tensor::KvCodec;
  constexpr KvCodec kCodecs[] = {KvCodec::kF32, KvCodec::kBf16, KvCodec::kInt8, KvCodec::kK8V4, KvCodec::kInt4};
  load(input_file(data, size), kCodecs[size % std::size(kCodecs)], size % 8 == 0);
  return 0;
}
