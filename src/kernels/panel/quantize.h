#pragma once
// The panel makers. Each range of tokens is written tile by tile (panel.h); a row that is not finite becomes
// zeros everywhere.

#include "kernels/linear.h"

namespace tally::kernels {

void panel_f32_scalar(const PanelArgs& args);
void panel_int32_scalar(const PanelArgs& args);
void panel_int256_scalar(const PanelArgs& args);

void panel_f32_avx2(const PanelArgs& args);
void panel_int32_avx2(const PanelArgs& args);
void panel_int256_avx2(const PanelArgs& args);

void panel_int32_avx512vnni(const PanelArgs& args);
void panel_int256_avx512vnni(const PanelArgs& args);

// Below this largest magnitude a block counts as zero: 127 / amax must not overflow.
inline constexpr float kAmaxMin = 1e-30f;

}  // namespace tally::kernels
