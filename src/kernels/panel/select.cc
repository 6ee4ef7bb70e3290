#include "kernels/panel.h"
#include "kernels/panel/quantize.h"

namespace tally::kernels {
namespace {

#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
constexpr Variant<PanelFn> kF32Variants[] = {
#include "kernels/panel/variants_f32.inc"
};
constexpr Variant<PanelFn> kInt32Variants[] = {
#include "kernels/panel/variants_int32.inc"
};
constexpr Variant<PanelFn> kInt256Variants[] = {
#include "kernels/panel/variants_int256.inc"
};
#undef TALLY_VARIANT

struct KindInfo {
  size_t block;
  size_t block_bytes;  // a token
  std::span<const Variant<PanelFn>> variants;
};
constexpr KindInfo kKinds[kPanelKinds] = {
    {1, sizeof(float), kF32Variants},
    {32, kInt32BlockBytes, kInt32Variants},
    {256, kInt256BlockBytes, kInt256Variants},
};

const KindInfo& info(PanelKind kind) { return kKinds[static_cast<size_t>(kind)]; }

}  // namespace

size_t panel_block(PanelKind kind) { return info(kind).block; }

size_t panel_bytes(PanelKind kind, size_t tokens, size_t k) {
  return tokens * (k / info(kind).block) * info(kind).block_bytes;
}

std::span<const Variant<PanelFn>> panel_variants(PanelKind kind) { return info(kind).variants; }

}  // namespace tally::kernels
