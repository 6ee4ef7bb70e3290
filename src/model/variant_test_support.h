#pragma once
// A model file made from another by a list of edits: keys changed, tensors removed or drawn anew. For tests.

#include "base/check.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "kernels/kernels.h"
#include "tensor/blocks.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tally::model {

// The edits, as data:
//   metadata  key -> value; null removes it, an integer is u32, a fraction f32, arrays are of i32, bool or
//   f32 layers    a count: more of them are copies of the base's, in turn, but for its first. First of the
//   edits tensors   in order; "blk.*." stands for every layer:
//     {"remove": name}
//     {"name", "fuse": names, "along": dimension}  their values one behind the other along it, in their place
//     {"name", "shape", "type" = F32, "scale", "offset" = 0}  values offset + scale * u, u uniform in [-1, 1)
//     and decided
//                                                             by the name; of quantized types the blocks'
//                                                             bytes are
class VariantFile {
 public:
  // `dequantized` writes every drawn tensor as the F32 values that it means.
  VariantFile(const gguf::File& base, const nlohmann::json& edits, const kernels::KernelTable& kernels,
              bool dequantized)
      : kernels_(kernels), dequantized_(dequantized) {
    put_metadata(base, edits.value("metadata", nlohmann::json::object()));
    take_tensors(base, edits.value("layers", 0u));
    for (const nlohmann::json& edit : edits.value("tensors", nlohmann::json::array())) {
      const std::string name = edit.contains("remove") ? edit["remove"] : edit["name"];
      const uint32_t times = name.find('*') == std::string::npos ? 1 : layers_;
      for (uint32_t layer = 0; layer < times; ++layer) change(in_layer(name, layer), layer, edit);
    }
    for (const auto& [name, t] : tensors_)
      writer_.add_tensor(name, t.type, t.shape, std::as_bytes(std::span(t.bytes)));
  }

  std::string bytes() const { return writer_.bytes(); }

 private:
  struct Tensor {
    tensor::DType type = tensor::DType::kF32;
    tensor::Shape shape;
    std::string bytes;
  };

  static std::string in_layer(std::string name, uint32_t layer) {
    const size_t star = name.find('*');
    return star == std::string::npos ? name : name.replace(star, 1, std::to_string(layer));
  }

  void change(const std::string& name, uint32_t layer, const nlohmann::json& edit) {
    if (edit.contains("remove")) {
      take(name);
    } else if (edit.contains("fuse")) {
      std::vector<Tensor> parts;
      for (const std::string part : edit["fuse"]) parts.push_back(take(in_layer(part, layer)));
      tensors_[name] = fuse(parts, edit["along"]);
    } else {
      tensors_[name] = draw(name, edit);
    }
  }
  Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    TALLY_CHECK(found != tensors_.end(), "no such tensor");
    Tensor t = std::move(found->second);
    tensors_.erase(found);
    return t;
  }

  static Tensor fuse(const std::vector<Tensor>& parts, size_t along) {
    Tensor out{parts[0].type, parts[0].shape, {}};
    size_t slabs = 1;
    for (size_t d = along + 1; d < out.shape.dim.size(); ++d) slabs *= out.shape.dim[d];
    out.shape.dim[along] = 0;
    for (const Tensor& part : parts) out.shape.dim[along] += part.shape.dim[along];
    for (size_t slab = 0; slab < slabs; ++slab) {
      for (const Tensor& part : parts)
        out.bytes += part.bytes.substr(slab * (part.bytes.size() / slabs), part.bytes.size() / slabs);
    }
    return out;
  }

  void put_metadata(const gguf::File& base, const nlohmann::json& changes) {
    for (const gguf::Metadata& m : base.metadata()) {
      if (!changes.contains(m.key)) writer_.set_value(m.key, m.value);
    }
    for (const auto& [key, value] : changes.items()) {
      if (value.is_null()) continue;
      if (value.is_string()) {
        writer_.set_string(key, value.get<std::string>());
      } else if (value.is_boolean()) {
        writer_.set_bool(key, value.get<bool>());
      } else if (value.is_number_float()) {
        writer_.set_float(key, value.get<float>());
      } else if (value.is_number()) {
        writer_.set_uint(key, value.get<uint32_t>());
      } else {
        put_array(key, value);
      }
    }
  }

  void put_array(const std::string& key, const nlohmann::json& array) {
    constexpr uint32_t kBool = 7, kArray = 9;  // value types of the format
    if (array[0].is_number_integer()) return writer_.set_ints(key, array.get<std::vector<int32_t>>());
    if (array[0].is_number_float()) return writer_.set_floats(key, array.get<std::vector<float>>());
    std::string flags;
    for (const nlohmann::json& flag : array) flags += static_cast<char>(flag.get<bool>());
    writer_.set_value(key, {kArray, gguf::Array{kBool, flags.size(), flags, {}, {}}});
  }

  void take_tensors(const gguf::File& base, uint32_t layers) {
    constexpr std::string_view kBlock = "blk.";
    std::map<uint32_t, std::vector<std::pair<std::string, const gguf::TensorInfo*>>> of_layer;
    for (const gguf::TensorInfo& t : base.tensors()) {
      if (!t.name.starts_with(kBlock)) {
        tensors_[std::string(t.name)] = read(base, t);
        continue;
      }
      const size_t dot = t.name.find('.', kBlock.size());
      uint32_t layer = 0;
      std::from_chars(t.name.data() + kBlock.size(), t.name.data() + dot, layer);
      of_layer[layer].emplace_back(t.name.substr(dot), &t);
    }
    const auto had = static_cast<uint32_t>(of_layer.size());
    layers_ = layers == 0 ? had : layers;
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const uint32_t source = layer < had ? layer : had == 1 ? 0 : 1 + (layer - had) % (had - 1);
      for (const auto& [rest, t] : of_layer[source])
        tensors_[std::string(kBlock) + std::to_string(layer) + rest] = read(base, *t);
    }
  }

  static Tensor read(const gguf::File& file, const gguf::TensorInfo& t) {
    Tensor out{t.type, t.shape, std::string(t.bytes, '\0')};
    const auto bytes = std::as_writable_bytes(std::span(out.bytes));
    TALLY_CHECK(static_cast<bool>(file.read_tensor(t, 0, bytes)), "read of a base file");
    return out;
  }

  // SplitMix64 over a hash of the name.
  class Random {
   public:
    explicit Random(std::string_view name) {
      for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    }
    uint64_t next() {
      uint64_t z = state_ += 0x9E3779B97F4A7C15u;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      return z ^ (z >> 31);
    }
    double unit() { return static_cast<double>(next() >> 40) * 0x1p-23 - 1; }

   private:
    uint64_t state_ = 0xCBF29CE484222325u;
  };

  Tensor draw(const std::string& name, const nlohmann::json& recipe) const {
    Tensor t;
    const auto dims = recipe["shape"].get<std::vector<uint64_t>>();
    std::copy(dims.begin(), dims.end(), t.shape.dim.begin());
    t.shape.rank = static_cast<uint32_t>(dims.size());
    const std::string type = recipe.value("type", "F32");
    for (const tensor::DTypeInfo& row : tensor::dtypes()) {
      if (row.name == type) t.type = row.type;
    }
    Random random(name);
    const double scale = recipe["scale"], offset = recipe.value("offset", 0.0);
    const tensor::DTypeInfo& info = tensor::dtype_info(t.type);
    TALLY_CHECK(info.name == type, "no such type");
    if (info.block_elements > 1) {
      t.bytes = draw_blocks(info, t.shape.elements() / info.block_elements, scale, random);
    } else {
      for (uint64_t i = 0; i < t.shape.elements(); ++i)
        append(t, static_cast<float>(offset + scale * random.unit()));
    }
    return dequantized_ ? widened(t) : t;
  }

  static void append(Tensor& t, float value) {
    const auto put = [&](auto v) { t.bytes.append(reinterpret_cast<const char*>(&v), sizeof v); };
    if (t.type == tensor::DType::kF16) return put(tensor::f32_to_f16(value));
    if (t.type == tensor::DType::kBF16) return put(tensor::f32_to_bf16(value));
    TALLY_CHECK(t.type == tensor::DType::kF32, "no such float type");
    put(value);
  }

  // Types whose blocks begin with one scale: Q8_0, Q4_0, MXFP4.
  static std::string draw_blocks(const tensor::DTypeInfo& info, uint64_t blocks, double scale,
                                 Random& random) {
    std::string bytes;
    for (uint64_t b = 0; b < blocks; ++b) {
      const size_t begin = bytes.size();
      for (uint32_t i = 0; i < info.block_bytes; ++i) bytes += static_cast<char>(random.next() >> 56);
      const uint16_t d =
          tensor::f32_to_f16(static_cast<float>(scale / (info.type == tensor::DType::kQ8_0 ? 128 : 8)));
      if (info.type == tensor::DType::kMXFP4) {
        bytes[begin] = 122;  // 2^-6: values up to 0.19
      } else {
        std::memcpy(bytes.data() + begin, &d, sizeof d);
      }
    }
    return bytes;
  }

  Tensor widened(const Tensor& t) const {
    Tensor out{tensor::DType::kF32, t.shape, std::string(t.shape.elements() * sizeof(float), '\0')};
    const size_t k = t.shape.dim[0], row = tensor::row_bytes(t.type, k);
    std::vector<float> values(k);
    for (size_t r = 0; r < t.bytes.size() / row; ++r) {
      kernels_.find_linear(t.type)->dequantize(reinterpret_cast<const std::byte*>(t.bytes.data()) + r * row,
                                               k, values.data());
      std::memcpy(out.bytes.data() + r * k * sizeof(float), values.data(), k * sizeof(float));
    }
    return out;
  }

  const kernels::KernelTable& kernels_;
  const bool dequantized_;
  uint32_t layers_ = 0;
  std::map<std::string, Tensor> tensors_;
  gguf::Writer writer_;
};

}  // namespace tally::model
