#pragma once
// The panel makers. Each range of tokens is written tile by tile (panel.h); a row that is not finite becomes
// zeros everywhere.

#include "kernels/linear.h"

namespace tally::kernels {

#define TALLY_VARIANT(isa, symbol) void symbol(const PanelArgs& args);
#include "kernels/panel/variants_f32.inc"
#include "kernels/panel/variants_int256.inc"
#include "kernels/panel/variants_int32.inc"
#undef TALLY_VARIANT

// Below this largest magnitude a block counts as zero: 127 / amax must not overflow.
inline constexpr float kAmaxMin = 1e-30f;

}  // namespace tally::kernels
