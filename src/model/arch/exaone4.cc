// EXAONE 4: norms only behind the branches, norms of q and k. The large one slides on three of four layers,
// and those that see everything have no rope.
#include "model/arch/arch.h"

#include <algorithm>

namespace tally::model {

base::Result<void> read_exaone4(const gguf::File& file, ModelSpec& spec) {
  constexpr uint32_t kLayersOf32B = 64;
  spec.norm.pre = false;
  spec.norm.post = true;
  set_rope(spec, RopeKind::kNeox);
  const uint32_t window = spec.layers == kLayersOf32B ? 4096 : 0;
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 4, .window = window}));
  if (std::find(slides.begin(), slides.end(), true) == slides.end()) return {};
  for (size_t i = 0; i < spec.layer.size(); ++i) {
    if (!slides[i]) spec.layer[i].rope.kind = RopeKind::kNone;
  }
  return {};
}

}  // namespace tally::model
