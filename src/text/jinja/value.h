#pragma once
// Values while a template runs. Lists and mappings are immutable; only a namespace can change.
// Owns: objects are reference-counted. A reference cycle needs a namespace, and the runtime empties every
// namespace at the end, so nothing leaks. Each object knows how deep it nests; the limit bounds every
// recursion over values, destruction included.

#include "text/jinja/str.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tally::text::jinja {

// Why a template cannot be parsed or run. Thrown inside this folder only; text/chat.cc turns it into a
// base::Error.
struct Fault {
  std::string message;
  uint32_t line = 0;         // 0: not known yet
  bool from_author = false;  // the template called raise_exception: the message is all there is to say
  uint32_t column = 0;       // of the line, in characters; 0: not known
};
[[noreturn]] void fail(std::string message);

// The steps and the time of one rendering.
class Meter {
 public:
  Meter(uint64_t steps_max, uint32_t time_max_ms);
  // Called for every node that runs and every value that is looked at. Errors: Fault naming the budget.
  void step(uint64_t n = 1) {
    steps_ += n;
    if (steps_ >= look_at_) look();
  }
  // Work on text: a step for every 256 bytes.
  void text(size_t bytes) { step(1 + bytes / 256); }
  // A search, which may look at each place of the text for as long as `what` is.
  void search(size_t text_bytes, size_t what_bytes) { step(1 + text_bytes / 256 * (1 + what_bytes / 64)); }

 private:
  void look();

  uint64_t steps_ = 0, steps_max_;
  uint64_t look_at_;  // next time to look at the clock
  int64_t deadline_us_;
  uint32_t time_max_ms_;
};

// The bytes of all live objects of one rendering.
class Heap {
 public:
  explicit Heap(size_t bytes_max) : bytes_max_(bytes_max) {}
  // Errors: Fault naming the budget.
  void take(size_t bytes);
  // Fails as take would, but takes nothing: asked before something large is built.
  void ask(size_t bytes) const;
  void give_back(size_t bytes) { live_ -= bytes; }
  size_t live_bytes() const { return live_; }

 private:
  size_t live_ = 0;
  size_t bytes_max_;
};

// A charge on the heap, given back at the end of its life.
class Charge {
 public:
  Charge() = default;
  Charge(Heap& heap, size_t bytes) : heap_(&heap) { add(bytes); }
  Charge(Charge&& other) noexcept : heap_(other.heap_), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (heap_ != nullptr) heap_->give_back(bytes_);
  }
  void add(size_t bytes) {
    heap_->take(bytes);
    bytes_ += bytes;
  }

 private:
  Heap* heap_ = nullptr;
  size_t bytes_ = 0;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,  // a tuple too
  kDict,
  kNamespace,
  kMacro,
  kLoop,
  kMethod,    // bound to its object
  kFunction,  // of the global table
};

struct Obj {
  virtual ~Obj() = default;
  uint32_t depth = 0;  // longest chain of objects below this one
  Charge charge;
};

struct StrObj;
struct ListObj;
struct DictObj;
struct NamespaceObj;

struct Val {
  Kind kind = Kind::kUndefined;
  bool trusted = true;  // a string carries its own; a container is trusted if all it holds is
  union {
    bool b;
    int64_t i = 0;
    double f;
  };
  std::shared_ptr<Obj> obj;

  static Val undefined() { return Val(); }
  static Val none() { return Val(Kind::kNone); }
  static Val boolean(bool v, bool is_trusted = true);
  static Val integer(int64_t v, bool is_trusted = true);
  static Val real(double v, bool is_trusted = true);

  Val() = default;
  explicit Val(Kind k) : kind(k) {}
  Val(Kind k, std::shared_ptr<Obj> o) : kind(k), obj(std::move(o)) {}

  bool is(Kind k) const { return kind == k; }
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat || kind == Kind::kBool; }

  // Require the kind.
  const Str& str() const;
  const ListObj& list() const;
  const DictObj& dict() const;
  NamespaceObj& ns() const;
};

using ValList = std::vector<Val>;
using Pairs = std::vector<std::pair<Val, Val>>;

struct StrObj : Obj {
  Str text;
};

struct ListObj : Obj {
  ValList items;
  bool tuple = false;
};

struct DictObj : Obj {
  Pairs items;                                           // keys are unique, in order of first insertion
  std::unordered_map<std::string_view, size_t> strings;  // index of string keys; views into the keys

  std::optional<size_t> index_of(const Val& key) const;
  const Val* find(std::string_view key) const;
  const Val* find(const Val& key) const;
};

struct NamespaceObj : Obj {
  std::vector<std::pair<std::string, Val>> attributes;
  Val* find(std::string_view name);
};

// `loop` of a for statement. Prev and next are read from the list.
struct LoopObj : Obj {
  std::shared_ptr<Obj> items;  // a ListObj
  size_t index = 0;
  uint32_t level = 0;  // of nested recursive loops: always 0 here
};

bool truth(const Val& v);
// As Python: "str", "NoneType", "list" ...
std::string_view type_name(const Val& v);
// True if no byte that would be printed came from outside the template.
bool all_trusted(const Val& v);
// Python's ==: 1 == 1.0 == True; mappings whatever their order. Values that share parts can be exponentially
// large to walk: the meter counts.
bool equals(Meter& meter, const Val& a, const Val& b);
// Negative, zero, positive. Errors: kinds that have no order.
int compare(Meter& meter, const Val& a, const Val& b);
uint32_t depth_of(const Val& v);

}  // namespace tally::text::jinja
