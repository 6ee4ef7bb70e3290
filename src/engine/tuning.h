#pragma once
// Start-up tuning of a loaded model, kept on disk between starts (private to the room).

#include "base/pool.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "model/model.h"

#include <string_view>
#include <vector>

namespace tally::engine {

// Nothing unless `request.on`. Uses the file if that was measured on such a machine and has the
// model's types; else measures, within 200 ms, and writes it. A file that cannot be read or written costs a
// measurement at each start, nothing else. Requires set_float_mode() on this thread and the pool's.
std::vector<Tuning> tune(const TuneRequest& request, std::string_view isa, model::Model& model,
                         base::ThreadPool& pool);

}  // namespace tally::engine
