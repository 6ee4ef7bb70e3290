#pragma once
// Attention over the paged KV cache: the codecs and the fused kernel (Law 1, item 6).
//
// A row is one query head of one token; it sees the positions max(0, p - window + 1) .. p of its KV head. Its
// result depends on its position and on the cache only, never on the rows that share a call, on block size or
// placement, or on the form.
//
// One row, with spans of 1,024 and groups of 64 positions, both by absolute position; what a row does not see
// is skipped:
//   int8  q8 = rne(rotate(q) * (127 / amax));  a = (amax / 127) * f32(score_scale * log2 e)
//         s[j] = f32(sum q8 k8) * (sk[j] * a);  soft cap in base 2;  ALiBi
//         mg = max s;  e[j] = 2^(s[j] - mg);  lg = tree(e);  w[j] = e[j] * sv[j];  pm = max(w, 1e-30)
//         p[j] = rne(w[j] * (32767 / pm));  Og[c] = f32(sum p v8) * ((pm / 32767) * cg)
//   k8v4, int4: q8 and a as int8.  Columns in groups of 32 that share a step and a low, x = q * step + low:
//     K in int4   t = 0; for each group, ascending: t = fma(step, f32(sum q8 k4), t);
//                                                  t = fma(low, f32(sum q8), t)
//                 s[j] = t * a   (k8v4: as int8)
//     V           for each group: w[j] = e[j] * step[j];  pm, p[j] as int8
//                 Og[c] = fma(f32(sum p v4), (pm / 32767) * cg, dot(e, low) * cg);  dot: arithmetic.h
//   f32, bf16: q as it is;  s[j] = (fma chain over c of q k) * f32(score_scale * log2 e);  soft cap;  ALiBi
//         Og[c] = (fma chain over j of e[j] v[j][c]) * cg
//   ALiBi, where the row has a slope:  s[j] = fma(f32(slope * log2 e), f32(j - p), s[j])
//   group into span:  m' = max(m, mg);  cr = 2^(m - m');  cg = 2^(mg - m');  l = fma(l, cr, lg * cg)
//                     O[c] = fma(O[c], cr, Og[c])
//   span into row, ascending, the first one seen copied:
//                     mt' = max(mt, m);  ca = 2^(mt - mt');  cb = 2^(m - mt');  lt = fma(lt, ca, l * cb)
//                     Ot[c] = fma(Ot[c], ca, O[c] * cb)
//   sink, where the row has one: merged last, as a span with m = f32(sink * log2 e), l = 1 and no O:
//                     Ot[c] = Ot[c] * ca;  a NaN counts as a score far below all others
//   at the end        out = Ot * (1 / lt);  k8v4, int4: rotate(out), for V is stored rotated
//
// A cut call keeps (m, l, O) of each span apart, and a last call takes them through the last three steps.
//
// VALUE RANGES: q8, k8, v8 in [-127, 127]; k4, v4 in [0, 15]; p in [0, 32767]; a group's sum of p v8 is below
// 2^28. What a codec stores: docs/kv-codecs.md.
// Files: arithmetic.h the f32 steps; codec.* bytes of the cache, codec_avx2.cc its encoders; cut.h the
// parts of a call; scalar.cc the definition; tile.h how the SIMD forms share K and V between rows;
// micro_tile.h, float_rows.h, int8_*.h, nibble_*.h the forms, on the lanes of lanes_*.h; *avx2.cc,
// avxvnni.cc, avx512.cc,
// ... the tiers; standard.cc the plain three-step form.

#include "kernels/kernels.h"

#include <span>

namespace tally::kernels {

namespace attention {

// One row of variants.inc; its symbols are in tally::kernels (or, emulated, in tally::kernels::emulated).
struct Form {
  tensor::KvCodec codec;
  Isa isa;
  KvStoreFn store;
  AttendFn attend;
};
// Best first within a codec; the scalar form of every codec is there.
std::span<const Form> forms();

// Decode one token of one head; the same for every form.
void load_f32(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);
void load_bf16(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);
void load_int8(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);
void load_k8v4(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);
void load_int4(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);

}  // namespace attention

#define TALLY_ATTENTION_FORM(codec, isa, store, attend)                              \
  bool store(const KvSequence& kv, size_t position, const float* k, const float* v); \
  void attend(const AttendArgs& args);
#include "kernels/attention/variants.inc"
#undef TALLY_ATTENTION_FORM

}  // namespace tally::kernels
