#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

namespace tally::kernels {
namespace {

constexpr IsaInfo kIsas[] = {
    {Isa::kScalar, "scalar"},         {Isa::kAvx2, "avx2"},
    {Isa::kAvxVnni, "avxvnni"},       {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Vnni, "avx512vnni"}, {Isa::kAmx, "amx"},
};

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves r zero where the leaf is absent
  return r;
}

// The register state the kernel saves (XCR0). Requires OSXSAVE.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Linux hands out the 8 KiB of tile state only on request, once a process; threads inherit it.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Host {
  bool has[std::size(kIsas)] = {true};
};

Host detect() {
  Host host;
  const Registers basic = cpuid(1, 0), extended = cpuid(7, 0), more = cpuid(7, 1);
  constexpr uint32_t kFma = bit(12), kOsxsave = bit(27), kAvx = bit(28), kF16c = bit(29);
  constexpr uint32_t kNeeded = kFma | kOsxsave | kAvx | kF16c;
  if ((basic.ecx & kNeeded) != kNeeded) return host;
  const uint64_t saved = saved_state();
  const auto all = [](uint64_t value, uint64_t bits) { return (value & bits) == bits; };

  const bool avx2 = all(saved, 0x6) && all(extended.ebx, bit(5));
  const bool avx512 =
      avx2 && all(saved, 0xE6) && all(extended.ebx, bit(16) | bit(17) | bit(30) | bit(31));  // F DQ BW VL
  const bool vnni = avx512 && all(extended.ecx, bit(11) | bit(1));  // VNNI VBMI
  const bool amx =
      vnni && all(saved, 0x60000) && all(extended.edx, bit(24) | bit(25)) && request_amx();  // TILE INT8
  const auto set = [&](Isa isa, bool has) { host.has[static_cast<size_t>(isa)] = has; };
  set(Isa::kAvx2, avx2);
  set(Isa::kAvxVnni, avx2 && all(more.eax, bit(4)));
  set(Isa::kAvx512, avx512);
  set(Isa::kAvx512Vnni, vnni);
  set(Isa::kAmx, amx);
#ifdef TALLY_TIERS_ARE_EMULATED
  for (bool& has : host.has) has = avx2;
  set(Isa::kScalar, true);
#endif
  return host;
}

}  // namespace

std::span<const IsaInfo> isas() { return kIsas; }

std::string_view isa_name(Isa isa) { return kIsas[static_cast<size_t>(isa)].name; }

std::optional<Isa> find_isa(std::string_view name) {
  for (const IsaInfo& info : kIsas)
    if (info.name == name) return info.isa;
  return std::nullopt;
}

bool host_has(Isa isa) {
  static const Host host = detect();
  return host.has[static_cast<size_t>(isa)];
}

Isa best_isa() {
  Isa best = Isa::kScalar;
  for (const IsaInfo& info : kIsas)
    if (host_has(info.isa)) best = info.isa;
  return best;
}

std::string host_isas() {
  std::string names;
  for (const IsaInfo& info : kIsas) {
    if (!host_has(info.isa)) continue;
    if (!names.empty()) names += ' ';
    names += info.name;
  }
  return names;
}

void set_float_mode() {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
}

}  // namespace tally::kernels
