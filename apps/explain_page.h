#pragma once
// What `tally explain` prints for people.

#include "measure/explain.h"

#include <string>

namespace tally::apps {

// Lines of at most about `width` columns, without control codes.
std::string explain_page(const measure::Explanation& explanation, size_t width);

}  // namespace tally::apps
