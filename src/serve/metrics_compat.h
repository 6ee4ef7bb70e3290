#pragma once
// Names of other times and programs (--metrics-compat), with the values that the server has under its own.

#include "engine/engine.h"
#include "serve/metrics_page.h"
#include "serve/rate_window.h"

#include <cstdint>

namespace tally::serve {

// The part of the KV pool that sequences own; 0 without a pool.
double pool_usage(const engine::Stats& stats);
uint64_t computed_prompt_tokens(const engine::Stats& stats);

void add_vllm_legacy(MetricsPage& page, const engine::Stats& stats);
void add_llamacpp(MetricsPage& page, const engine::Stats& stats, const RateWindow& window,
                  uint32_t block_tokens);

}  // namespace tally::serve
