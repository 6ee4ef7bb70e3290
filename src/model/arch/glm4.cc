// GLM 4: sandwich norms, rope on neighbouring pairs of a part of each head.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_glm4(const gguf::File&, ModelSpec& spec) {
  spec.norm.post = true;
  set_rope(spec, RopeKind::kNorm);
  return {};
}

}  // namespace tally::model
