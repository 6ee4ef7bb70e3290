// Q2_K: the definition. The walk is super_run_scalar, one block's arithmetic Q2KFormat::accumulate.

#include "kernels/q2k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void q2k_scalar(const LinearArgs& args) { super_run_scalar<Q2KFormat>(args); }

}  // namespace tally::kernels
