#include "gguf/header.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "gguf/value.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::gguf {
namespace {

using base::Checked;

// Ours, except the smallest sizes of a record: key or name of one byte and an empty value.
constexpr uint64_t kMetadataMax = 65536;
constexpr uint64_t kTensorsMax = 65536;
constexpr uint64_t kMetadataBytesMin = 8 + 1 + 4 + 1;
constexpr uint64_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kKeyBytesMax = 65535;
constexpr uint64_t kNameBytesMax = 63;
constexpr uint64_t kDimMax = uint64_t{1} << 40;
constexpr uint64_t kElementsMax = uint64_t{1} << 48;
constexpr uint32_t kRankMax = 4;

// Tensor types that exist but are not read here, for a message that helps.
struct ForeignType {
  uint32_t id;
  std::string_view name;
};
constexpr ForeignType kForeignTypes[] = {
    {9, "Q8_1, for activations only"},
    {15, "Q8_K, for activations only"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {40, "NVFP4"},
    {41, "Q1_0"},
    {42, "Q2_0"},
};

std::string foreign_type_text(uint32_t id) {
  for (const ForeignType& row : kForeignTypes) {
    if (row.id == id) return fmt::format("has type {} ({}), which is not supported", id, row.name);
  }
  if (id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38)) {
    return fmt::format("has type {}, a retired id: convert the model again", id);
  }
  if (id >= 135 && id < 400) {
    return fmt::format("has type {}, private to ik_llama.cpp: use a file of standard types", id);
  }
  return fmt::format("has type {}, which does not exist", id);
}

std::string shape_text(const tensor::Shape& shape) {
  std::string text;
  for (uint32_t i = 0; i < shape.rank; ++i) text += fmt::format("{}{}", i == 0 ? "" : " x ", shape.dim[i]);
  return text;
}

class HeaderParser {
 public:
  HeaderParser(int fd, uint64_t file_bytes, const std::string& path) : in_(fd, file_bytes, path) {}

  base::Result<Header> parse() {
    TALLY_TRY_VOID(read_preamble());
    for (uint64_t i = 0; i < metadata_count_; ++i) TALLY_TRY_VOID(read_metadata());
    TALLY_TRY_VOID(index_metadata());
    TALLY_TRY_VOID(read_alignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) TALLY_TRY_VOID(read_tensor_info());
    in_.set_subject({}, {});
    out_.header_bytes = in_.offset();
    TALLY_TRY_VOID(check_tensor_names());
    TALLY_TRY_VOID(place_tensors());
    TALLY_TRY_VOID(check_overlap());
    TALLY_TRY_VOID(check_quantization_version());
    out_.bytes = in_.release();
    return std::move(out_);
  }

 private:
  base::Result<void> read_preamble();
  base::Result<uint64_t> read_count(std::string_view what, uint64_t count_max, uint64_t record_bytes);
  base::Result<void> read_metadata();
  base::Result<void> index_metadata();
  base::Result<void> read_alignment();
  base::Result<void> read_tensor_info();
  base::Result<void> read_shape(TensorInfo& tensor);
  base::Result<void> read_type(TensorInfo& tensor);
  base::Result<void> check_tensor_names();
  base::Result<void> place_tensors();
  base::Result<void> check_overlap();
  base::Result<void> check_quantization_version();

  HeaderReader in_;
  Header out_;
  uint64_t metadata_count_ = 0, tensor_count_ = 0;
  uint64_t alignment_ = kAlignmentDefault;
};

base::Result<void> HeaderParser::read_preamble() {
  TALLY_TRY(const std::string_view magic, in_.take(kMagic.size(), "the magic"));
  if (magic != kMagic) {
    return in_.bad_data(0, fmt::format("not a GGUF file: it starts with '{}'", base::escape_for_log(magic)));
  }
  TALLY_TRY(out_.version, in_.take_number<uint32_t>("the version"));
  if (const uint32_t swapped = __builtin_bswap32(out_.version); swapped >= 1 && swapped <= kVersionMax) {
    return in_.bad_data(4, fmt::format("big-endian GGUF (version {:#010x}) is not supported", out_.version));
  }
  if (out_.version < kVersionMin || out_.version > kVersionMax) {
    return in_.bad_data(4, fmt::format("GGUF version {} is not supported; allowed {} and {}", out_.version,
                                       kVersionMin, kVersionMax));
  }
  TALLY_TRY(tensor_count_, read_count("the tensor count", kTensorsMax, kTensorBytesMin));
  TALLY_TRY(metadata_count_, read_count("the metadata count", kMetadataMax, kMetadataBytesMin));
  return {};
}

base::Result<uint64_t> HeaderParser::read_count(std::string_view what, uint64_t count_max,
                                                uint64_t record_bytes) {
  const uint64_t at = in_.offset();
  TALLY_TRY(const uint64_t count, in_.take_number<uint64_t>(what));
  if (count > count_max)
    return in_.bad_data(at, fmt::format("{} is {}; allowed 0 to {}", what, count, count_max));
  // Cannot wrap: count_max is small.
  if (count * record_bytes > in_.remaining()) {
    return in_.past_end(at, fmt::format("{} of {}", what, count), count * record_bytes);
  }
  return count;
}

base::Result<void> HeaderParser::read_metadata() {
  in_.set_subject({}, {});
  Metadata item;
  item.offset = in_.offset();
  TALLY_TRY(item.key, in_.take_string("a metadata key", {1, kKeyBytesMax}));
  const bool printable =
      std::all_of(item.key.begin(), item.key.end(), [](char c) { return c >= 0x20 && c <= 0x7E; });
  if (!printable) {
    return in_.bad_data(
        item.offset, fmt::format("metadata key '{}' is not printable ASCII", base::escape_for_log(item.key)));
  }
  in_.set_subject("key", item.key);
  TALLY_TRY(item.value, read_value(in_));
  out_.metadata.push_back(std::move(item));
  return {};
}

base::Result<void> HeaderParser::index_metadata() {
  in_.set_subject({}, {});
  std::vector<std::string_view> names;
  names.reserve(out_.metadata.size());
  for (const Metadata& item : out_.metadata) names.push_back(item.key);
  out_.metadata_index = NameIndex(names);
  const size_t duplicate = out_.metadata_index.find_duplicate();
  if (duplicate == NameIndex::npos) return {};
  const Metadata& item = out_.metadata[duplicate];
  return in_.bad_data(item.offset, fmt::format("duplicate key '{}'", base::escape_for_log(item.key)));
}

base::Result<void> HeaderParser::read_alignment() {
  const Metadata* item = out_.find("general.alignment");
  if (item == nullptr) return {};
  in_.set_subject("key", item->key);
  if (item->value.type != static_cast<uint32_t>(ValueType::kU32)) {
    return in_.bad_data(item->offset,
                        fmt::format("has type {}; must be u32", value_type_name(item->value.type)));
  }
  const uint64_t value = *std::get_if<uint64_t>(&item->value.data);
  if (value == 0 || value > kAlignmentMax || (value & (value - 1)) != 0) {
    return in_.bad_data(item->offset,
                        fmt::format("is {}; must be a power of two from 1 to {}", value, kAlignmentMax));
  }
  alignment_ = value;
  return {};
}

base::Result<void> HeaderParser::read_tensor_info() {
  in_.set_subject({}, {});
  TensorInfo tensor;
  tensor.record_offset = in_.offset();
  TALLY_TRY(tensor.name, in_.take_string("a tensor name", {1, kNameBytesMax}));
  in_.set_subject("tensor", tensor.name);
  if (tensor.name.find('\0') != std::string_view::npos)
    return in_.bad_data(tensor.record_offset, "the name holds a NUL");
  TALLY_TRY_VOID(read_shape(tensor));
  TALLY_TRY_VOID(read_type(tensor));
  const uint64_t at = in_.offset();
  TALLY_TRY(tensor.file_offset, in_.take_number<uint64_t>("the offset"));  // within the data section, for now
  if (tensor.file_offset % alignment_ != 0) {
    return in_.bad_data(at, fmt::format("data offset {} is not a multiple of the alignment {}",
                                        tensor.file_offset, alignment_));
  }
  out_.tensors.push_back(tensor);
  return {};
}

base::Result<void> HeaderParser::read_shape(TensorInfo& tensor) {
  const uint64_t at = in_.offset();
  TALLY_TRY(tensor.shape.rank, in_.take_number<uint32_t>("the number of dimensions"));
  if (tensor.shape.rank < 1 || tensor.shape.rank > kRankMax) {
    return in_.bad_data(at, fmt::format("has {} dimensions; allowed 1 to {}", tensor.shape.rank, kRankMax));
  }
  Checked elements = 1;
  for (uint32_t i = 0; i < tensor.shape.rank; ++i) {
    const uint64_t dim_at = in_.offset();
    TALLY_TRY(const uint64_t dim, in_.take_number<uint64_t>("a dimension"));
    if (dim < 1 || dim > kDimMax) {
      return in_.bad_data(dim_at, fmt::format("dimension {} is {}; allowed 1 to {}", i, dim, kDimMax));
    }
    tensor.shape.dim[i] = dim;
    elements = elements * dim;
  }
  if (!elements.get() || *elements.get() > kElementsMax) {
    return in_.bad_data(
        at, fmt::format("shape {} has more than {} elements", shape_text(tensor.shape), kElementsMax));
  }
  return {};
}

base::Result<void> HeaderParser::read_type(TensorInfo& tensor) {
  const uint64_t at = in_.offset();
  TALLY_TRY(const uint32_t id, in_.take_number<uint32_t>("the type"));
  const tensor::DTypeInfo* info = tensor::find_dtype(id);
  if (info == nullptr) return in_.bad_data(at, foreign_type_text(id));
  tensor.type = info->type;
  const auto& dim = tensor.shape.dim;
  if (dim[0] % info->block_elements != 0) {
    return in_.bad_data(at, fmt::format("row length {} is not a multiple of {}, the block of {}", dim[0],
                                        info->block_elements, info->name));
  }
  const std::optional<uint64_t> bytes =
      (Checked(dim[0] / info->block_elements) * info->block_bytes * dim[1] * dim[2] * dim[3]).get();
  if (!bytes) return in_.bad_data(at, "its size in bytes does not fit in 64 bits");
  tensor.bytes = *bytes;
  return {};
}

base::Result<void> HeaderParser::check_tensor_names() {
  std::vector<std::string_view> names;
  names.reserve(out_.tensors.size());
  for (const TensorInfo& tensor : out_.tensors) names.push_back(tensor.name);
  const size_t duplicate = NameIndex(names).find_duplicate();
  if (duplicate == NameIndex::npos) return {};
  const TensorInfo& tensor = out_.tensors[duplicate];
  return in_.bad_data(tensor.record_offset,
                      fmt::format("duplicate tensor '{}'", base::escape_for_log(tensor.name)));
}

base::Result<void> HeaderParser::place_tensors() {
  const Checked data_start = Checked(out_.header_bytes).align_up(alignment_);
  for (TensorInfo& tensor : out_.tensors) {
    const Checked begin = data_start + tensor.file_offset;
    const std::optional<uint64_t> end = (begin + tensor.bytes).get();
    if (!end || *end > in_.file_bytes()) {
      in_.set_subject("tensor", tensor.name);
      return in_.bad_data(
          tensor.record_offset,
          fmt::format("its data, {} bytes at offset {} of the data section, passes the end of the file: "
                      "truncated at {}, or damaged",
                      tensor.bytes, tensor.file_offset, in_.file_bytes()));
    }
    tensor.file_offset = *begin.get();
  }
  return {};
}

base::Result<void> HeaderParser::check_overlap() {
  std::vector<const TensorInfo*> order;
  order.reserve(out_.tensors.size());
  for (const TensorInfo& tensor : out_.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->file_offset < b->file_offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo &before = *order[i - 1], &tensor = *order[i];
    if (before.file_offset + before.bytes <= tensor.file_offset)
      continue;  // cannot wrap: it ends within the file
    in_.set_subject("tensor", tensor.name);
    return in_.bad_data(
        tensor.record_offset,
        fmt::format("its data at {} overlaps that of tensor '{}', which ends at {}", tensor.file_offset,
                    base::escape_for_log(before.name), before.file_offset + before.bytes));
  }
  return {};
}

// The block layouts known here are those of version 2.
base::Result<void> HeaderParser::check_quantization_version() {
  constexpr uint64_t kQuantizationVersion = 2;
  const Metadata* item = out_.find("general.quantization_version");
  if (item == nullptr) return {};
  const bool quantized = std::any_of(out_.tensors.begin(), out_.tensors.end(), [](const TensorInfo& tensor) {
    return tensor::dtype_info(tensor.type).block_elements > 1;
  });
  if (!quantized) return {};
  const uint64_t* value = std::get_if<uint64_t>(&item->value.data);
  if (value != nullptr && *value == kQuantizationVersion) return {};
  in_.set_subject("key", item->key);
  return in_.bad_data(
      item->offset, fmt::format("is {}; quantized tensors need version {}",
                                value != nullptr ? fmt::to_string(*value) : value_type_name(item->value.type),
                                kQuantizationVersion));
}

}  // namespace

NameIndex::NameIndex(const std::vector<std::string_view>& names) {
  sorted_.reserve(names.size());
  for (const std::string_view name : names) sorted_.emplace_back(name, static_cast<uint32_t>(sorted_.size()));
  std::sort(sorted_.begin(), sorted_.end());
}

size_t NameIndex::find(std::string_view name) const {
  const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(name, uint32_t{0}));
  return it != sorted_.end() && it->first == name ? it->second : npos;
}

size_t NameIndex::find_duplicate() const {
  for (size_t i = 1; i < sorted_.size(); ++i) {
    if (sorted_[i].first == sorted_[i - 1].first) return sorted_[i].second;
  }
  return npos;
}

const Metadata* Header::find(std::string_view key) const {
  const size_t i = metadata_index.find(key);
  return i == NameIndex::npos ? nullptr : &metadata[i];
}

base::Result<Header> read_header(int fd, uint64_t file_bytes, const std::string& path) {
  return HeaderParser(fd, file_bytes, path).parse();
}

}  // namespace tally::gguf
