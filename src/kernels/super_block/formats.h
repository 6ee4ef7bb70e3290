#pragma once
// Every format of formats.inc, for the one file a tier that instantiates them. Included behind lanes256.h or
// lanes512.h.

#include "kernels/iq4_xs/lanes.h"
#include "kernels/q2k/lanes.h"
#include "kernels/q3k/lanes.h"
#include "kernels/q4k/lanes.h"
#include "kernels/q5k/lanes.h"
#include "kernels/q6k/lanes.h"
#include "kernels/super_block/tile.h"
