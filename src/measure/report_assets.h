// The files of web/report, built into the program (cmake/embed.cmake writes the definitions).
#pragma once

#include <string_view>

namespace tally::measure {

extern const std::string_view kReportHtml, kReportCss, kReportScript;

}  // namespace tally::measure
