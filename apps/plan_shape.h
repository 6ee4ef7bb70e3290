#pragma once
// A model that exists as a few numbers: a header with no weights behind it. It has the form of llama; with a
// window that of OLMo 3, with a latent that of DeepSeek 2.

#include "base/result.h"
#include "tensor/tensor.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tally::apps {

struct ModelShape {
  std::map<std::string, uint64_t, std::less<>> values;  // by the keys of --shape, all of them
  tensor::DType type = tensor::DType::kF16;             // of matrices

  uint64_t of(std::string_view key) const { return values.find(key)->second; }
};
// `text`: layers=32,heads=32,...,type=q4_k. Errors: kUsage naming the key, its value and what is allowed.
base::Result<ModelShape> parse_model_shape(const std::string& text);

// A file in memory that opens as the model of --shape, as long as this lives.
class ShapeFile {
 public:
  // Errors: as parse_model_shape.
  static base::Result<ShapeFile> make(const std::string& text);
  ShapeFile(ShapeFile&& other) noexcept;
  ShapeFile& operator=(ShapeFile&&) = delete;
  ~ShapeFile();

  std::string path() const;

 private:
  explicit ShapeFile(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace tally::apps
