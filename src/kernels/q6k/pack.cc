// Q6_K: from the file's blocks to packed units and back, and the family's row of the table.

#include "kernels/encode/encode.h"
#include "kernels/linear.h"
#include "kernels/q6k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q6k/variants.inc"
#undef TALLY_VARIANT
};

}  // namespace

LinearFamily q6k_family() {
  LinearFormat format{};
  format.type = tensor::DType::kQ6_K;
  format.panel = PanelKind::kInt256;
  format.block = kSuperBlock;
  format.group_bytes = super_group_bytes<Q6KFormat>;
  format.pack = super_pack<Q6KFormat>;
  format.unpack_row = super_unpack_row<Q6KFormat>;
  format.dequantize = super_dequantize<Q6KFormat>;
  format.encode = encode_q6k;
  return {format, kVariants};
}

}  // namespace tally::kernels
