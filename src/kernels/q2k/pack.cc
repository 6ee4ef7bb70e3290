// Q2_K: from the file's blocks to packed units and back, and the family's row of the table.

#include "kernels/linear.h"
#include "kernels/q2k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q2k/variants.inc"
#undef TALLY_VARIANT
};

}  // namespace

LinearFamily q2k_family() {
  LinearFormat format{};
  format.type = tensor::DType::kQ2_K;
  format.panel = PanelKind::kInt256;
  format.block = kSuperBlock;
  format.group_bytes = super_group_bytes<Q2KFormat>;
  format.pack = super_pack<Q2KFormat>;
  format.unpack_row = super_unpack_row<Q2KFormat>;
  format.dequantize = super_dequantize<Q2KFormat>;
  return {format, kVariants};
}

}  // namespace tally::kernels
