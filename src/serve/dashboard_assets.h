// The files of web/dashboard, built into the program (cmake/embed.cmake writes the definitions).
#pragma once

#include <string_view>

namespace tally::serve {

extern const std::string_view kDashboardHtml, kDashboardCss, kDashboardScript, kUplotLicense;

}  // namespace tally::serve
