// Reading with what every x86-64 has, and the list of all loops.

#include "kernels/roof/loops.h"

#include <cstring>

namespace tally::kernels {
namespace {

constexpr RoofLoop kLoops[] = {
#define TALLY_ROOF(isa, kind, symbol, name, work) {Isa::isa, RoofKind::kind, name, work, symbol},
#include "kernels/roof/variants.inc"
#undef TALLY_ROOF
};

}  // namespace

std::span<const RoofLoop> roof_loops() { return kLoops; }

uint64_t roof_read_scalar(const RoofArgs& args) {
  uint64_t sum[4] = {};
  for (size_t i = 0; i < args.bytes; i += sizeof sum) {
    uint64_t words[4];
    std::memcpy(words, args.data + i, sizeof words);
    for (size_t j = 0; j < 4; ++j) sum[j] += words[j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

}  // namespace tally::kernels
