#pragma once
// Where the code of the tiers above AVX2 stands. Their files (avxvnni.cc, avx512.cc, avx512vnni.cc, amx.cc)
// are compiled twice: for the CPU, and with TALLY_EMULATE for the tests of any host with AVX2, the
// instructions it lacks being emulated (intrin_vnni.h, intrin512.h, intrin_amx.h). They write `namespace
// TALLY_KERNELS_TIER {` instead of `namespace tally::kernels {`, which puts the emulated copy of each symbol
// in tally::kernels::emulated. The emulation has flags of AVX2 only: nothing in it can be faster than real.

#if !defined(TALLY_EMULATE) || defined(TALLY_TIERS_ARE_EMULATED)  // the latter: a whole program of such tiers
#define TALLY_KERNELS_TIER tally::kernels
#else
#define TALLY_KERNELS_TIER tally::kernels::emulated
#endif
