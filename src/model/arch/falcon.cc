// Falcon 7B (one norm for both branches) and 40B (one each), Phi 2: attention and a plain MLP side by side.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_falcon(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.ffn = {Activation::kGeluErf, false};
  spec.parallel = true;
  set_rope(spec, RopeKind::kNeox);
  return {};
}

base::Result<void> read_phi2(const gguf::File& file, ModelSpec& spec) {
  TALLY_TRY_VOID(read_falcon(file, spec));
  spec.ffn.activation = Activation::kGeluTanh;
  return {};
}

}  // namespace tally::model
