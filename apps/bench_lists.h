#pragma once
// Settings of the benches that are lists: "--batch 1,8,32".

#include "base/result.h"
#include "base/settings.h"
#include "kernels/isa.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

// The numbers of a kList row, each within the row's range, in the order given; empty where the setting is.
// `command` is the row's. Errors: kUsage naming the flag, the value and what is allowed.
base::Result<std::vector<uint32_t>> number_list(const base::Settings& settings, std::string_view command,
                                                std::string_view name);
// The words of a kList row, each one of the row's choices (any case is taken, lower case is given back).
// Errors: as number_list.
base::Result<std::vector<std::string>> word_list(const base::Settings& settings, std::string_view command,
                                                 std::string_view name);

// The instruction sets of --isa, ascending; every one the host has if none are given. Errors: as word_list;
// kConfig (one that this CPU has not).
base::Result<std::vector<kernels::Isa>> isa_list(const base::Settings& settings, std::string_view command);

// For commands that take no argument.
base::Error no_argument(const std::string& argument);

// ASCII letters made small: "Q4_K" is q4_k on a command line.
std::string lower(std::string_view text);

}  // namespace tally::apps
