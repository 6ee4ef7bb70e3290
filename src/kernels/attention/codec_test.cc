// store and load against an oracle written from the format's description: the transform by recursion, the
// bytes by nested array indices. Byte for byte, every form.
#include "kernels/attention/arithmetic.h"
#include "kernels/attention/test_cache.h"
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace tally::kernels::attention {
namespace {

using tensor::KvCodec;
using tensor::KvLayout;

constexpr uint32_t kDims[] = {8, 10, 12, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256, 576};

std::vector<Form> forms_of(KvCodec codec) {
  std::vector<Form> list;
  for (const Form& f : forms())
    if (f.codec == codec && host_has(f.isa)) list.push_back(f);
  return list;
}

// ---- The oracle
// --------------------------------------------------------------------------------------------------------------

// H_2n = [[H_n, H_n], [H_n, -H_n]]: both halves transformed, then sum and difference.
std::vector<float> hadamard(std::vector<float> x) {
  if (x.size() == 1) return x;
  const ptrdiff_t half = static_cast<ptrdiff_t>(x.size() / 2);
  const std::vector<float> a = hadamard({x.begin(), x.begin() + half}),
                           b = hadamard({x.begin() + half, x.end()});
  for (size_t i = 0; i < a.size(); ++i) x[i] = a[i] + b[i], x[i + a.size()] = a[i] - b[i];
  return x;
}

std::vector<float> rotated(const std::vector<float>& x) {
  size_t block = 1;
  while (x.size() % (2 * block) == 0) block *= 2;
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); i += block)
    for (const float v :
         hadamard({x.begin() + static_cast<ptrdiff_t>(i), x.begin() + static_cast<ptrdiff_t>(i + block)}))
      y.push_back(v * factor);
  return y;
}

struct Quantized {
  std::vector<int> q;
  float scale = 0;
};
Quantized quantized(const std::vector<float>& x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  Quantized out{std::vector<int>(x.size(), 0), 0};
  if (amax < 1e-30f) return out;
  out.scale = amax / 127.f;
  for (size_t i = 0; i < x.size(); ++i)
    out.q[i] = std::clamp(static_cast<int>(std::nearbyint(x[i] * (127.f / amax))), -127, 127);
  return out;
}

uint16_t rounded_bf16(float x) {  // by comparing the two neighbours
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rest = bits & 0xffffu, low = bits >> 16;
  const bool up = rest > 0x8000u || (rest == 0x8000u && (low & 1u) != 0);
  return static_cast<uint16_t>(low + (up ? 1u : 0u));
}

template <class T>
void put(std::vector<std::byte>& bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// A group of 32 columns, of which the first x.size() count.
struct Nibbles {
  std::vector<int> q = std::vector<int>(32, 0);
  float step = 0, low = 0;
};
Nibbles nibbles(const std::vector<float>& x) {
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  Nibbles best;
  float best_error = std::numeric_limits<float>::infinity();
  for (const float cut : {0.f, 0.02f, 0.04f, 0.06f, 0.08f, 0.1f}) {
    const float off = (*most - *least) * cut;
    const float low = *least + off, high = *most - off;
    Nibbles n;
    n.step = tensor::f16_to_f32(tensor::f32_to_f16((high - low) / 15.f));
    n.low = tensor::f16_to_f32(tensor::f32_to_f16(low));
    std::vector<float> part(8, 0.f);
    for (size_t i = 0; i < x.size(); ++i) {
      if (n.step != 0)
        n.q[i] = static_cast<int>(std::nearbyint(std::clamp((x[i] - n.low) / n.step, 0.f, 15.f)));
      const float off_by = std::fma(static_cast<float>(n.q[i]), n.step, n.low) - x[i];
      part[i % 8] = std::fma(off_by, off_by, part[i % 8]);
    }
    const float error =
        ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    if (error < best_error) best = n, best_error = error;
  }
  return best;
}
std::vector<Nibbles> nibble_groups(const std::vector<float>& x) {
  std::vector<Nibbles> groups;
  for (size_t i = 0; i < x.size(); i += 32)
    groups.push_back(nibbles({x.begin() + static_cast<ptrdiff_t>(i),
                              x.begin() + static_cast<ptrdiff_t>(std::min(x.size(), i + 32))}));
  return groups;
}

// Ors a nibble into a byte that was cleared before.
void put_nibble(std::vector<std::byte>& bytes, size_t at, bool high, int q) {
  ASSERT_LT(at, bytes.size());
  bytes[at] = high ? (bytes[at] & std::byte{0x0F}) | static_cast<std::byte>(q << 4)
                   : (bytes[at] & std::byte{0xF0}) | static_cast<std::byte>(q);
}
void put_scales(std::vector<std::byte>& bytes, size_t start, size_t t, size_t block_tokens,
                const std::vector<Nibbles>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    put(bytes, start + (g * block_tokens + t) * 4, tensor::f32_to_f16(groups[g].step));
    put(bytes, start + (g * block_tokens + t) * 4 + 2, tensor::f32_to_f16(groups[g].low));
  }
}

// Puts one head of one token where the format says, in bytes from the start of the block.
void oracle_store(const KvLayout& l, std::vector<std::byte>& block, size_t head, size_t t,
                  std::vector<float> k, std::vector<float> v) {
  const size_t start = head * l.head_block_bytes, dk = l.key_columns, dv = l.value_columns,
               b = l.block_tokens;
  const bool is_int4 = l.codec == KvCodec::kInt4, has_nibbles = is_int4 || l.codec == KvCodec::kK8V4;
  const Quantized kq = quantized(rotated(k)), vq = quantized(v);
  std::vector<Nibbles> kn, vn;  // only of values that f16 holds
  if (is_int4) kn = nibble_groups(rotated(k));
  if (has_nibbles) vn = nibble_groups(rotated(v));
  k.resize(dk, 0.f), v.resize(dv, 0.f);
  size_t key_bytes = 0;
  for (size_t c = 0; c < dk; ++c) switch (l.codec) {
      case KvCodec::kF32:
        put(block, start + (t * dk + c) * 4, k[c]);
        break;
      case KvCodec::kBf16:  // [t/16][dk/2][16][2]
        put(block, start + ((((t / 16) * (dk / 2) + c / 2) * 16 + t % 16) * 2 + c % 2) * 2,
            rounded_bf16(k[c]));
        break;
      case KvCodec::kInt8:
      case KvCodec::kK8V4:  // [t/16][dk/4][16][4]
        key_bytes = b * dk;
        put(block, start + (((t / 16) * (dk / 4) + c / 4) * 16 + t % 16) * 4 + c % 4,
            static_cast<uint8_t>((c < kq.q.size() ? kq.q[c] : 0) + 128));
        break;
      case KvCodec::kInt4:  // [t/16][dk/8][16][4]
        key_bytes = b * dk / 2;
        put_nibble(block, start + (((t / 16) * (dk / 8) + c / 8) * 16 + t % 16) * 4 + c % 4, c % 8 >= 4,
                   kn[c / 32].q[c % 32]);
    }
  for (size_t c = 0; c < dv; ++c) switch (l.codec) {
      case KvCodec::kF32:
        put(block, start + b * dk * 4 + (t * dv + c) * 4, v[c]);
        break;
      case KvCodec::kBf16:  // [t/2][dv/16][16][2]
        put(block, start + b * dk * 2 + ((((t / 2) * (dv / 16) + c / 16) * 16 + c % 16) * 2 + t % 2) * 2,
            rounded_bf16(v[c]));
        break;
      case KvCodec::kInt8:  // [t/4][dv/16][16][4]
        put(block, start + key_bytes + (((t / 4) * (dv / 16) + c / 16) * 16 + c % 16) * 4 + t % 4,
            static_cast<int8_t>(c < vq.q.size() ? vq.q[c] : 0));
        break;
      case KvCodec::kK8V4:
      case KvCodec::kInt4:  // [t/4][dv/32][16][4]
        put_nibble(block, start + key_bytes + (((t / 4) * (dv / 32) + c / 32) * 16 + c % 16) * 4 + t % 4,
                   c % 32 >= 16, vn[c / 32].q[c % 32]);
    }
  if (key_bytes == 0) return;
  const size_t tail = start + key_bytes + b * (has_nibbles ? dv / 2 : dv);
  if (is_int4)
    put_scales(block, tail, t, b, kn);
  else
    put(block, tail + t * 4, kq.scale);
  const size_t value_tail = tail + b * 4 * (is_int4 ? dk / 32 : 1);
  if (has_nibbles)
    put_scales(block, value_tail, t, b, vn);
  else
    put(block, value_tail + t * 4, vq.scale);
}

// ---- Inputs
// ------------------------------------------------------------------------------------------------------------------

float bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Vectors that sit on the edges of the codecs. `kind` 0 .. kEdges - 1.
constexpr int kEdges = 9;
std::vector<float> edge(int kind, size_t n, std::mt19937& rng, KvCodec codec) {
  const float large = codec == KvCodec::kK8V4 || codec == KvCodec::kInt4 ? 3e3f : 1e30f;  // f16 is the limit
  std::vector<float> x(n, 0.f);
  for (size_t i = 0; i < n; ++i) switch (kind) {
      case 0:
        break;  // zero
      case 1:
        x[i] = i == n / 2 ? 1e4f : 0.01f * static_cast<float>(i % 3);
        break;  // one outlier
      case 2:
        x[i] = i % 2 == 0 ? 3.7f : -3.7f;
        break;  // +-amax ties
      case 3:
        x[i] = i == 0 ? 127.f : static_cast<float>(i % 64) - 31.5f;
        break;  // halves: ties of the rounding
      case 4:
        x[i] = bits(1u + static_cast<uint32_t>(i) * 7919u);
        break;  // denormal
      case 5:
        x[i] = i % 2 == 0 ? 1e-30f : -0.99e-30f;
        break;  // around the smallest amax
      case 6:
        x[i] = bits(0x3f808000u + static_cast<uint32_t>(i) * 0x8000u);
        break;  // ties of bf16, odd and even
      case 7:
        x[i] = i % 3 == 0 ? -0.f : large;
        break;
      default:
        x[i] = std::normal_distribution<float>(0, 1)(rng);
    }
  return x;
}

class Codec : public testing::Test {
 protected:
  void SetUp() override { set_float_mode(); }
};

void expect_block(const std::vector<std::byte>& got, const std::vector<std::byte>& want,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const auto differs = std::mismatch(got.begin(), got.end(), want.begin()).first;
  ASSERT_EQ(differs, got.end()) << what << ": byte " << differs - got.begin() << " of the block";
}

std::string describe(const KvLayout& l, const Form& form) {
  return std::string(tensor::kv_codec_info(l.codec).name) + " " + std::string(isa_name(form.isa)) +
         " d=" + std::to_string(l.key_dim) + "/" + std::to_string(l.value_dim) +
         " B=" + std::to_string(l.block_tokens);
}

void store_a_block(const CacheShape& shape, const Form& form) {
  TestCache cache(shape, shape.block_tokens, 1);
  const KvLayout& l = cache.layout();
  std::vector<std::byte> want = cache.block_of(0);
  std::mt19937 rng(shape.key_dim * 131 + shape.block_tokens);
  for (size_t t = 0; t + 1 < shape.block_tokens; ++t) {  // the last token stays unwritten
    std::vector<float> k, v;
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      const int kind = static_cast<int>((t + h) % kEdges);
      const std::vector<float> hk = edge(kind, l.key_dim, rng, l.codec),
                               hv = edge((kind + 3) % kEdges, l.value_dim, rng, l.codec);
      oracle_store(l, want, h, t, hk, hv);
      k.insert(k.end(), hk.begin(), hk.end()), v.insert(v.end(), hv.begin(), hv.end());
    }
    ASSERT_TRUE(form.store(cache.sequence(), t, k.data(), v.data())) << describe(l, form) << " token " << t;
  }
  expect_block(cache.block_of(0), want, describe(l, form));
}

TEST_F(Codec, StoresTheBytesOfTheFormat) {
  for (const KvCodec codec : all_codecs())
    for (const Form& form : forms_of(codec))
      for (const uint32_t dim : kDims)
        for (const uint32_t block : {16u, 32u, 64u, 128u}) {
          if (block > 32 && dim > 128) continue;  // nothing new, and slow
          store_a_block({.codec = codec,
                         .kv_heads = 2,
                         .key_dim = dim,
                         .value_dim = dim == 64 ? 40 : dim,
                         .block_tokens = block},
                        form);
        }
}

std::vector<float> decoded(const Quantized& x) {
  std::vector<float> y;
  for (const int q : x.q) y.push_back(static_cast<float>(q) * x.scale);
  return y;
}
std::vector<float> decoded(const std::vector<Nibbles>& groups, size_t dim) {
  std::vector<float> y;
  for (size_t c = 0; c < dim; ++c) {
    const Nibbles& group = groups[c / 32];
    y.push_back(std::fma(static_cast<float>(group.q[c % 32]), group.step, group.low));
  }
  return y;
}

TEST_F(Codec, LoadGivesTheDecodedValues) {
  for (const KvCodec codec : all_codecs())
    for (const uint32_t dim : kDims) {
      TestCache cache({.codec = codec, .kv_heads = 2, .key_dim = dim, .value_dim = dim, .block_tokens = 16},
                      40, 3);
      const AttentionKernels kernels = select_attention(codec, best_isa());
      std::mt19937 rng(dim);
      std::vector<std::vector<float>> keys, values;
      for (size_t t = 0; t < 40; ++t) {
        keys.push_back(random_values(rng, 2 * dim)), values.push_back(random_values(rng, 2 * dim));
        ASSERT_TRUE(kernels.store(cache.sequence(), t, keys[t].data(), values[t].data()));
      }
      for (size_t t = 0; t < 40; ++t)
        for (size_t h = 0; h < 2; ++h) {
          std::vector<float> k(dim), v(dim);
          kernels.load(cache.sequence(), t, h, k.data(), v.data());
          const auto from = static_cast<ptrdiff_t>(h * dim), to = from + static_cast<ptrdiff_t>(dim);
          std::vector<float> x(keys[t].begin() + from, keys[t].begin() + to),
              y(values[t].begin() + from, values[t].begin() + to);
          const tensor::KvFormat key = tensor::kv_codec_info(codec).key,
                                 value = tensor::kv_codec_info(codec).value;
          if (key == tensor::KvFormat::kInt8) x = decoded(quantized(rotated(x)));
          if (key == tensor::KvFormat::kNibble) x = decoded(nibble_groups(rotated(x)), dim);
          if (value == tensor::KvFormat::kInt8) y = decoded(quantized(y));
          if (value == tensor::KvFormat::kNibble) y = rotated(decoded(nibble_groups(rotated(y)), dim));
          if (codec == KvCodec::kBf16) {
            for (size_t c = 0; c < dim; ++c)
              x[c] = bits(uint32_t{rounded_bf16(x[c])} << 16),
              y[c] = bits(uint32_t{rounded_bf16(y[c])} << 16);
          }
          ASSERT_EQ(k, x) << tensor::kv_codec_info(codec).name << " d=" << dim << " token " << t;
          ASSERT_EQ(v, y) << tensor::kv_codec_info(codec).name << " d=" << dim << " token " << t;
        }
    }
}

TEST_F(Codec, RefusesWhatIsNotFiniteAndStoresZeros) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const KvCodec codec : all_codecs())
    for (const Form& form : forms_of(codec))
      for (const float bad : {inf, -inf, nan, -nan})
        for (const bool in_key : {true, false})
          for (const size_t at : {0u, 47u, 2u * 48 - 1}) {
            TestCache cache(
                {.codec = codec, .kv_heads = 2, .key_dim = 48, .value_dim = 48, .block_tokens = 16}, 16, 1);
            const KvLayout& l = cache.layout();
            std::vector<std::byte> want = cache.block_of(0);
            std::mt19937 rng(1);
            std::vector<float> k = random_values(rng, 96), v = random_values(rng, 96);
            (in_key ? k : v)[at] = bad;
            EXPECT_FALSE(form.store(cache.sequence(), 5, k.data(), v.data()))
                << describe(l, form) << " " << bad;
            for (size_t h = 0; h < 2; ++h)
              oracle_store(l, want, h, 5, std::vector<float>(48, 0.f), std::vector<float>(48, 0.f));
            expect_block(cache.block_of(0), want, describe(l, form));
          }
}

// Finite inputs that leave the range of what is stored: the rotation's sums, the rounding of bf16, f16.
TEST_F(Codec, RefusesWhatOverflowsInside) {
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> large(64, most), small(64, 1.f);
  for (const KvCodec codec : all_codecs())
    for (const Form& form : forms_of(codec)) {
      TestCache cache({.codec = codec, .kv_heads = 1, .block_tokens = 16}, 16, 1);
      EXPECT_EQ(form.store(cache.sequence(), 0, large.data(), small.data()), codec == KvCodec::kF32);
      EXPECT_EQ(form.store(cache.sequence(), 1, small.data(), large.data()),
                codec == KvCodec::kF32 || codec == KvCodec::kInt8);
      EXPECT_TRUE(form.store(cache.sequence(), 2, small.data(), small.data()));
    }
}

// What f16 holds of the rotated columns is stored, from 65,520 on it is refused.
TEST_F(Codec, RefusesNibblesBeyondF16) {
  for (const KvCodec codec : {KvCodec::kK8V4, KvCodec::kInt4})
    for (const Form& form : forms_of(codec))
      for (const bool in_key : {true, false})
        for (const float sign : {1.f, -1.f}) {
          TestCache cache({.codec = codec, .kv_heads = 1, .key_dim = 16, .value_dim = 16, .block_tokens = 16},
                          16, 1);
          const std::vector<float> small(16, 1.f);
          const auto store = [&](float x) {  // 16 equal values: the first rotated column is 4 x, the rest 0
            const std::vector<float> large(16, sign * x);
            return form.store(cache.sequence(), 0, (in_key ? large : small).data(),
                              (in_key ? small : large).data());
          };
          const bool is_nibble = !in_key || codec == KvCodec::kInt4;
          EXPECT_TRUE(store(16379.f)) << describe(cache.layout(), form);
          EXPECT_EQ(store(16380.f), !is_nibble) << describe(cache.layout(), form);
        }
}

// No value is further from what is read back than half a step and what f16 rounds, unless cutting the range
// off made the sum of squares less.
TEST_F(Codec, NibblesStayNearTheirValues) {
  std::mt19937 rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> x =
        random_values(rng, 1 + rng() % 32, std::exp2(static_cast<float>(rng() % 20) - 12.f));
    if (i % 3 == 0) x[rng() % x.size()] *= 50;
    NibbleGroup group;
    ASSERT_TRUE(quantize_nibbles(x.data(), static_cast<int>(x.size()), &group));
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    const double whole_step = static_cast<double>(*most - *least) / 15 + 1e-7;
    double error = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      ASSERT_LE(group.q[c], 15);
      const double back = group.q[c] * static_cast<double>(f32_from_f16(group.scale.step)) +
                          static_cast<double>(f32_from_f16(group.scale.low));
      error += std::pow(back - static_cast<double>(x[c]), 2);
    }
    const double rounding =
        std::pow(2.0, -10) * static_cast<double>(std::max(std::fabs(*least), std::fabs(*most)));
    EXPECT_LE(std::sqrt(error / static_cast<double>(x.size())), whole_step / 2 + rounding) << i;
  }
}

// The rotation is orthonormal: dot products survive it.
TEST_F(Codec, RotationKeepsDotProducts) {
  for (const uint32_t dim : kDims) {
    std::mt19937 rng(dim);
    std::vector<float> a = random_values(rng, dim), b = random_values(rng, dim);
    double before = 0, after = 0;
    for (size_t i = 0; i < dim; ++i) before += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    const std::vector<float> expected = rotated(a);
    rotate(a.data(), dim), rotate(b.data(), dim);
    EXPECT_EQ(a, expected);
    for (size_t i = 0; i < dim; ++i) after += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    EXPECT_NEAR(before, after, 1e-4) << dim;
  }
}

}  // namespace
}  // namespace tally::kernels::attention
