// Q6_K: the definition. The walk is super_run_scalar, one block's arithmetic Q6KFormat::accumulate.

#include "kernels/q6k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void q6k_scalar(const LinearArgs& args) { super_run_scalar<Q6KFormat>(args); }

}  // namespace tally::kernels
