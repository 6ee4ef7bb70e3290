// Q5_K: the definition. The walk is super_run_scalar, one block's arithmetic Q5KFormat::accumulate.

#include "kernels/q5k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void q5k_scalar(const LinearArgs& args) { super_run_scalar<Q5KFormat>(args); }

}  // namespace tally::kernels
