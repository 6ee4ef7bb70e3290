// What could be had under a budget: every codec, over contexts and numbers of sequences, by the plan's own
// functions.
#include "engine/plan_sizes.h"

#include <algorithm>

namespace tally::engine {
namespace {

using base::Account;
using base::Result;

constexpr uint32_t kConcurrencies[] = {1, 4, 16, 64};
constexpr uint32_t kContextMin = 1024;

std::vector<uint32_t> contexts_up_to(uint32_t most) {
  std::vector<uint32_t> out;
  for (uint64_t context = kContextMin; context < most; context *= 2)
    out.push_back(static_cast<uint32_t>(context));
  out.push_back(most);
  return out;
}

class Prospect {
 public:
  Prospect(const LoadRequest& request, Sizes& sizes) : request_(request), sizes_(sizes) {}

  KvOutlook look(tensor::KvCodec codec, uint64_t weight_bytes) {
    const uint32_t block_tokens = request_.settings.block_tokens;
    sizes_.set_codec(codec, block_tokens);
    KvOutlook out;
    out.codec = tensor::kv_codec_info(codec).name;
    out.block_bytes = sizes_.block_bytes;
    out.bytes_per_token = static_cast<double>(out.block_bytes) / block_tokens;
    out.break_even_tokens = (weight_bytes + out.block_bytes - 1) / out.block_bytes * block_tokens;
    const uint32_t most = sizes_.spec().context;
    const std::vector<uint32_t> contexts = contexts_up_to(most);
    for (const uint32_t context : contexts)
      for (const uint32_t seqs : kConcurrencies) out.cells.push_back(cell(context, seqs));
    for (const uint32_t seqs : kConcurrencies)
      out.longest.push_back(
          last_that_fits(most / block_tokens, [&](uint32_t n) { return cell(n * block_tokens, seqs); }));
    for (const uint32_t context : contexts)
      out.most.push_back(last_that_fits(kSeqsMax, [&](uint32_t n) { return cell(context, n); }));
    for (size_t i = 0; i < std::size(kConcurrencies); ++i) out.longest[i].seqs = kConcurrencies[i];
    for (size_t i = 0; i < contexts.size(); ++i) out.most[i].context = contexts[i];
    return out;
  }

 private:
  static constexpr uint32_t kSeqsMax = 1024;

  KvOutlook::Cell cell(uint32_t context, uint32_t seqs) {
    request_.settings.max_seqs = seqs;
    sizes_.limits.logits_rows_max = logits_rows_max(request_.settings);
    sizes_.set_context(context);
    const MemoryPlan plan = fixed_plan(request_, sizes_);
    const PoolPrice price(request_, sizes_);
    const uint64_t total = plan.total_bytes + price.bytes(seqs * price.blocks_for(context));
    return {context, seqs, total, total <= plan.budget_bytes};
  }

  // Of at(1), at(2) … at(most), which grow, the last that fits; nothing: none.
  template <class At>
  static KvOutlook::Cell last_that_fits(uint32_t most, At at) {
    KvOutlook::Cell best{};
    for (uint32_t low = 1, high = most; low <= high;) {
      const uint32_t middle = low + (high - low) / 2;
      const KvOutlook::Cell tried = at(middle);
      if (tried.fits) best = tried, low = middle + 1;
      if (!tried.fits) high = middle - 1;
    }
    return best;
  }

  LoadRequest request_;
  Sizes& sizes_;
};

}  // namespace

Result<Outlook> look_ahead(const LoadRequest& request) {
  TALLY_TRY(Sizes sizes, Sizes::read(request));
  Outlook out;
  out.architecture = sizes.spec().architecture;
  out.layers = sizes.spec().layers, out.context = sizes.spec().context;
  if (auto plan = plan_memory(request)) {
    out.plan = std::move(plan).value();
  } else if (plan.error().code == base::ErrorCode::kUnavailable) {
    out.refusal = plan.error();
    out.plan = fixed_plan(request, sizes);
    add_pool(out.plan, PoolPrice(request, sizes), sizes, kPoolBlocksMin);
  } else {
    return plan.error();
  }
  const uint64_t weight_bytes = out.plan.of(Account::kWeights).bytes;
  for (const tensor::KvCodecInfo& info : tensor::kKvCodecs)
    out.codecs.push_back(Prospect(request, sizes).look(info.codec, weight_bytes));
  return out;
}

}  // namespace tally::engine
