// Any bytes as a GGUF file: it opens or it is refused, and what opened can be read whole.

#include "base/check.h"
#include "fuzz/input_file.h"
#include "gguf/gguf.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using tally::gguf::File;

void read_everything(const File& file) {
  for (const tally::gguf::Metadata& item : file.metadata()) {
    (void)file.get_uint(item.key, 0, UINT64_MAX);
    (void)file.get_float(item.key);
    (void)file.get_bool(item.key);
    (void)file.get_string(item.key);
    (void)file.get_uints(item.key, 3, 0, UINT64_MAX);
    (void)file.get_strings(item.key);
    (void)file.get_floats(item.key);
    (void)file.get_ints(item.key, INT64_MIN, INT64_MAX);
    TALLY_CHECK(file.find(item.key) == &item.value, "a key is not found");
  }
  for (const tally::gguf::TensorInfo& tensor : file.tensors()) {
    std::vector<std::byte> data(tensor.bytes);
    TALLY_CHECK(file.read_tensor(tensor, 0, data).has_value(), "a tensor that was checked cannot be read");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = File::open(input_file(data, size));
  if (file) read_everything(*file);
  return 0;
}
