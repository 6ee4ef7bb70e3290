// IQ4_XS: the definition. The walk is super_run_scalar, one block's arithmetic Iq4XsFormat::accumulate.

#include "kernels/iq4_xs/codes.h"
#include "kernels/super_block/super_block.h"

namespace tally::kernels {

void iq4_xs_scalar(const LinearArgs& args) { super_run_scalar<Iq4XsFormat>(args); }

}  // namespace tally::kernels
