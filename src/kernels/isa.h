#pragma once
// The ISA ladder and what this host has: the only place that asks the CPU.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tally::kernels {

// Ascending: a tier asked for without a kernel of a family takes the next lower one of that family.
enum class Isa : uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx };

struct IsaInfo {
  Isa isa;
  std::string_view name;  // the value of --isa
};
std::span<const IsaInfo> isas();
std::string_view isa_name(Isa isa);
std::optional<Isa> find_isa(std::string_view name);

// True if the CPU and the kernel (XCR0, AMX permission) allow every instruction of the tier.
bool host_has(Isa isa);
Isa best_isa();
// "scalar avx2 avx512vnni", for messages.
std::string host_isas();

// Sets flush-to-zero and denormals-are-zero on the calling thread: every thread that computes does this first (Law 1).
void set_float_mode();

}  // namespace tally::kernels
