#pragma once
// The formats of formats.inc.

#include "kernels/block32/tile.h"
#include "kernels/iq4_nl/lanes.h"
#include "kernels/mxfp4/lanes.h"
#include "kernels/q4_0/lanes.h"
#include "kernels/q4_1/lanes.h"
#include "kernels/q5_0/lanes.h"
#include "kernels/q5_1/lanes.h"
#include "kernels/q8_0/lanes.h"
