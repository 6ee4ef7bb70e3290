#pragma once
// A micro tile: up to 4 rows that meet a group of 64 positions together. Here are the steps between the two
// products, the same for every codec and tier: the f32 steps of arithmetic.h on the lanes of L (Lanes256,
// Lanes512), in the same order of operations: equal bits. What is one number a row (maxima, sums, factors)
// goes for the four rows at once.

#include "kernels/attention/lanes_256.h"
#include "kernels/attention/tile.h"

namespace tally::kernels::attention {
namespace {

constexpr int kMicroRows = 4;
struct alignas(64) Micro {
  // [rows]: dot products (int32 bits for int8), then scores, exponents or weights; of 64-byte alignment.
  float (*s)[kGroupTokens];
  // One lane a row; what is behind the last row counts for nothing.
  alignas(16) float group_max[kMicroRows], group_sum[kMicroRows], weight_max[kMicroRows];
  alignas(16) float keep[kMicroRows];  // cr
  alignas(16) float add[kMicroRows];   // cg
  Visible seen[kMicroRows];
  float slope[kMicroRows];       // of ALiBi, to base 2; set, like `distance`, only if there is one
  int32_t distance[kMicroRows];  // first position of the group - position of the row
};

// True if every row of a range sees the whole group.
inline TALLY_INLINE bool all_see(const Tile& tile, const GroupView& g, RowRange rows) {
  const size_t last = tile.row_position(rows.end - 1);
  return g.position + kGroupTokens <= tile.row_position(rows.begin) + 1 &&
         first_visible(last, tile.args->window) <= g.position;
}

// The chunks of a group of which some row of a micro tile sees any.
struct Chunks {
  size_t begin = 0, end = kGroupChunks;
};
// Where q.k begins: it takes kKeyChunks together.
template <class L>
constexpr size_t key_begin(Chunks chunks) {
  return chunks.begin / L::kKeyChunks * L::kKeyChunks;
}

// Memory of a micro tile on its own.
struct alignas(64) MicroScores {
  float s[kMicroRows][kGroupTokens];
};

// Notes what T rows see of a group.
template <int T>
inline TALLY_INLINE Chunks see_group(const Tile& tile, const GroupView& g, size_t row, Micro& m) {
  int begin = static_cast<int>(kGroupTokens), end = 0;
  for (int t = 0; t < T; ++t) {
    m.seen[t] = visible_in(tile, row + static_cast<size_t>(t), g.position);
    begin = m.seen[t].begin < begin ? m.seen[t].begin : begin;
    end = m.seen[t].end > end ? m.seen[t].end : end;
  }
  constexpr int kChunk = static_cast<int>(kChunkTokens);
  return {static_cast<size_t>(begin / kChunk), static_cast<size_t>((end + kChunk - 1) / kChunk)};
}

// What the steps of a micro tile leave for each other, whatever the form.
struct MicroUnit {
  MicroScores scores;
  Micro m;
  Chunks chunks;

  template <int T, bool Masked>
  TALLY_INLINE void begin(const Tile& tile, const GroupView& g, size_t row) {
    m.s = scores.s;
    chunks = {};
    if constexpr (Masked) chunks = see_group<T>(tile, g, row, m);
  }
};

// Where T rows are from a group: only if distance counts.
template <int T>
inline TALLY_INLINE void set_distances(const Tile& tile, const GroupView& g, size_t row, Micro& m) {
  for (int t = 0; t < T; ++t) {
    const size_t at = row + static_cast<size_t>(t);
    m.slope[t] = alibi_slope(tile.args->alibi[at % tile.args->group]);
    m.distance[t] = static_cast<int32_t>(g.position) - static_cast<int32_t>(tile.row_position(at));
  }
}

template <class L>
inline TALLY_INLINE typename L::F exp2_lanes(typename L::F x) {
  x = L::max(x, L::set(kExponentMin));
  const auto t = L::add(x, L::set(kRoundMagic));
  const auto f = L::sub(x, L::sub(t, L::set(kRoundMagic)));
  auto p = L::fma(L::set(kExp2C5), f, L::set(kExp2C4));
  p = L::fma(p, f, L::set(kExp2C3));
  p = L::fma(p, f, L::set(kExp2C2));
  p = L::fma(p, f, L::set(kExp2C1));
  p = L::fma(p, f, L::set(1.f));
  return L::add_exponent(p, t);
}

template <class L>
inline TALLY_INLINE typename L::F softcap_lanes(typename L::F s, const Softcap& cap) {
  const auto one = L::set(1.f);
  const auto t = exp2_lanes<L>(L::mul(L::magnitude(s), L::set(cap.slope)));
  return L::with_sign_of(L::mul(L::set(cap.limit), L::div(L::sub(one, t), L::add(one, t))), s);
}

// Registers of one row's 64 values.
template <class L>
constexpr int kRowRegisters = static_cast<int>(kGroupTokens) / L::kLanes;

// Caps the scores of row t and biases them by distance.
template <class L>
__attribute__((noinline)) void adjust_scores(const Tile& tile, Micro& m, int t) {
  for (int i = 0; i < static_cast<int>(kGroupTokens); i += L::kLanes) {
    auto s = L::load(m.s[t] + i);
    if (tile.cap.limit != 0) s = softcap_lanes<L>(s, tile.cap);
    if (tile.args->alibi != nullptr)
      s = L::fma(L::set(m.slope[t]), L::to_float(L::ascending(m.distance[t] + i)), s);
    L::store(m.s[t] + i, s);
  }
}

// From the scores of row t (s [kRowRegisters]) to what counts, stored; returns its max over registers.
template <class L, bool Masked>
inline TALLY_INLINE __m256 finish_scores(const Tile& tile, Micro& m, int t, typename L::F* s) {
  constexpr int kN = kRowRegisters<L>;
  if (tile.cap.limit != 0 || tile.args->alibi != nullptr) {
    unrolled<kN>([&](auto i) __attribute__((always_inline)) { L::store(m.s[t] + L::kLanes * i, s[i]); });
    adjust_scores<L>(tile, m, t);
    unrolled<kN>([&](auto i) __attribute__((always_inline)) { s[i] = L::load(m.s[t] + L::kLanes * i); });
  }
  if constexpr (Masked)
    unrolled<kN>([&](auto i) __attribute__((always_inline)) {
      s[i] = L::select(L::within(m.seen[t].begin, m.seen[t].end, L::kLanes * i), s[i], L::set(kNoScore));
    });
  unrolled<kN>([&](auto i) __attribute__((always_inline)) { L::store(m.s[t] + L::kLanes * i, s[i]); });
  auto max = L::max(L::max(s[0], s[1]), L::max(s[2], s[3]));
  if constexpr (kN == 8) max = L::max(max, L::max(L::max(s[4], s[5]), L::max(s[6], s[7])));
  return L::fold_max(max);
}

// The maxima (or sums) of T rows, each in 8 lanes, to out [4].
template <int T, class Op>
inline TALLY_INLINE void store_folded(const __m256 (&v)[T], float* out, Op op) {
  _mm_store_ps(out, fold_four(v[0], v[T > 1 ? 1 : 0], v[T > 2 ? 2 : 0], v[T > 3 ? 3 : 0], op));
}
template <int T>
inline TALLY_INLINE void store_maxima(const __m256 (&v)[T], float* out) {
  store_folded<T>(v, out,
                  [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_max_ps(a, b); });
}
template <int T>
inline TALLY_INLINE void store_sums(const __m256 (&v)[T], float* out) {
  store_folded<T>(v, out,
                  [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_add_ps(a, b); });
}

// e = 2^(s - mg) of row t, zero where the row does not see; returns their sum over registers.
template <class L, bool Masked>
inline TALLY_INLINE __m256 exponents(const Micro& m, int t, typename L::F* e) {
  const auto max = L::set(m.group_max[t]);
  unrolled<kRowRegisters<L>>([&](auto i) __attribute__((always_inline)) {
    e[i] = exp2_lanes<L>(L::sub(L::load(m.s[t] + L::kLanes * i), max));
    if constexpr (Masked) e[i] = L::keep(L::within(m.seen[t].begin, m.seen[t].end, L::kLanes * i), e[i]);
  });
  return L::fold_sum(e);
}

// Scores of row t to exponents (in m.s); returns their sum over registers.
template <class L, bool Masked>
__attribute__((noinline)) __m256 store_exponents(int t, Micro& m) {
  constexpr int kN = kRowRegisters<L>;
  typename L::F e[kN];
  const __m256 sum = exponents<L, Masked>(m, t, e);
  unrolled<kN>([&](auto i) __attribute__((always_inline)) { L::store(m.s[t] + L::kLanes * i, e[i]); });
  return sum;
}

// The same for T rows, whose sums are noted.
template <class L, int T, bool Masked>
inline TALLY_INLINE void store_exponents_of(Micro& m) {
  __m256 sum[T];
  unrolled<T>([&](auto t) __attribute__((always_inline)) { sum[t] = store_exponents<L, Masked>(t, m); });
  store_sums<T>(sum, m.group_sum);
}

// Joins the group to the spans' maxima and sums: makes keep (cr) and add (cg).
template <int T>
inline TALLY_INLINE void join_group(const Tile& tile, size_t row, Micro& m) {
  float *maxima = tile.memory.span_max + row, *sums = tile.memory.span_sum + row;
  const __m128 old = _mm_loadu_ps(maxima), group = _mm_load_ps(m.group_max), max = _mm_max_ps(old, group);
  const __m256 below =
      _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_sub_ps(old, max)), _mm_sub_ps(group, max), 1);
  const __m256 factors = exp2_lanes<Lanes256>(below);
  const __m128 keep = _mm256_castps256_ps128(factors), add = _mm256_extractf128_ps(factors, 1);
  const __m128 old_sum = _mm_loadu_ps(sums);
  const __m128 sum = _mm_fmadd_ps(old_sum, keep, _mm_mul_ps(_mm_load_ps(m.group_sum), add));
  _mm_store_ps(m.keep, keep);
  _mm_store_ps(m.add, add);
  constexpr int kOthers = (0xF << T) & 0xF;  // rows behind the micro tile stay as they are
  _mm_storeu_ps(maxima, _mm_blend_ps(max, old, kOthers));
  _mm_storeu_ps(sums, _mm_blend_ps(sum, old_sum, kOthers));
}

// What comes next in the cache, for the prefetches of a micro tile: a line for each line consumed, in the
// order of addresses (each line as its columns are consumed is a fifth slower), half a group ahead: V while K
// is consumed, the next group's K while V is. The first micro tile of a group fetches for all; the others are
// pointed at what they read, which costs next to nothing.
struct Ahead {
  const std::byte *key[kGroupChunks], *value[kGroupChunks];
  size_t key_bytes;   // of a chunk
  size_t key_step;    // bytes of K in a group for each column
  size_t value_step;  // bytes of V for each line of K

  // The line `offset` bytes behind the first in K.
  const std::byte* key_line(size_t offset) const {
    size_t chunk = 0;
    while (offset >= key_bytes && chunk + 1 < kGroupChunks) offset -= key_bytes, ++chunk;
    return key[chunk] + offset;
  }
};
template <class Form>
inline TALLY_INLINE Ahead look_ahead(const Tile& tile, const GroupView& g, const GroupView& next,
                                     bool first) {
  Ahead a;
  for (size_t i = 0; i < kGroupChunks; ++i)
    a.key[i] = first ? next.key[i] : g.key[i], a.value[i] = g.value[i];
  a.key_step = Form::kKeyStep, a.value_step = Form::kValueStep;
  a.key_bytes = kChunkTokens * tile.layout->key_columns / kGroupTokens * Form::kKeyStep;
  return a;
}

// Where a micro tile meets a group. View: GroupView, or what a form has made of it.
template <class View>
struct Meeting {
  const View* g;
  Ahead ahead;
  size_t row;
};

// Micro tiles that take each step together: one alone is a chain of products, maxima, exponents and weights,
// each of which waits for the one before.
constexpr size_t kTogether = 4;

// What a Form that walks by micro tiles offers, beside what attend_tiles() asks for:
//   Unit                                                    what a step leaves for the next
//   keys<T, Masked>(tile, meeting, unit)                    q.k
//   scores<T, Masked>(tile, meeting, unit)                  scores and their maxima
//   weights<T, Masked>(tile, meeting, unit)                 what the values are multiplied by; joins the
//   group values<T, Masked>(tile, meeting, unit)                  adds e.v to O
// Masked: some row does not see all of the group.
template <class Form, int T, bool Masked, class View>
__attribute__((noinline)) void meet(const Tile& tile, const Meeting<View>* at, typename Form::Unit* units,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) Form::template keys<T, Masked>(tile, at[i], units[i]);
  for (size_t i = 0; i < n; ++i) Form::template scores<T, Masked>(tile, at[i], units[i]);
  for (size_t i = 0; i < n; ++i) Form::template weights<T, Masked>(tile, at[i], units[i]);
  for (size_t i = 0; i < n; ++i) Form::template values<T, Masked>(tile, at[i], units[i]);
}

// The same where T is what is left of a micro tile.
template <class Form, bool Masked, class View>
inline TALLY_INLINE void meet_few(const Tile& tile, const Meeting<View>* at, typename Form::Unit* units,
                                  size_t n, size_t rows) {
  switch (rows) {
    case 4:
      return meet<Form, 4, Masked>(tile, at, units, n);
    case 3:
      return meet<Form, 3, Masked>(tile, at, units, n);
    case 2:
      return meet<Form, 2, Masked>(tile, at, units, n);
    default:
      return meet<Form, 1, Masked>(tile, at, units, n);
  }
}

// All rows of a range meet a group.
template <class Form, bool Masked, class View>
inline TALLY_INLINE void each_micro_tile(const Tile& tile, const View& g, const GroupView& next,
                                         RowRange rows) {
  typename Form::Unit units[kTogether];
  Meeting<View> at[kTogether];
  for (size_t row = rows.begin; row < rows.end;) {
    const size_t left = rows.end - row, whole = left / kMicroRows;
    const size_t n = whole == 0 ? 1 : whole < kTogether ? whole : kTogether;
    for (size_t i = 0; i < n; ++i)
      at[i] = {&g, look_ahead<Form>(tile, g, next, row + i == rows.begin), row + i * kMicroRows};
    meet_few<Form, Masked>(tile, at, units, n, whole == 0 ? left : kMicroRows);
    row += whole == 0 ? left : n * kMicroRows;
  }
}

// What a form's groups() does. next: of g[0], of g[1], ...
template <class Form, class View>
inline TALLY_INLINE void meet_groups(const Tile& tile, const View* g, const GroupView* next, size_t n,
                                     RowRange rows) {
  if (rows.begin == rows.end) return;
  if (n > 1) {
    typename Form::Unit units[kGroupsTogether];
    Meeting<View> at[kGroupsTogether];
    for (size_t i = 0; i < n; ++i) at[i] = {g + i, look_ahead<Form>(tile, g[i], next[i], true), rows.begin};
    meet_few<Form, false>(tile, at, units, n, rows.end - rows.begin);
  } else if (all_see(tile, g[0], rows)) {
    each_micro_tile<Form, false>(tile, g[0], next[0], rows);
  } else {
    each_micro_tile<Form, true>(tile, g[0], next[0], rows);
  }
}

}  // namespace
}  // namespace tally::kernels::attention
