#pragma once
// The world is wrong: a value or an error that says what to do. Same member names as std::expected (C++23),
// so that a later swap is a `using`.

#include "base/check.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tally::base {

// Values are the exit codes of the commands (sysexits).
enum class ErrorCode : int {
  kUsage = 64,        // one value wrong by itself
  kBadData = 65,      // model or input data
  kNoInput = 66,      // cannot be read
  kUnavailable = 69,  // does not fit in memory, or port taken
  kInternal = 70,
  kIo = 74,
  kConfig = 78,  // values each legal but impossible together or on this machine
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one line that names the thing, the value and what is allowed
};

// Holds a T or an Error. `Result<void>` holds nothing or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Requires has_value().
  T& value() & {
    TALLY_CHECK(has_value(), "Result::value on an error");
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    TALLY_CHECK(has_value(), "Result::value on an error");
    return *std::get_if<0>(&state_);
  }
  T&& value() && { return std::move(value()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires !has_value().
  const Error& error() const& {
    TALLY_CHECK(!has_value(), "Result::error on a value");
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    TALLY_CHECK(!has_value(), "Result::error on a value");
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  const Error& error() const& {
    TALLY_CHECK(error_.has_value(), "Result::error on a value");
    return *error_;
  }
  Error&& error() && {
    TALLY_CHECK(error_.has_value(), "Result::error on a value");
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace tally::base

// TALLY_TRY(auto x, f()): x = the value, or return the error from the enclosing function.
#define TALLY_TRY_CAT2(a, b) a##b
#define TALLY_TRY_CAT(a, b) TALLY_TRY_CAT2(a, b)
#define TALLY_TRY(lhs, expr)                                                                               \
  auto TALLY_TRY_CAT(tally_try_, __LINE__) = (expr);                                                       \
  if (!TALLY_TRY_CAT(tally_try_, __LINE__)) return std::move(TALLY_TRY_CAT(tally_try_, __LINE__)).error(); \
  lhs = std::move(TALLY_TRY_CAT(tally_try_, __LINE__)).value()

// TALLY_TRY_VOID(f()): go on, or return the error from the enclosing function.
#define TALLY_TRY_VOID(expr)                                                                   \
  if (auto TALLY_TRY_CAT(tally_try_, __LINE__) = (expr); !TALLY_TRY_CAT(tally_try_, __LINE__)) \
  return std::move(TALLY_TRY_CAT(tally_try_, __LINE__)).error()
