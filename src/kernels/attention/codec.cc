// The codecs, one value at a time: the definition. A token's bytes depend on its k and v only. Padding
// columns hold the value zero (nibbles: q = 0); K and V of a refused token are zeros throughout.
#include "kernels/attention/codec.h"

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/attention.h"

namespace tally::kernels::attention {
namespace {

using tensor::KvLayout;

// What a format offers, for K and for V: put writes one head of a token and is false if a value leaves the
// format's range (what it wrote then is overwritten), get reads it back as it is stored.
//   bool put_key(layout, place, x)    void get_key(layout, place, x)    and the same of values

// x [dim] followed by zeros up to `columns`.
float padded(const float* x, size_t dim, size_t c) { return c < dim ? x[c] : 0.f; }

struct F32 {
  static float* keys(TokenPlace at) { return reinterpret_cast<float*>(at.head_block); }
  static float* values(const KvLayout& l, TokenPlace at) {
    return reinterpret_cast<float*>(at.head_block + l.value_offset);
  }
  static bool put_key(const KvLayout& l, TokenPlace at, const float* x) {
    for (size_t c = 0; c < l.key_columns; ++c)
      keys(at)[key_index_f32(l.key_columns, at.token, c)] = padded(x, l.key_dim, c);
    return true;
  }
  static bool put_value(const KvLayout& l, TokenPlace at, const float* x) {
    for (size_t c = 0; c < l.value_columns; ++c)
      values(l, at)[value_index_f32(l.value_columns, at.token, c)] = padded(x, l.value_dim, c);
    return true;
  }
  static void get_key(const KvLayout& l, TokenPlace at, float* x) {
    for (size_t c = 0; c < l.key_dim; ++c) x[c] = keys(at)[key_index_f32(l.key_columns, at.token, c)];
  }
  static void get_value(const KvLayout& l, TokenPlace at, float* x) {
    for (size_t c = 0; c < l.value_dim; ++c)
      x[c] = values(l, at)[value_index_f32(l.value_columns, at.token, c)];
  }
};

// A finite value that rounds to infinity is refused like an infinity.
struct Bf16 {
  static uint16_t* keys(TokenPlace at) { return reinterpret_cast<uint16_t*>(at.head_block); }
  static uint16_t* values(const KvLayout& l, TokenPlace at) {
    return reinterpret_cast<uint16_t*>(at.head_block + l.value_offset);
  }
  static bool put_key(const KvLayout& l, TokenPlace at, const float* x) {
    bool finite = true;
    for (size_t c = 0; c < l.key_columns; ++c) {
      const uint16_t rounded = bf16_from_f32(padded(x, l.key_dim, c));
      finite = finite && is_finite(f32_from_bf16(rounded));
      keys(at)[key_index_bf16(l.key_columns, at.token, c)] = rounded;
    }
    return finite;
  }
  static bool put_value(const KvLayout& l, TokenPlace at, const float* x) {
    bool finite = true;
    for (size_t c = 0; c < l.value_columns; ++c) {
      const uint16_t rounded = bf16_from_f32(padded(x, l.value_dim, c));
      finite = finite && is_finite(f32_from_bf16(rounded));
      values(l, at)[value_index_bf16(l.value_columns, at.token, c)] = rounded;
    }
    return finite;
  }
  static void get_key(const KvLayout& l, TokenPlace at, float* x) {
    for (size_t c = 0; c < l.key_dim; ++c)
      x[c] = f32_from_bf16(keys(at)[key_index_bf16(l.key_columns, at.token, c)]);
  }
  static void get_value(const KvLayout& l, TokenPlace at, float* x) {
    for (size_t c = 0; c < l.value_dim; ++c)
      x[c] = f32_from_bf16(values(l, at)[value_index_bf16(l.value_columns, at.token, c)]);
  }
};

// x, rotated, in `out` [dim]; false if it overflows f32.
bool rotated(const float* x, size_t dim, float* out) {
  for (size_t c = 0; c < dim; ++c) out[c] = x[c];
  rotate(out, dim);
  return all_finite(out, dim);
}

struct Int8 {
  static uint8_t* keys(TokenPlace at) { return reinterpret_cast<uint8_t*>(at.head_block); }
  static int8_t* values(const KvLayout& l, TokenPlace at) {
    return reinterpret_cast<int8_t*>(at.head_block + l.value_offset);
  }
  static bool put_key(const KvLayout& l, TokenPlace at, const float* x) {
    float turned[kDimMax];
    int8_t quants[kDimMax] = {};
    if (!rotated(x, l.key_dim, turned)) return false;
    key_scales(l, at.head_block)[at.token] = quantize_127(turned, l.key_dim, quants);
    for (size_t c = 0; c < l.key_columns; ++c)
      keys(at)[key_index_int8(l.key_columns, at.token, c)] = static_cast<uint8_t>(quants[c] + 128);
    return true;
  }
  static bool put_value(const KvLayout& l, TokenPlace at, const float* x) {
    int8_t quants[kDimMax] = {};
    value_scales(l, at.head_block)[at.token] = quantize_127(x, l.value_dim, quants);
    for (size_t c = 0; c < l.value_columns; ++c)
      values(l, at)[value_index_int8(l.value_columns, at.token, c)] = quants[c];
    return true;
  }
  static void get_key(const KvLayout& l, TokenPlace at, float* x) {
    const float scale = key_scales(l, at.head_block)[at.token];
    for (size_t c = 0; c < l.key_dim; ++c)
      x[c] = static_cast<float>(keys(at)[key_index_int8(l.key_columns, at.token, c)] - 128) * scale;
  }
  static void get_value(const KvLayout& l, TokenPlace at, float* x) {
    const float scale = value_scales(l, at.head_block)[at.token];
    for (size_t c = 0; c < l.value_dim; ++c)
      x[c] = static_cast<float>(values(l, at)[value_index_int8(l.value_columns, at.token, c)]) * scale;
  }
};

// Keys and values alike: rotated, then groups of 32 columns, the last of them perhaps fewer.
struct Nibble {
  struct Part {
    uint8_t* bytes;
    NibbleScale* scales;  // of the head block
    size_t columns, dim;
    size_t (*index)(size_t columns, size_t t, size_t c);
    bool (*is_high)(size_t c);
  };
  static Part keys(const KvLayout& l, TokenPlace at) {
    return {reinterpret_cast<uint8_t*>(at.head_block),
            key_nibble_scales(l, at.head_block),
            l.key_columns,
            l.key_dim,
            key_index_nibble,
            key_nibble_is_high};
  }
  static Part values(const KvLayout& l, TokenPlace at) {
    return {reinterpret_cast<uint8_t*>(at.head_block + l.value_offset),
            value_nibble_scales(l, at.head_block),
            l.value_columns,
            l.value_dim,
            value_index_nibble,
            value_nibble_is_high};
  }
  static bool put(const KvLayout& l, TokenPlace at, const Part& part, const float* x) {
    float turned[kDimMax];
    if (!rotated(x, part.dim, turned)) return false;
    for (size_t first = 0; first < part.columns; first += tensor::kNibbleGroup) {
      const size_t left = part.dim - first;
      NibbleGroup group;
      if (!quantize_nibbles(turned + first, left < kNibbles ? static_cast<int>(left) : kNibbles, &group))
        return false;
      part.scales[first / tensor::kNibbleGroup * l.block_tokens + at.token] = group.scale;
      for (size_t i = 0; i < tensor::kNibbleGroup; ++i) {
        uint8_t& byte = part.bytes[part.index(part.columns, at.token, first + i)];
        byte = static_cast<uint8_t>(part.is_high(first + i) ? (byte & 0x0f) | group.q[i] << 4
                                                            : (byte & 0xf0) | group.q[i]);
      }
    }
    return true;
  }
  static void get(const KvLayout& l, TokenPlace at, const Part& part, float* x) {
    for (size_t c = 0; c < part.dim; ++c) {
      const NibbleScale scale = part.scales[c / tensor::kNibbleGroup * l.block_tokens + at.token];
      const uint8_t byte = part.bytes[part.index(part.columns, at.token, c)];
      const auto q = static_cast<float>(part.is_high(c) ? byte >> 4 : byte & 0x0f);
      x[c] = __builtin_fmaf(q, f32_from_f16(scale.step), f32_from_f16(scale.low));
    }
  }
  static bool put_key(const KvLayout& l, TokenPlace at, const float* x) { return put(l, at, keys(l, at), x); }
  static bool put_value(const KvLayout& l, TokenPlace at, const float* x) {
    return put(l, at, values(l, at), x);
  }
  static void get_key(const KvLayout& l, TokenPlace at, float* x) { get(l, at, keys(l, at), x); }
  // As it was before the rotation, which is its own inverse.
  static void get_value(const KvLayout& l, TokenPlace at, float* x) {
    get(l, at, values(l, at), x);
    rotate(x, l.value_dim);
  }
};

template <class Key, class Value>
bool store(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const KvLayout& l = *kv.layout;
  bool stored =
      all_finite(k, size_t{l.kv_heads} * l.key_dim) && all_finite(v, size_t{l.kv_heads} * l.value_dim);
  for (size_t h = 0; stored && h < l.kv_heads; ++h) {
    const TokenPlace at = token_place(kv, position, h);
    stored = Key::put_key(l, at, k + h * l.key_dim) && Value::put_value(l, at, v + h * l.value_dim);
  }
  if (stored) return true;
  const float zeros[kDimMax] = {};
  for (size_t h = 0; h < l.kv_heads; ++h) {
    Key::put_key(l, token_place(kv, position, h), zeros);
    Value::put_value(l, token_place(kv, position, h), zeros);
  }
  return false;
}

template <class Key, class Value>
void load(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  const TokenPlace at = token_place(kv, position, kv_head);
  Key::get_key(*kv.layout, at, k);
  Value::get_value(*kv.layout, at, v);
}

}  // namespace

void load_f32(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  load<F32, F32>(kv, position, kv_head, k, v);
}
void load_bf16(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  load<Bf16, Bf16>(kv, position, kv_head, k, v);
}
void load_int8(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  load<Int8, Int8>(kv, position, kv_head, k, v);
}
void load_k8v4(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  load<Int8, Nibble>(kv, position, kv_head, k, v);
}
void load_int4(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v) {
  load<Nibble, Nibble>(kv, position, kv_head, k, v);
}

}  // namespace tally::kernels::attention

namespace tally::kernels {

bool store_f32_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::F32, attention::F32>(kv, position, k, v);
}
bool store_bf16_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Bf16, attention::Bf16>(kv, position, k, v);
}
bool store_int8_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Int8, attention::Int8>(kv, position, k, v);
}
bool store_k8v4_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Int8, attention::Nibble>(kv, position, k, v);
}
bool store_int4_scalar(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store<attention::Nibble, attention::Nibble>(kv, position, k, v);
}

}  // namespace tally::kernels
