#pragma once
// From resolved settings to the server's own: keys, limits, the safety rule of a non-loopback address.

#include "base/result.h"
#include "base/settings.h"
#include "serve/server.h"

#include <string>

namespace tally::apps {

// `key_variable` is the value of TALLY_API_KEY or null. Errors: kConfig (a key file others can read or that
// is malformed; a non-loopback address without a key), kNoInput.
base::Result<serve::Settings> server_settings(const base::Settings& settings, const std::string& model_path,
                                              const char* key_variable);

// Of this machine, as another command measured and kept them; zeros where none did.
engine::StepRoofs known_step_roofs(const base::Settings& settings, uint32_t threads,
                                   std::string_view weight_type);

}  // namespace tally::apps
