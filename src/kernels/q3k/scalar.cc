// Q3_K: the definition. The walk is super_run_scalar, one block's arithmetic Q3KFormat::accumulate.

#include "kernels/q3k/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void q3k_scalar(const LinearArgs& args) { super_run_scalar<Q3KFormat>(args); }

}  // namespace tally::kernels
