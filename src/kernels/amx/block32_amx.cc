// Q4_0, Q4_1, Q5_1, Q8_0 (and Q5_0 in its unit) and IQ4_NL on AMX: block32_amx.h; the formats are those of
// the other tiers.

#define TALLY_LANES_VNNI
#include "kernels/lanes512.h"
// Over its Lanes:
#include "kernels/amx/block32_amx.h"
#include "kernels/iq4_nl/lanes.h"
#include "kernels/q4_0/lanes.h"
#include "kernels/q4_1/lanes.h"
#include "kernels/q5_1/lanes.h"
#include "kernels/q8_0/lanes.h"

namespace TALLY_KERNELS_TIER {

// The rows of fewer tokens.
void iq4_nl_avx512vnni(const LinearArgs& args);
void q4_0_avx512vnni(const LinearArgs& args);
void q4_1_avx512vnni(const LinearArgs& args);
void q5_1_avx512vnni(const LinearArgs& args);
void q8_0_avx512vnni(const LinearArgs& args);

void iq4_nl_amx(const LinearArgs& args) { run_block32_amx<Iq4NlLanes>(args, iq4_nl_avx512vnni); }
void q4_0_amx(const LinearArgs& args) { run_block32_amx<Q4_0Lanes>(args, q4_0_avx512vnni); }
void q4_1_amx(const LinearArgs& args) { run_block32_amx<Q4_1Lanes>(args, q4_1_avx512vnni); }
void q5_1_amx(const LinearArgs& args) { run_block32_amx<Q5_1Lanes>(args, q5_1_avx512vnni); }
void q8_0_amx(const LinearArgs& args) { run_block32_amx<Q8_0Lanes>(args, q8_0_avx512vnni); }

}  // namespace TALLY_KERNELS_TIER
