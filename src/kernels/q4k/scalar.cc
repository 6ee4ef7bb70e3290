// Q4_K: the definition. The walk is super_run_scalar, one block's arithmetic Q4KFormat::accumulate.

#include "kernels/q4k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void q4k_scalar(const LinearArgs& args) { super_run_scalar<Q4KFormat>(args); }

}  // namespace tally::kernels
