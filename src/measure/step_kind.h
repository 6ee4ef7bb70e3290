// What a step of the engine did.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tally::measure {

enum class StepKind : uint8_t { kPrefill, kDecode, kMixed };
inline constexpr std::array<std::string_view, 3> kStepKindNames{"prefill", "decode",
                                                                "mixed"};  // of /v1/steps
inline constexpr size_t kStepKinds = kStepKindNames.size();

// Rows computed again after a preemption are rows of a prompt.
constexpr StepKind step_kind(bool has_prompt_rows, bool has_decode_rows) {
  if (!has_decode_rows) return StepKind::kPrefill;
  return has_prompt_rows ? StepKind::kMixed : StepKind::kDecode;
}

}  // namespace tally::measure
