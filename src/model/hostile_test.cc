// Model files that were good once: without a tensor, with another name or shape, with numbers that are none.
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/tiny_file_test_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tally::model {
namespace {

const kernels::KernelTable& table() {
  static const kernels::KernelTable made = kernels::kernel_table(kernels::best_isa());
  return made;
}

LoadOptions options() {
  LoadOptions o;
  o.context = 16;
  return o;
}

// Binds a file's tensors, without reading their data: nothing, or what is wrong.
std::string refusal(const std::string& path) {
  const auto file = gguf::File::open(path);
  if (!file) return file.error().message;
  const auto bytes = Model::packed_bytes(*file, table(), options());
  if (bytes) return {};
  EXPECT_EQ(bytes.error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(bytes.error().message.find('\n'), std::string::npos) << bytes.error().message;
  return bytes.error().message;
}

// ---- One tensor of a whole file
// ----------------------------------------------------------------------------

// The header of a file, record by record; its data is a hole.
class Directory {
 public:
  explicit Directory(const std::string& path) {
    const auto file = gguf::File::open(path);
    TALLY_CHECK(file.has_value(), "a golden file does not open");
    std::ifstream in(path, std::ios::binary);
    head_.resize(file->header_bytes());
    in.read(head_.data(), static_cast<std::streamsize>(head_.size()));
    bytes_ = file->file_bytes();
    for (const gguf::TensorInfo& t : file->tensors()) {
      names_.emplace_back(t.name), shapes_.push_back(t.shape);
      step_.push_back(tensor::dtype_info(t.type).block_elements);
      begin_.push_back(t.record_offset);
    }
    begin_.push_back(head_.size());
  }

  size_t size() const { return names_.size(); }
  const std::string& name(size_t i) const { return names_[i]; }
  const tensor::Shape& shape(size_t i) const { return shapes_[i]; }
  uint64_t step(size_t i, uint32_t dim) const { return dim == 0 ? step_[i] : 1; }

  std::string without(size_t i) const {
    std::string head = head_;
    head.erase(begin_[i], begin_[i + 1] - begin_[i]);
    uint64_t count = size() - 1;
    std::memcpy(head.data() + 8, &count, sizeof count);
    return refusal_of(head);
  }
  std::string renamed(size_t i) const {
    std::string head = head_;
    head[begin_[i] + 8] = 'X';
    return refusal_of(head);
  }
  std::string reshaped(size_t i, uint32_t dim, uint64_t length) const {
    std::string head = head_;
    std::memcpy(head.data() + begin_[i] + 8 + names_[i].size() + 4 + dim * 8, &length, sizeof length);
    return refusal_of(head);
  }

 private:
  std::string refusal_of(const std::string& head) const {
    const UnnamedFile file(head);
    TALLY_CHECK(truncate(file.path().c_str(), static_cast<off_t>(bytes_ + head_.size())) == 0, "truncate");
    return refusal(file.path());
  }

  std::string head_;
  uint64_t bytes_ = 0;
  std::vector<std::string> names_;
  std::vector<tensor::Shape> shapes_;
  std::vector<uint64_t> step_;
  std::vector<size_t> begin_;
};

// A sanitizer makes each opening ten times dearer: it looks at one tensor of seven.
#if defined(TALLY_INSTRUMENTED)
constexpr size_t kTensorStep = 7;
#else
constexpr size_t kTensorStep = 1;
#endif

std::vector<std::string> arch_files() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/arch")) {
    if (entry.path().extension() == ".gguf") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Without it the file is another model, and a whole one: nothing in it says that the tensor was there.
bool makes_another_model(std::string_view name) {
  return name == "output.weight" || name == "output.bias" || name == "output_norm.bias" ||
         name == "token_embd_norm.bias" || name == "rope_freqs.weight";
}

// What the refusal has to name: the tensor, or one that it is an alternative of.
bool names_it(const std::string& message, const std::string& name) {
  if (message.find(name) != std::string::npos) return true;
  const std::string layer = name.substr(0, name.find('.', 4) + 1);
  return name.starts_with("blk.") && message.find(layer) != std::string::npos &&
         message.find("is missing") != std::string::npos;
}

TEST(Hostile, EveryTensorOfEveryArchitectureIsMissed) {
  const std::vector<std::string> paths = arch_files();
  ASSERT_GE(paths.size(), 32u);
  for (const std::string& path : paths) {
    const Directory directory(path);
    ASSERT_EQ(refusal(path), "") << path;
    for (size_t i = 0; i < directory.size(); i += kTensorStep) {
      const std::string& name = directory.name(i);
      for (const std::string& message : {directory.without(i), directory.renamed(i)}) {
        EXPECT_TRUE(message.empty() ? makes_another_model(name) : names_it(message, name))
            << path << ": without " << name << ": " << message;
      }
    }
  }
}

TEST(Hostile, EveryDimensionOfEveryArchitectureIsChecked) {
  for (const std::string& path : arch_files()) {
    const Directory directory(path);
    for (size_t i = 0; i < directory.size(); i += kTensorStep) {
      const tensor::Shape& shape = directory.shape(i);
      for (uint32_t dim = 0; dim < shape.rank; ++dim) {
        // One row for all heads, or one for each: both are forms that files have.
        if (dim == 1 && directory.name(i).find("_norm.") != std::string::npos) continue;
        const uint64_t step = directory.step(i, dim), length = shape.dim[dim];
        for (const uint64_t changed :
             {length > step ? length - step : length * 2, length + step, length * 2}) {
          const std::string message = directory.reshaped(i, dim, changed);
          const std::string& name = directory.name(i);
          // The vocabulary is what this tensor says; it is its neighbours that do not fit then.
          const bool vocabulary = name == "token_embd.weight" && dim == 1;
          EXPECT_TRUE(message.find(name) != std::string::npos || (vocabulary && !message.empty()))
              << path << ": " << name << " with " << changed << " for " << length << ": " << message;
        }
      }
    }
  }
}

// ---- G22
// ---------------------------------------------------------------------------------------------------

const TinyFamily& llama() {
  static const TinyFamily family = tiny_families()[0];
  return family;
}

std::string refusal_of(const TinyFile& tiny) {
  const UnnamedFile file(tiny.bytes());
  return refusal(file.path());
}

TEST(Hostile, G22EmbeddingVocabularyAndOutputAgree) {
  TinyFile tokens{llama()};
  tokens.keys()["tokenizer.ggml.tokens"] = std::vector<std::string>{"a", "b", "c"};
  EXPECT_NE(refusal_of(tokens).find("tokenizer.ggml.tokens has 3 entries, token_embd.weight 8 rows"),
            std::string::npos)
      << refusal_of(tokens);
  TinyFile output{llama()};
  for (TinyTensor& t : output.tensors()) {
    if (t.name == "output.weight") t.shape.dim[1] = 7, t.bytes.resize(t.bytes.size() / 8 * 7);
  }
  EXPECT_NE(refusal_of(output).find("tensor output.weight"), std::string::npos) << refusal_of(output);
}

TEST(Hostile, G18MoreLayersThanTensors) {
  for (const uint32_t layers : {2u, 1024u}) {
    TinyFile tiny{llama()};
    tiny.keys()["block_count"] = layers;
    EXPECT_EQ(refusal_of(tiny), "tensor blk.1.attn_norm.weight is missing");
  }
}

// ---- G24, G25: numbers that are none
// -----------------------------------------------------------------------

// Eight sequences of one token each.
class OneTokenSequences {
 public:
  struct Out {
    std::vector<std::vector<float>> logits;
    std::vector<uint8_t> failed;  // flagged, or with a logit that is no number: the request fails
  };

  static Out run(const std::string& bytes) {
    kernels::set_float_mode();
    base::ThreadPool pool(1, kernels::set_float_mode);
    base::Accounts accounts(uint64_t{64} << 20);
    const UnnamedFile unnamed(bytes);
    const auto file = unnamed.open().value();
    const Model model = Model::load(file, table(), options(), pool, accounts).value();
    const auto layouts = kv_layouts(model.spec(), tensor::KvCodec::kInt8, 16);
    constexpr uint32_t kRows = TinyFile::kVocab;
    const kv::PoolShape shape = kv::make_pool_shape(layouts, kRows);
    const base::Arena memory = accounts.reserve(base::Account::kKv, "pool", shape.pool_bytes()).value();
    StepLimits limits;
    limits.rows_max = kRows, limits.logits_rows_max = kRows, limits.context_max = 16;
    Scratch scratch = model.make_scratch(limits, layouts, 1, accounts).value();
    std::vector<TokenId> tokens;
    std::vector<Segment> segments;
    std::vector<uint32_t> numbers;
    for (uint32_t r = 0; r < kRows; ++r) {
      tokens.push_back(TokenId{static_cast<int32_t>(r)});
      segments.push_back({r, 1, 0, r});
      numbers.push_back(r);
    }
    model.forward({tokens, segments, numbers, numbers}, kv::View(&shape, memory.data()), scratch, pool);
    Out out;
    for (uint32_t r = 0; r < kRows; ++r) {
      const auto logits = scratch.logits(r);
      out.logits.emplace_back(logits.begin(), logits.end());
      const bool finite = std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
      out.failed.push_back(scratch.nonfinite()[r] != 0 || !finite);
    }
    return out;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Where a block of the type keeps a scale, and how wide it is.
struct ScaleField {
  tensor::DType type;
  size_t offset, width;
};
constexpr ScaleField kScales[] = {
    {tensor::DType::kF32, 0, 4},    {tensor::DType::kF16, 0, 2},    {tensor::DType::kBF16, 0, 2},
    {tensor::DType::kQ4_0, 0, 2},   {tensor::DType::kQ4_1, 0, 2},   {tensor::DType::kQ4_1, 2, 2},
    {tensor::DType::kQ5_0, 0, 2},   {tensor::DType::kQ5_1, 0, 2},   {tensor::DType::kQ5_1, 2, 2},
    {tensor::DType::kQ8_0, 0, 2},   {tensor::DType::kQ2_K, 80, 2},  {tensor::DType::kQ2_K, 82, 2},
    {tensor::DType::kQ3_K, 108, 2}, {tensor::DType::kQ4_K, 0, 2},   {tensor::DType::kQ4_K, 2, 2},
    {tensor::DType::kQ5_K, 0, 2},   {tensor::DType::kQ5_K, 2, 2},   {tensor::DType::kQ6_K, 208, 2},
    {tensor::DType::kIQ4_NL, 0, 2}, {tensor::DType::kIQ4_XS, 0, 2}, {tensor::DType::kMXFP4, 0, 1},
};

struct BadValue {
  uint32_t f32, f16, bf16, e8m0;
  bool is_number;
};
constexpr BadValue kBadValues[] = {
    {0x7FC00000, 0x7E00, 0x7FC0, 0xFF, false}, {0x7F800000, 0x7C00, 0x7F80, 0xFE, false},
    {0xFF800000, 0xFC00, 0xFF80, 0xFD, false}, {0x7F800001, 0x7C01, 0x7F81, 0x00, false},  // signalling
    {0x00000001, 0x0001, 0x0001, 0x01, true},  {0x80000001, 0x8001, 0x8001, 0x02, true}};

void poison(TinyTensor& t, size_t row, const ScaleField& field, const BadValue& value) {
  const size_t row_bytes = tensor::row_bytes(t.type, t.shape.dim[0]);
  const uint32_t bits = t.type == tensor::DType::kF32    ? value.f32
                        : t.type == tensor::DType::kBF16 ? value.bf16
                        : field.width == 1               ? value.e8m0
                                                         : value.f16;
  std::memcpy(t.bytes.data() + row * row_bytes + field.offset, &bits, field.width);
}

// In the embedding of one token: only its request fails.
TEST(Hostile, G24G25OnlyTheRowThatMeetsItFails) {
  for (const ScaleField& field : kScales) {
    TinyFamily family{"llama", {{"embedding_length", 256u}, {"feed_forward_length", 256u}}};
    family.keys["attention.key_length"] = 8u, family.keys["attention.value_length"] = 8u;
    family.types = {field.type};
    const TinyFile good(family);
    const auto clean = OneTokenSequences::run(good.bytes());
    for (size_t r = 0; r < TinyFile::kVocab; ++r) ASSERT_EQ(clean.failed[r], 0) << r;
    for (const BadValue& value : kBadValues) {
      constexpr size_t kPoisoned = 3;
      TinyFile bad = good;
      poison(bad.tensor("token_embd.weight"), kPoisoned, field, value);
      const auto got = OneTokenSequences::run(bad.bytes());
      const std::string what = std::string(tensor::dtype_info(field.type).name) + " at " +
                               std::to_string(field.offset) + " " + std::to_string(value.f16);
      for (size_t r = 0; r < TinyFile::kVocab; ++r) {
        if (r != kPoisoned) {
          EXPECT_EQ(got.failed[r], 0) << what << " row " << r;
          EXPECT_TRUE(same_bits(got.logits[r], clean.logits[r])) << what << " row " << r;
        } else if (field.type != tensor::DType::kMXFP4) {  // an exponent alone: large, but a number
          EXPECT_EQ(got.failed[r], value.is_number ? 0 : 1) << what;
        }
      }
    }
  }
}

// An expert that is not chosen, another token's or position's row, position 0 of a rope, a power of two.
bool may_miss_the_first_row(const TinyTensor& t) {
  for (const std::string_view part :
       {"_exps", "token_embd.weight", "position_embd", "gate_inp", "exp_probs_b", "rope_f", "sinks"}) {
    if (t.name.find(part) != std::string::npos) return true;
  }
  return t.type == tensor::DType::kMXFP4;
}

// In a matrix that every row meets: all requests fail, or none, but the computation ends and stays in its
// bounds.
TEST(Hostile, G25AnyMatrixMayHoldIt) {
  for (const TinyFamily& family : tiny_families()) {
    const TinyFile good(family);
    for (size_t i = 0; i < TinyFile(good).tensors().size(); ++i) {
      TinyFile bad = good;
      TinyTensor& t = bad.tensors()[i];
      const auto field = std::find_if(std::begin(kScales), std::end(kScales),
                                      [&](const ScaleField& f) { return f.type == t.type; });
      poison(t, 0, *field, kBadValues[0]);
      const auto got = OneTokenSequences::run(bad.bytes());
      if (may_miss_the_first_row(t)) continue;
      EXPECT_EQ(got.failed[0], 1) << family.architecture << " " << t.name;
    }
  }
}

// In one expert: the rows that it was chosen for fail, the others do not change by a bit.
TEST(Hostile, G25OnlyTheRowsOfTheExpertFail) {
  TinyFamily family{"llama", {{"expert_count", 4u}, {"expert_used_count", 1u}}};
  family.types = {tensor::DType::kQ8_0};
  const TinyFile good(family);
  const auto clean = OneTokenSequences::run(good.bytes());
  size_t failed = 0;
  for (size_t expert = 0; expert < 4; ++expert) {
    TinyFile bad = good;
    constexpr size_t kRowsOfExpert = 32;
    poison(bad.tensor("blk.0.ffn_down_exps.weight"), expert * kRowsOfExpert, {tensor::DType::kQ8_0, 0, 2},
           kBadValues[0]);
    const auto got = OneTokenSequences::run(bad.bytes());
    for (size_t r = 0; r < TinyFile::kVocab; ++r) {
      failed += got.failed[r];
      if (got.failed[r] != 0) continue;
      EXPECT_TRUE(same_bits(got.logits[r], clean.logits[r])) << expert << " row " << r;
    }
  }
  EXPECT_EQ(failed, TinyFile::kVocab) << "every row has one expert";
}

}  // namespace
}  // namespace tally::model
