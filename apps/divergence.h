#pragma once
// How far one model file's predictions are from another's over a built-in prompt, both as they would be
// served.

#include "base/result.h"
#include "gguf/gguf.h"

#include <cstddef>
#include <functional>
#include <string_view>

namespace tally::apps {

struct Divergence {
  double mean_kld =
      0;  // nats: of the second's next-token distribution from the first's, mean over the positions
  double top1_agreement = 0;  // share of positions whose best token is the same
  size_t positions = 0;
  std::string_view prompt;  // "text", or "token ids" where the file has no tokenizer that runs here
};

// Loads one model after the other, with an f32 KV cache; `go_on` is asked between them and may stop it.
// Errors: those of loading; kBadData (other vocabularies, a value that is not finite), kUnavailable (memory;
// stopped).
base::Result<Divergence> measure_divergence(const gguf::File& first, const gguf::File& second, size_t threads,
                                            const std::function<bool()>& go_on);

}  // namespace tally::apps
