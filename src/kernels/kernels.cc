#include "kernels/kernels.h"

#include "base/check.h"
#include "kernels/linear.h"

namespace tally::kernels {

std::array<LinearFamily, kLinearFormats> linear_families() {
  return {f32_family(),  f16_family(),    bf16_family(),   q4_0_family(), q4_1_family(), q5_0_family(),
          q5_1_family(), q8_0_family(),   q2k_family(),    q3k_family(),  q4k_family(),  q5k_family(),
          q6k_family(),  iq4_nl_family(), iq4_xs_family(), mxfp4_family()};
}

const LinearFormat* KernelTable::find_linear(tensor::DType type) const {
  for (const LinearFormat& format : linear)
    if (format.type == type) return &format;
  return nullptr;
}

KernelTable kernel_table(Isa isa) {
  TALLY_CHECK(host_has(isa), "kernels of an ISA tier that this host lacks", static_cast<int>(isa));
  KernelTable table;
  table.isa = isa;
  for (size_t i = 0; i < kPanelKinds; ++i)
    table.panel[i] = best_variant(panel_variants(static_cast<PanelKind>(i)), isa).entry;
  const std::array<LinearFamily, kLinearFormats> families = linear_families();
  for (size_t i = 0; i < kLinearFormats; ++i) {
    const LinearVariant& variant = best_variant(families[i].variants, isa);
    table.linear[i] = families[i].format;
    table.linear[i].run = variant.entry;
    table.linear[i].isa = variant.isa;
  }
  table.vector = select_vector(isa);
  for (const tensor::KvCodecInfo& info : tensor::kKvCodecs)
    table.attention[static_cast<size_t>(info.codec)] = select_attention(info.codec, isa);
  return table;
}

}  // namespace tally::kernels
