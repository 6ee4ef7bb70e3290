#include "model/quantize.h"

#include "base/utf8.h"
#include "gguf/writer.h"
#include "model/quantize_mix.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using tensor::DType;
using Mix = QuantizeType::Mix;

constexpr QuantizeType kTypes[] = {
    {"F32", 0, DType::kF32, Mix::kPlain},      {"F16", 1, DType::kF16, Mix::kPlain},
    {"BF16", 32, DType::kBF16, Mix::kPlain},   {"Q8_0", 7, DType::kQ8_0, Mix::kPlain},
    {"Q4_0", 2, DType::kQ4_0, Mix::kPlain},    {"Q4_1", 3, DType::kQ4_1, Mix::kPlain},
    {"Q5_0", 8, DType::kQ5_0, Mix::kPlain},    {"Q5_1", 9, DType::kQ5_1, Mix::kPlain},
    {"Q4_K_S", 14, DType::kQ4_K, Mix::kSmall}, {"Q4_K_M", 15, DType::kQ4_K, Mix::kMedium},
    {"Q5_K_S", 16, DType::kQ5_K, Mix::kSmall}, {"Q5_K_M", 17, DType::kQ5_K, Mix::kMedium},
    {"Q6_K", 18, DType::kQ6_K, Mix::kPlain},
};

constexpr uint32_t kQuantizationVersion = 2;  // of all current block formats
// A tensor is cut into pieces without regard to its rows: every block lies in one piece, since the size of a
// piece is a multiple of every block's.
constexpr uint64_t kPieceElements = 65536;
constexpr size_t kPiecesPerThread = 4;  // between two writes

std::string_view name_of(DType type) { return tensor::dtype_info(type).name; }
bool is_float(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

// What happens to one tensor.
struct Step {
  const gguf::TensorInfo* tensor = nullptr;
  DType to = DType::kF32;
  const kernels::LinearFormat* decode = nullptr;  // both null: the bytes are copied
  const kernels::LinearFormat* encode = nullptr;
};

Error bad_tensor(const gguf::File& in, const gguf::TensorInfo& tensor, std::string_view what) {
  return {ErrorCode::kBadData, fmt::format("{}: tensor '{}': {}", base::escape_for_log(in.path()),
                                           base::escape_for_log(tensor.name), what)};
}

Result<std::vector<Step>> plan_steps(const gguf::File& in, const kernels::KernelTable& kernels,
                                     const QuantizeOptions& options) {
  const MixContext context = mix_context(in.tensors());
  std::vector<Step> steps;
  for (const gguf::TensorInfo& tensor : in.tensors()) {
    Step step{.tensor = &tensor, .to = tensor.type};
    if (!stays_float(tensor)) {
      step.to = mixed_type(*options.type, tensor, context);
    } else if (is_float(tensor.type)) {
      step.to = DType::kF32;
    }
    if (step.to != tensor.type) {
      if (!is_float(tensor.type) && !options.allow_requantize) {
        return bad_tensor(
            in, tensor,
            fmt::format("is {} already; F32, F16 and BF16 are quantized to {}, others lose twice and need "
                        "--allow-requantize",
                        name_of(tensor.type), options.type->name));
      }
      step.decode = kernels.find_linear(tensor.type), step.encode = kernels.find_linear(step.to);
      if (step.decode == nullptr)
        return bad_tensor(in, tensor, fmt::format("type {} cannot be read as numbers", name_of(tensor.type)));
      TALLY_CHECK(step.encode != nullptr && step.encode->encode != nullptr,
                  "no encoder for a type of the mix", static_cast<uint32_t>(step.to));
    }
    steps.push_back(step);
  }
  return steps;
}

// True if `path` is one of the files that `in` is read from.
bool is_input(const gguf::File& in, const std::string& path) {
  struct stat out{};
  if (stat(path.c_str(), &out) != 0) return false;
  const auto same = [&](const std::string& name) {
    struct stat status{};
    return stat(name.c_str(), &status) == 0 && status.st_dev == out.st_dev && status.st_ino == out.st_ino;
  };
  if (same(in.path())) return true;
  const auto shards = in.get_uint("split.count", 0, UINT16_MAX);
  const uint64_t count = shards ? shards->value_or(1) : 1;
  const auto suffix = [&](uint64_t i) { return fmt::format("-{:05}-of-{:05}.gguf", i, count); };
  if (!in.path().ends_with(suffix(1))) return false;
  const std::string prefix = in.path().substr(0, in.path().size() - suffix(1).size());
  for (uint64_t i = 2; i <= count; ++i)
    if (same(prefix + suffix(i))) return true;
  return false;
}

Result<gguf::Writer> write_header(const gguf::File& in, const std::vector<Step>& steps, uint32_t file_type) {
  gguf::Writer out;
  constexpr uint64_t kAlignment = 32, kAlignmentMax = uint64_t{1} << 20;
  TALLY_TRY(const auto alignment, in.get_uint("general.alignment", 1, kAlignmentMax));
  out.set_alignment(alignment.value_or(kAlignment));
  const std::pair<std::string_view, uint32_t> ours[] = {
      {"general.file_type", file_type}, {"general.quantization_version", kQuantizationVersion}};
  for (const gguf::Metadata& item : in.metadata()) {
    if (item.key == "split.no" || item.key == "split.count" || item.key == "split.tensors.count") continue;
    const auto* set =
        std::find_if(std::begin(ours), std::end(ours), [&](const auto& o) { return o.first == item.key; });
    if (set != std::end(ours)) {
      out.set_uint(set->first, set->second);
    } else {
      out.set_value(item.key, item.value);
    }
  }
  for (const auto& [key, value] : ours)
    if (in.find(key) == nullptr) out.set_uint(key, value);
  for (const Step& step : steps) out.declare_tensor(step.tensor->name, step.to, step.tensor->shape);
  return out;
}

// One piece of a tensor on its way from file to file.
struct Slot {
  uint64_t begin = 0, count = 0;  // elements
  std::vector<std::byte> out;
  double squares = 0, error_squares = 0, error_max = 0;
  std::optional<Error> failed;
};

// What a thread needs for the piece at hand.
struct Bench {
  std::vector<std::byte> in;
  std::vector<float> values, again;
};

class Quantizer {
 public:
  Quantizer(const gguf::File& in, const QuantizeOptions& options, base::ThreadPool& pool)
      : in_(in),
        options_(options),
        pool_(pool),
        benches_(pool.threads()),
        slots_(pool.threads() * kPiecesPerThread) {
    for (const gguf::TensorInfo& tensor : in.tensors()) total_ += tensor.bytes;
  }

  Result<QuantizedTensor> run(const Step& step, gguf::StreamedFile& out) {
    const gguf::TensorInfo& tensor = *step.tensor;
    QuantizedTensor report{std::string(tensor.name), tensor.type,  step.to,
                           tensor.shape.elements(),  tensor.bytes, 0};
    double squares = 0, error_squares = 0;
    for (uint64_t begin = 0; begin < report.elements;) {
      size_t n = 0;
      for (; n < slots_.size() && begin < report.elements; ++n) {
        slots_[n].begin = begin, slots_[n].count = std::min(kPieceElements, report.elements - begin);
        begin += slots_[n].count;
      }
      pool_.parallel_for(n, [&](size_t i, size_t worker) { run_piece(step, slots_[i], benches_[worker]); });
      for (size_t i = 0; i < n; ++i) {
        const Slot& slot = slots_[i];
        if (slot.failed) return *slot.failed;
        TALLY_TRY_VOID(out.append(slot.out));
        squares += slot.squares, error_squares += slot.error_squares;
        report.max_error = std::max(report.max_error, slot.error_max);
        report.bytes_after += slot.out.size();
        done_ += tensor::row_bytes(tensor.type, slot.count);
      }
      if (options_.progress && !options_.progress(done_, total_))
        return Error{ErrorCode::kUnavailable, "quantizing was interrupted; nothing was written"};
    }
    if (squares > 0) report.relative_rms = std::sqrt(error_squares / squares);
    return report;
  }

 private:
  void run_piece(const Step& step, Slot& slot, Bench& bench) const {
    const gguf::TensorInfo& tensor = *step.tensor;
    slot.failed.reset();
    slot.squares = slot.error_squares = slot.error_max = 0;
    std::vector<std::byte>& source = step.encode == nullptr ? slot.out : bench.in;
    source.resize(tensor::row_bytes(tensor.type, slot.count));
    const auto read = in_.read_tensor(tensor, tensor::row_bytes(tensor.type, slot.begin), source);
    if (!read) {
      slot.failed = read.error();
      return;
    }
    if (step.encode == nullptr) return;
    bench.values.resize(slot.count);
    step.decode->dequantize(source.data(), slot.count, bench.values.data());
    slot.out.resize(tensor::row_bytes(step.to, slot.count));
    if (!step.encode->encode(bench.values.data(), slot.count, slot.out.data())) {
      slot.failed = explain(step, slot, bench.values);
    } else if (options_.measure) {
      bench.again.resize(slot.count);
      step.encode->dequantize(slot.out.data(), slot.count, bench.again.data());
      measure(bench, slot);
    }
  }

  static void measure(const Bench& bench, Slot& slot) {
    for (size_t i = 0; i < slot.count; ++i) {
      const double x = bench.values[i], off = std::fabs(x - bench.again[i]);
      slot.squares += x * x, slot.error_squares += off * off;
      slot.error_max = std::max(slot.error_max, off);
    }
  }

  // Which value of the piece could not be encoded.
  Error explain(const Step& step, const Slot& slot, const std::vector<float>& values) const {
    const size_t block = tensor::dtype_info(step.to).block_elements;
    std::vector<std::byte> scratch(tensor::dtype_info(step.to).block_bytes);
    size_t at = 0;
    while (at + block < values.size() && step.encode->encode(values.data() + at, block, scratch.data()))
      at += block;
    size_t worst = at;
    for (size_t i = at; i < at + block; ++i) {
      if (!std::isfinite(values[i])) {
        worst = i;
        break;
      }
      if (std::fabs(values[i]) > std::fabs(values[worst])) worst = i;
    }
    const uint64_t element = slot.begin + worst, columns = step.tensor->shape.dim[0];
    const std::string why = std::isfinite(values[worst])
                                ? fmt::format("is beyond what {} can hold", name_of(step.to))
                                : "is not a finite number, as weights must be";
    return bad_tensor(in_, *step.tensor,
                      fmt::format("row {} column {}: the value {:g} {}", element / columns, element % columns,
                                  values[worst], why));
  }

  const gguf::File& in_;
  const QuantizeOptions& options_;
  base::ThreadPool& pool_;
  std::vector<Bench> benches_;  // one a thread
  std::vector<Slot> slots_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

std::span<const QuantizeType> quantize_types() { return kTypes; }

const QuantizeType* find_quantize_type(std::string_view name) {
  const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; };
  for (const QuantizeType& type : kTypes) {
    if (std::equal(name.begin(), name.end(), type.name.begin(), type.name.end(),
                   [&](char a, char b) { return upper(a) == b; }))
      return &type;
  }
  return nullptr;
}

Result<QuantizeReport> quantize(const gguf::File& in, const std::string& out_path,
                                const kernels::KernelTable& kernels, const QuantizeOptions& options,
                                base::ThreadPool& pool) {
  TALLY_CHECK(options.type != nullptr, "quantize without a type");
  if (is_input(in, out_path)) {
    return Error{ErrorCode::kConfig, fmt::format("{}: is the input itself; the output needs another name",
                                                 base::escape_for_log(out_path))};
  }
  TALLY_TRY(const std::vector<Step> steps, plan_steps(in, kernels, options));
  TALLY_TRY(const gguf::Writer header, write_header(in, steps, options.type->file_type));
  TALLY_TRY(gguf::StreamedFile out, header.stream(out_path));
  Quantizer quantizer(in, options, pool);
  QuantizeReport report;
  uint64_t elements = 0, bytes = 0;
  for (const Step& step : steps) {
    TALLY_TRY(QuantizedTensor done, quantizer.run(step, out));
    elements += done.elements, bytes += done.bytes_after;
    report.tensors.push_back(std::move(done));
  }
  TALLY_TRY_VOID(in.check_unchanged());
  TALLY_TRY_VOID(out.finish());
  report.bytes_before = in.file_bytes(), report.bytes_after = out.file_bytes();
  if (elements > 0) report.bits_per_weight = 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
  return report;
}

}  // namespace tally::model
