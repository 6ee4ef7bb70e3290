// Q3_K: from the file's blocks to packed units and back, and the family's row of the table.

#include "kernels/linear.h"
#include "kernels/q3k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q3k/variants.inc"
#undef TALLY_VARIANT
};

}  // namespace

LinearFamily q3k_family() {
  LinearFormat format{};
  format.type = tensor::DType::kQ3_K;
  format.panel = PanelKind::kInt256;
  format.block = kSuperBlock;
  format.group_bytes = super_group_bytes<Q3KFormat>;
  format.pack = super_pack<Q3KFormat>;
  format.unpack_row = super_unpack_row<Q3KFormat>;
  format.dequantize = super_dequantize<Q3KFormat>;
  return {format, kVariants};
}

}  // namespace tally::kernels
