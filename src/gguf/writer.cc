#include "gguf/writer.h"

#include "base/utf8.h"
#include "gguf/file_state.h"
#include "gguf/value.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tally::gguf {
namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void put_string(std::string& out, std::string_view text) {
  put(out, uint64_t{text.size()});
  out += text;
}

void put_type(std::string& out, ValueType type) { put(out, static_cast<uint32_t>(type)); }

void put_key(std::string& out, std::string_view key, ValueType type) {
  put_string(out, key);
  put_type(out, type);
}

void put_array(std::string& out, std::string_view key, ValueType element_type, size_t count) {
  put_key(out, key, ValueType::kArray);
  put_type(out, element_type);
  put(out, uint64_t{count});
}

size_t padding(size_t bytes) { return (kAlignmentDefault - bytes % kAlignmentDefault) % kAlignmentDefault; }

base::Error io_error(const std::string& path, std::string_view step) {
  return {base::ErrorCode::kIo,
          fmt::format("{}: {}: {}", base::escape_for_log(path), step, std::strerror(errno))};
}

base::Result<void> write_all(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put_bytes = ::write(fd, bytes.data(), bytes.size());
    if (put_bytes < 0 && errno == EINTR) continue;
    if (put_bytes < 0) return io_error(path, "write");
    bytes.remove_prefix(static_cast<size_t>(put_bytes));
  }
  return {};
}

}  // namespace

void Writer::set_uint(std::string_view key, uint32_t value) {
  put_key(metadata_, key, ValueType::kU32);
  put(metadata_, value);
  ++metadata_count_;
}

void Writer::set_float(std::string_view key, float value) {
  put_key(metadata_, key, ValueType::kF32);
  put(metadata_, value);
  ++metadata_count_;
}

void Writer::set_bool(std::string_view key, bool value) {
  put_key(metadata_, key, ValueType::kBool);
  put(metadata_, static_cast<uint8_t>(value));
  ++metadata_count_;
}

void Writer::set_string(std::string_view key, std::string_view value) {
  put_key(metadata_, key, ValueType::kString);
  put_string(metadata_, value);
  ++metadata_count_;
}

void Writer::set_strings(std::string_view key, std::span<const std::string> values) {
  put_array(metadata_, key, ValueType::kString, values.size());
  for (const std::string& value : values) put_string(metadata_, value);
  ++metadata_count_;
}

void Writer::set_floats(std::string_view key, std::span<const float> values) {
  put_array(metadata_, key, ValueType::kF32, values.size());
  for (const float value : values) put(metadata_, value);
  ++metadata_count_;
}

void Writer::set_ints(std::string_view key, std::span<const int32_t> values) {
  put_array(metadata_, key, ValueType::kI32, values.size());
  for (const int32_t value : values) put(metadata_, value);
  ++metadata_count_;
}

void Writer::add_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape,
                        std::span<const std::byte> data) {
  const size_t rows = shape.dim[1] * shape.dim[2] * shape.dim[3];
  TALLY_CHECK(data.size() == tensor::row_bytes(type, shape.dim[0]) * rows, "tensor data of another size",
              data.size());
  tensors_.push_back(
      {std::string(name), type, shape, std::string(reinterpret_cast<const char*>(data.data()), data.size())});
}

std::string Writer::header() const {
  std::string out(kMagic);
  put(out, kVersionMax);
  put(out, uint64_t{tensors_.size()});
  put(out, metadata_count_);
  out += metadata_;
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_string(out, tensor.name);
    put(out, tensor.shape.rank);
    for (uint32_t i = 0; i < tensor.shape.rank; ++i) put(out, tensor.shape.dim[i]);
    put(out, static_cast<uint32_t>(tensor.type));
    put(out, offset);
    offset += tensor.data.size() + padding(tensor.data.size());
  }
  out.append(padding(out.size()), '\0');
  return out;
}

std::string Writer::bytes() const {
  std::string out = header();
  for (const Tensor& tensor : tensors_) {
    out += tensor.data;
    out.append(padding(tensor.data.size()), '\0');
  }
  return out;
}

base::Result<void> Writer::write(const std::string& path) const {
  std::string temporary = path + ".XXXXXX";
  const Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return io_error(temporary, "cannot be created");
  const auto write_file = [&]() -> base::Result<void> {
    TALLY_TRY_VOID(write_all(fd.get(), temporary, header()));
    const std::string zeros(kAlignmentDefault, '\0');
    for (const Tensor& tensor : tensors_) {
      TALLY_TRY_VOID(write_all(fd.get(), temporary, tensor.data));
      TALLY_TRY_VOID(
          write_all(fd.get(), temporary, std::string_view(zeros).substr(0, padding(tensor.data.size()))));
    }
    constexpr mode_t kMode = 0644;  // mkostemp made it private to the user
    if (fchmod(fd.get(), kMode) != 0) return io_error(temporary, "fchmod");
    if (fsync(fd.get()) != 0) return io_error(temporary, "fsync");
    if (rename(temporary.c_str(), path.c_str()) != 0) return io_error(path, "rename");
    return {};
  };
  base::Result<void> done = write_file();
  if (!done) unlink(temporary.c_str());
  return done;
}

}  // namespace tally::gguf
