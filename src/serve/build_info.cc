#include "serve/build_info.h"

#include "base/check.h"

#include <elf.h>
#include <link.h>
#include <sys/random.h>

#include <array>
#include <cstring>
#include <span>

namespace tally::serve {
namespace {

std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (unsigned char b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

// Looks through the notes of the first object, which is the program itself.
int find_build_id(dl_phdr_info* info, size_t, void* out) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);
    const auto* end = at + segment.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const auto* name = at + sizeof note;
      const auto* value = name + ((note.n_namesz + 3u) & ~3u);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        *static_cast<std::string*>(out) = to_hex({value, note.n_descsz});
        return 1;
      }
      at = value + ((note.n_descsz + 3u) & ~3u);
    }
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  dl_iterate_phdr(find_build_id, &id);
  return id.empty() ? "unknown" : id;
}

std::string_view compiler() { return "gcc-compatible " __VERSION__; }

std::string random_hex(size_t bytes) {
  std::array<unsigned char, 64> random{};
  TALLY_CHECK(bytes <= random.size() && ::getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes),
              "no random bytes", bytes);
  return to_hex({random.data(), bytes});
}

std::string random_letters(size_t count) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr size_t kFair = 256 / kLetters.size() * kLetters.size();
  std::string out;
  while (out.size() < count) {
    std::array<unsigned char, 64> random{};
    TALLY_CHECK(::getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size()),
                "no random bytes");
    for (const unsigned char b : random)
      if (b < kFair && out.size() < count) out += kLetters[b % kLetters.size()];
  }
  return out;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  TALLY_CHECK(::getrandom(&bits, sizeof bits, 0) == sizeof bits, "no random bytes");
  return bits;
}

}  // namespace tally::serve
