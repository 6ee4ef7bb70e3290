// Writes the seeds that are binary files: fuzz_seeds FOLDER, which is tests/golden/fuzz.

#include "gguf/writer.h"
#include "model/tiny_file_test_support.h"

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tally::gguf::Writer;

void put(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// Every kind of value, and tensors of several types.
std::string header_seed() {
  Writer writer;
  writer.set_string("general.architecture", "llama");
  writer.set_uint("general.alignment", 32);
  writer.set_uint("general.quantization_version", 2);
  writer.set_uint("split.count", 1);
  writer.set_uint("split.no", 0);
  writer.set_float("f", 1e-5f);
  writer.set_bool("b", true);
  writer.set_strings("s", std::vector<std::string>{"a", "", "bcd"});
  writer.set_floats("fs", std::vector<float>{1, 2, 3});
  writer.set_ints("is", std::vector<int32_t>{1, -2, 3});
  writer.add_tensor("w", tally::tensor::DType::kF32, {{3, 2, 1, 1}, 2}, std::vector<std::byte>(24));
  writer.add_tensor("q", tally::tensor::DType::kQ8_0, {{32, 2, 1, 1}, 2}, std::vector<std::byte>(68));
  writer.add_tensor("k", tally::tensor::DType::kQ4_K, {{256, 1, 1, 1}, 1}, std::vector<std::byte>(144));
  return writer.bytes();
}

// A vocabulary of a few pieces; the text to encode stands behind the file.
std::string tokenizer_seed(std::string_view model, std::string_view pre,
                           const std::vector<std::string>& pieces, std::string_view text) {
  Writer writer;
  writer.set_string("tokenizer.ggml.model", model);
  if (!pre.empty()) writer.set_string("tokenizer.ggml.pre", pre);
  std::vector<int32_t> kinds(pieces.size(), 1);
  std::vector<float> scores(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    scores[i] = -static_cast<float>(i);
    if (pieces[i].starts_with("<")) kinds[i] = pieces[i].starts_with("<0x") ? 6 : 3;
  }
  kinds[0] = 2;
  writer.set_strings("tokenizer.ggml.tokens", pieces);
  writer.set_ints("tokenizer.ggml.token_type", kinds);
  writer.set_floats("tokenizer.ggml.scores", scores);
  if (model != "llama") writer.set_strings("tokenizer.ggml.merges", std::vector<std::string>{"a b", "ab c"});
  writer.set_uint("tokenizer.ggml.unknown_token_id", 0);
  writer.set_uint("tokenizer.ggml.bos_token_id", 1);
  writer.set_uint("tokenizer.ggml.eos_token_id", 2);
  writer.set_bool("tokenizer.ggml.add_space_prefix", true);
  return writer.bytes() + std::string(text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 64;
  }
  const std::filesystem::path folder(argv[1]);
  put(folder / "gguf/values.gguf", header_seed());
  const std::vector<std::string> pieces = {"<unk>",
                                           "<s>",
                                           "</s>",
                                           "a",
                                           "b",
                                           "c",
                                           "ab",
                                           "abc",
                                           "\xC4\xA0",
                                           "\xC4\x8A",
                                           "1",
                                           "\xE2\x96\x81",
                                           "<0x20>",
                                           "<0x0A>",
                                           "\xE2\x96\x81"
                                           "a",
                                           "<|im_end|>"};
  const std::string_view text = "ab abc<s> a\n\n1abc \xC3\xA9\xFF<|im_end|>cab";
  put(folder / "tokenizer/gpt2.gguf", tokenizer_seed("gpt2", "gpt-2", pieces, text));
  put(folder / "tokenizer/qwen2.gguf", tokenizer_seed("gpt2", "qwen2", pieces, text));
  put(folder / "tokenizer/llama-bpe.gguf", tokenizer_seed("gpt2", "llama-bpe", pieces, text));
  put(folder / "tokenizer/spm.gguf", tokenizer_seed("llama", "", pieces, text));
  put(folder / "tokenizer/gemma4.gguf", tokenizer_seed("gemma4", "gemma4", pieces, text));
  size_t number = 0;
  for (const tally::model::TinyFamily& family : tally::model::tiny_families()) {
    const std::string name = std::to_string(number++) + "-" + family.architecture + ".gguf";
    put(folder / "load" / name, tally::model::TinyFile(family).bytes());
  }
  return 0;
}
