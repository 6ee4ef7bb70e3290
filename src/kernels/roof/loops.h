#pragma once
// The loops of variants.inc. Private to the room.

#include "kernels/roof.h"

namespace tally::kernels {

#define TALLY_ROOF(isa, kind, symbol, name, work) uint64_t symbol(const RoofArgs& args);
#include "kernels/roof/variants.inc"
#undef TALLY_ROOF

}  // namespace tally::kernels
