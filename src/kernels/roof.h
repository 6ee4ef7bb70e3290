#pragma once
// What this machine can do at most, to compare kernels with: loops that do one thing and nothing else.
//
// kRead: bytes of memory read a second, with 1 to 8 streams a thread, with and without prefetch; the best
// form counts. kInt8: the instruction of a tier that multiplies int8, on registers: two operations a product.
// For AVX2 and
//        AVX-512BW that is vpmaddubsw alone; kernels also need vpmaddwd, so its roof is out of reach there.
// kF32:  fused multiply-adds on registers, two operations each.
// Threads: a loop runs on the calling thread; to measure all cores, run it on all of them.

#include "kernels/isa.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tally::kernels {

enum class RoofKind : uint8_t { kRead, kInt8, kF32 };

struct RoofArgs {
  const std::byte* data = nullptr;  // kRead: 64-byte aligned, with kTailPadding readable bytes behind it
  size_t bytes = 0;                 // kRead: a multiple of 32 KiB
  uint64_t rounds = 0;              // kInt8, kF32
};

struct RoofLoop {
  Isa isa;
  RoofKind kind;
  std::string_view name;             // "vpdpbusd zmm"
  double work;                       // operations of a round; kRead: 1, for each byte
  uint64_t (*run)(const RoofArgs&);  // depends on everything that was done
};

// All of them, best tier first. Before one is run: host_has(loop.isa).
std::span<const RoofLoop> roof_loops();

}  // namespace tally::kernels
