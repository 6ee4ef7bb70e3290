#pragma once
// How many layers --weights stream reads in every pass, and what that takes. (Private to the room.)

#include "engine/plan_sizes.h"

#include <optional>
#include <string>

namespace tally::engine {

// As few as possible: beside the layers that stay there is room for the ring and for a pool that holds a
// sequence at full length, or, where nobody asked for a length, takes a quarter of what is left at most.
// All, where even that does not fit.
void choose_streamed(const LoadRequest& request, Sizes& sizes);

// With what the file's disk gives, read for a moment; nothing is known where it cannot be read.
std::optional<StreamOutlook> stream_outlook(const LoadRequest& request, const Sizes& sizes);

// For a refusal of what --weights memory cannot have: what --weights stream would do. Empty: it would not fit
// either.
std::string stream_offer(const LoadRequest& request);

}  // namespace tally::engine
