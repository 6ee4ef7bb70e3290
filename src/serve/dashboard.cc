#include "serve/dashboard.h"

#include "serve/dashboard_assets.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace tally::serve {
namespace {

struct Asset {
  std::string_view path, type;
  const std::string_view* content;
};
constexpr Asset kAssets[] = {
    {"/", "text/html; charset=utf-8", &kDashboardHtml},
    {"/assets/dashboard.css", "text/css; charset=utf-8", &kDashboardCss},
    {"/assets/dashboard.js", "text/javascript; charset=utf-8", &kDashboardScript},
    {"/assets/uplot-license.txt", "text/plain; charset=utf-8", &kUplotLicense},
};
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'";

}  // namespace

std::optional<http::Response> dashboard_file(std::string_view path) {
  const auto asset = std::ranges::find(kAssets, path, &Asset::path);
  if (asset == std::end(kAssets)) return std::nullopt;
  http::Response response;
  response.content_type = asset->type;
  response.body = *asset->content;
  response.fields = {{"Content-Security-Policy", std::string(kPolicy)},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}};
  return response;
}

}  // namespace tally::serve
