#pragma once
// One tool call written as JSON, read byte by byte: {"name": …, "arguments": {…}}. Members come in any order;
// the arguments pass through as the model wrote them, as soon as the name is known.

#include <cstdint>
#include <string>
#include <string_view>

namespace tally::text {

// Finds the end of one JSON value. Of what stands inside it only strings and brackets are looked at.
class ValueScanner {
 public:
  // kDoneBefore: the value ended before this byte, which is not part of it. kBad: no JSON has it here.
  enum class Step : uint8_t { kMore, kDone, kDoneBefore, kBad };
  Step feed(char c);

 private:
  Step feed_string(char c);
  uint64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, is_scalar_ = false;
};

class CallScanner {
 public:
  // kDone: the byte was the last of the call. kBad: the byte is not taken, and is not part of it.
  enum class Step : uint8_t { kMore, kDone, kBad };

  // is_bare: no marker says that this is a call, so it has to look like one: name and arguments, and besides
  // them at most "type" and "id". After a marker other members are passed over, and a call without arguments
  // has {}. Once it has begun, whatever other members come are passed over, even a second name or arguments:
  // what was told cannot be taken back.
  explicit CallScanner(bool is_bare) : is_bare_(is_bare) {}
  // For formats that write the name in front of the object.
  static CallScanner of_arguments(std::string name);

  Step feed(char c);
  // The name is known and the arguments have begun: from here on it is a call.
  bool begun() const { return !name_.empty() && has_arguments_; }
  const std::string& name() const { return name_; }
  // Bytes of the arguments since the last call.
  std::string take_arguments();

 private:
  enum class Next : uint8_t { kObject, kKeyOrEnd, kKey, kColon, kValue, kCommaOrEnd, kNothing };
  enum class Member : uint8_t { kName, kArguments, kOther };

  Step feed_mark(char c);
  Step begin_value(char c);
  Step feed_value(char c);
  bool end_key();
  bool end_value();
  Step end_object();

  bool is_bare_;
  bool is_whole_ = true;  // the object around name and arguments is there
  Next next_ = Next::kObject;
  Member member_ = Member::kOther;
  ValueScanner value_;
  bool in_value_ = false, passes_ = false;  // passes_: its bytes are arguments as they are
  bool has_arguments_ = false;
  std::string held_;  // the key, or a string whose meaning is needed
  std::string name_, arguments_;
};

// What a JSON string, quotes included, stands for. Escapes that JSON does not have stand for themselves.
std::string json_unquoted(std::string_view quoted);

}  // namespace tally::text
