#pragma once
// One rendering's budgets, and the makers of its values.

#include "text/chat.h"
#include "text/jinja/value.h"

#include <string>
#include <string_view>
#include <vector>

namespace tally::text::jinja {

// Python's sandbox has the same bound on range().
inline constexpr int64_t kRangeMax = 100'000;

class Runtime {
 public:
  Runtime(const TemplateLimits& limits, int64_t now_s);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const TemplateLimits& limits() const { return limits_; }
  int64_t now_s() const { return now_s_; }
  Meter& meter() { return meter_; }
  Heap& heap() { return heap_; }

  // Each is charged on the heap. Errors: Fault naming the budget, or the depth of a container.
  Val string(Str text);
  Val string(std::string_view text, bool trusted) { return string(Str(text, trusted)); }
  Val list(ValList items, bool tuple = false);
  // A key that comes again replaces the value. Errors: a key that is not a string, number or none.
  Val dict(Pairs items);
  Val make_namespace();
  // `why` is the error of whoever uses it.
  Val undefined(std::string why);
  // Any other object: charges `bytes` and checks the depth.
  void adopt(Obj& obj, size_t bytes, uint32_t depth);

  // A caller's value; every string, number and boolean in it is untrusted.
  Val from_input(const Value& value, uint32_t depth = 1);

 private:
  TemplateLimits limits_;
  int64_t now_s_;
  Meter meter_;
  Heap heap_;
  std::vector<std::shared_ptr<NamespaceObj>> namespaces_;
};

// A string in the making, charged as it grows.
class Builder {
 public:
  // The output of the template is bounded by its own budget, any other string by that of live bytes.
  enum class Into : uint8_t { kValue, kOutput };
  explicit Builder(Runtime& runtime, Into into = Into::kValue);

  void append(std::string_view bytes, bool trusted);
  void append(const Str& text, size_t from = 0, size_t to = std::string::npos);
  const Str& text() const { return text_; }
  Val finish();

 private:
  Runtime& runtime_;
  bool is_output_;
  size_t bytes_max_;
  size_t unmetered_ = 0;  // bytes not yet counted as steps
  Charge charge_;
  Str text_;
};

// Fails with the reason `v` carries, if it is undefined.
void require_defined(const Val& v);
// The integer in `v` (a boolean counts), or a Fault that names `what`.
int64_t to_integer(const Val& v, std::string_view what);

}  // namespace tally::text::jinja
