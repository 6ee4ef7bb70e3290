#pragma once
// Runs the attend stage of a layer: attend_plan.h says what its items are (private to the room).

#include "model/attend_plan.h"

#include <cstddef>

namespace tally::model {

struct Instruction;
struct Program;
struct StepContext;

// Floats of states that a step may keep at a time.
size_t attend_states_max(const Program& program, const StepLimits& limits, size_t threads);
// Bytes a worker needs beside its kernel's scratch: the queries of a share for one KV head.
size_t shared_query_bytes(const Program& program);

// The call for a tile and a KV head, without scratch.
kernels::AttendArgs attend_args(const Program& program, const StepContext& step, const Instruction& in,
                                const AttendTile& tile, size_t head);

// Prepares the scratch's plan for the layer of an attend instruction. Returns the items of its stage.
size_t begin_attend(const Program& program, const StepContext& step, const Instruction& in);
void attend_item(const Program& program, const StepContext& step, const Instruction& in, size_t item,
                 size_t worker);

}  // namespace tally::model
