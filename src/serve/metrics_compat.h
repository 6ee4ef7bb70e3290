#pragma once
// Names of other times and programs (--metrics-compat), with the values that the server has under its own.

#include "engine/engine.h"
#include "serve/metrics_page.h"
#include "serve/rate_window.h"

#include <cstdint>
#include <string_view>

namespace tally::serve {

// The part of the KV pool that sequences own; 0 without a pool.
double pool_usage(const engine::Stats& stats);
uint64_t computed_prompt_tokens(const engine::Stats& stats);

void add_vllm_legacy(MetricsPage& page, const engine::Stats& stats);
void add_llamacpp(MetricsPage& page, const engine::Stats& stats, const RateWindow& window,
                  const engine::Info& info);
// A series for each place in a draft, one at least.
void add_accepted_by_position(MetricsPage& page, std::string_view name, const engine::Speculation& speculation,
                              uint32_t drafts_max);

}  // namespace tally::serve
