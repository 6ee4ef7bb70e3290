#include "gguf/writer.h"

#include "base/utf8.h"
#include "gguf/file_state.h"
#include "gguf/value.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

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

template <class T>
void put_as(std::string& out, auto value) {
  put(out, static_cast<T>(value));
}

// A number in the width its type id says: the getters see it widened.
void put_scalar(std::string& out, ValueType type, const Value& value) {
  const auto narrow = [&](auto v) {
    if constexpr (std::is_arithmetic_v<decltype(v)>) {
      switch (type) {
        case ValueType::kU8:
        case ValueType::kBool:
          return put_as<uint8_t>(out, v);
        case ValueType::kI8:
          return put_as<int8_t>(out, v);
        case ValueType::kU16:
          return put_as<uint16_t>(out, v);
        case ValueType::kI16:
          return put_as<int16_t>(out, v);
        case ValueType::kU32:
          return put_as<uint32_t>(out, v);
        case ValueType::kI32:
          return put_as<int32_t>(out, v);
        case ValueType::kF32:
          return put_as<float>(out, v);
        case ValueType::kU64:
          return put_as<uint64_t>(out, v);
        case ValueType::kI64:
          return put_as<int64_t>(out, v);
        case ValueType::kF64:
          return put_as<double>(out, v);
        case ValueType::kString:
        case ValueType::kArray:
          break;
      }
    }
    TALLY_UNREACHABLE("a value of another type than its id says");
  };
  std::visit(narrow, value.data);
}

// Where the file will lie must be free or hold a file that may be replaced.
base::Result<void> check_place(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return base::Error{
      base::ErrorCode::kIo,
      fmt::format("{}: exists and is not a regular file, so it is not replaced", base::escape_for_log(path))};
}

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

void Writer::set_value(std::string_view key, const Value& value) {
  const auto type = static_cast<ValueType>(value.type);
  ++metadata_count_;
  if (type == ValueType::kString) {
    put_key(metadata_, key, type);
    return put_string(metadata_, std::get<std::string_view>(value.data));
  }
  if (type == ValueType::kArray) {
    const Array& array = std::get<Array>(value.data);
    put_array(metadata_, key, static_cast<ValueType>(array.element_type), array.count);
    metadata_ += array.bytes;
    for (const std::string_view text : array.strings) put_string(metadata_, text);
    return;
  }
  put_key(metadata_, key, type);
  put_scalar(metadata_, type, value);
}

void Writer::set_alignment(uint64_t alignment) {
  TALLY_CHECK(std::has_single_bit(alignment) && alignment <= kAlignmentMax, "alignment", alignment);
  alignment_ = alignment;
}

void Writer::add(std::string_view name, tensor::DType type, const tensor::Shape& shape) {
  const size_t rows = shape.dim[1] * shape.dim[2] * shape.dim[3];
  tensors_.push_back({std::string(name), type, shape, tensor::row_bytes(type, shape.dim[0]) * rows, ""});
}

void Writer::add_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape,
                        std::span<const std::byte> data) {
  add(name, type, shape);
  TALLY_CHECK(data.size() == tensors_.back().bytes, "tensor data of another size", data.size());
  tensors_.back().data.assign(reinterpret_cast<const char*>(data.data()), data.size());
}

void Writer::declare_tensor(std::string_view name, tensor::DType type, const tensor::Shape& shape) {
  add(name, type, shape);
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
    offset += tensor.bytes + padding(tensor.bytes);
  }
  out.append(padding(out.size()), '\0');
  return out;
}

uint64_t Writer::data_bytes() const {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += tensor.bytes + padding(tensor.bytes);
  return bytes;
}

std::string Writer::bytes() const {
  std::string out = header();
  for (const Tensor& tensor : tensors_) {
    TALLY_CHECK(tensor.data.size() == tensor.bytes, "a declared tensor has no data to write", tensor.bytes);
    out += tensor.data;
    out.append(padding(tensor.bytes), '\0');
  }
  return out;
}

base::Result<void> Writer::write(const std::string& path) const {
  TALLY_TRY(StreamedFile file, stream(path));
  for (const Tensor& tensor : tensors_) TALLY_TRY_VOID(file.append(std::as_bytes(std::span(tensor.data))));
  return file.finish();
}

// ---- StreamedFile
// ------------------------------------------------------------------------------------------------------------

struct StreamedFile::State {
  std::string path, temporary;
  Fd fd;
  std::vector<std::pair<uint64_t, size_t>> tensors;  // bytes, padding
  size_t current = 0;
  uint64_t done = 0;  // bytes of the current tensor
  uint64_t written = 0;
  bool renamed = false;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (fd.get() >= 0 && !renamed) unlink(temporary.c_str());
  }

  base::Result<void> put(std::string_view bytes) {
    TALLY_TRY_VOID(write_all(fd.get(), path, bytes));
    written += bytes.size();
    return {};
  }
  // Pads behind tensors that have all their data; empty ones have it at once.
  base::Result<void> advance() {
    while (current < tensors.size() && done == tensors[current].first) {
      TALLY_TRY_VOID(put(std::string(tensors[current].second, '\0')));
      ++current, done = 0;
    }
    return {};
  }
};

StreamedFile::StreamedFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
StreamedFile::StreamedFile(StreamedFile&&) noexcept = default;
StreamedFile& StreamedFile::operator=(StreamedFile&&) noexcept = default;
StreamedFile::~StreamedFile() = default;

uint64_t StreamedFile::file_bytes() const { return state_->written; }

base::Result<StreamedFile> Writer::stream(const std::string& path) const {
  TALLY_TRY_VOID(check_place(path));
  auto state = std::make_unique<StreamedFile::State>();
  state->path = path;
  state->temporary = path + ".XXXXXX";
  state->fd = Fd(mkostemp(state->temporary.data(), O_CLOEXEC));
  if (state->fd.get() < 0) return io_error(path, "cannot be created");
  for (const Tensor& tensor : tensors_) state->tensors.emplace_back(tensor.bytes, padding(tensor.bytes));
  TALLY_TRY_VOID(state->put(header()));
  TALLY_TRY_VOID(state->advance());
  return StreamedFile(std::move(state));
}

base::Result<void> StreamedFile::append(std::span<const std::byte> data) {
  State& s = *state_;
  if (data.empty()) return {};
  TALLY_CHECK(s.current < s.tensors.size() && data.size() <= s.tensors[s.current].first - s.done,
              "more data than the tensor has", data.size());
  TALLY_TRY_VOID(s.put({reinterpret_cast<const char*>(data.data()), data.size()}));
  s.done += data.size();
  return s.advance();
}

base::Result<void> StreamedFile::finish() {
  State& s = *state_;
  TALLY_CHECK(s.current == s.tensors.size(), "a tensor is not complete", s.current, s.done);
  constexpr mode_t kMode = 0644;  // mkostemp made it private to the user
  if (fchmod(s.fd.get(), kMode) != 0) return io_error(s.path, "fchmod");
  if (fsync(s.fd.get()) != 0) return io_error(s.path, "fsync");
  if (rename(s.temporary.c_str(), s.path.c_str()) != 0) return io_error(s.path, "rename");
  s.renamed = true;
  // The name is on the disk once the directory is; some file systems cannot say.
  const size_t slash = s.path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : s.path.substr(0, slash + 1);
  const Fd directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) (void)fsync(directory.get());
  return {};
}

}  // namespace tally::gguf
