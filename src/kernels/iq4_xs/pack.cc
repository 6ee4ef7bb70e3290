// IQ4_XS: from the file's blocks to packed units and back, and the family's row of the table.

#include "kernels/iq4_xs/codes.h"
#include "kernels/linear.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/iq4_xs/variants.inc"
#undef TALLY_VARIANT
};

}  // namespace

LinearFamily iq4_xs_family() {
  LinearFormat format{};
  format.type = tensor::DType::kIQ4_XS;
  format.panel = PanelKind::kInt256;
  format.block = kSuperBlock;
  format.group_bytes = super_group_bytes<Iq4XsFormat>;
  format.pack = super_pack<Iq4XsFormat>;
  format.unpack_row = super_unpack_row<Iq4XsFormat>;
  format.dequantize = super_dequantize<Iq4XsFormat>;
  return {format, kVariants};
}

}  // namespace tally::kernels
