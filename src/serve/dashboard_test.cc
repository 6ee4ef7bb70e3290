// The page at `/` and its files: what they are sent with, and that nothing in them needs more than that
// allows.

#include "base/sha256.h"
#include "serve/dashboard_assets.h"
#include "serve/rig_test_support.h"

#include <string>

namespace tally::serve {
namespace {

constexpr const char* kFiles[] = {"/", "/assets/dashboard.css", "/assets/dashboard.js",
                                  "/assets/uplot-license.txt"};

TEST(Dashboard, FilesAndTheirHeads) {
  Rig rig;
  for (const char* path : kFiles) {
    const Reply reply = rig.get(path);
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_EQ(
        reply.field("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'");
    EXPECT_EQ(reply.field("x-content-type-options"), "nosniff");
    EXPECT_EQ(reply.field("referrer-policy"), "no-referrer");
    Client client(rig.port());
    client.send("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const Reply head = client.read_reply(true);
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.field("content-length"), std::to_string(reply.body.size()));
  }
  EXPECT_EQ(rig.get("/").field("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(rig.get("/assets/dashboard.js").field("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(rig.get("/assets/dashboard.css").field("content-type"), "text/css; charset=utf-8");
}

TEST(Dashboard, OtherNamesAreNotFound) {
  Rig rig;
  for (const char* path : {"/assets/", "/assets/dashboard.html", "/assets/../dashboard.js",
                           "/assets/dashboard.js/", "/assets/uPlot.min.css", "/index.html"})
    EXPECT_EQ(rig.get(path).status, 404) << path;
  EXPECT_EQ(rig.post("/", "{}").status, 405);
}

// A policy without 'unsafe-inline' would stop what stands in the markup, and a page that loads nothing from
// elsewhere works without a network.
TEST(Dashboard, I6NothingInlineAndNothingFromElsewhere) {
  const std::string html(kDashboardHtml);
  EXPECT_EQ(html.find("style="), std::string::npos);
  EXPECT_EQ(html.find("<style"), std::string::npos);
  for (size_t at = 0; (at = html.find("<script", at)) != std::string::npos; ++at)
    EXPECT_EQ(html.substr(at, 12), "<script src=") << html.substr(at, 40);
  for (const char* handler : {" onload=", " onclick=", " onerror=", "javascript:"})
    EXPECT_EQ(html.find(handler), std::string::npos) << handler;
  for (const std::string_view file : {kDashboardHtml, kDashboardCss}) {
    EXPECT_EQ(file.find("http:"), std::string_view::npos);
    EXPECT_EQ(file.find("https:"), std::string_view::npos);
    EXPECT_EQ(file.find("url("), std::string_view::npos);
  }
  for (const std::string_view word :
       {"innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"})
    EXPECT_EQ(kDashboardScript.find(word), std::string_view::npos) << word;
}

TEST(Dashboard, I12WithKeysThePageNeedsOneToo) {
  RigOptions options;
  options.settings.api_keys = {{"a", base::hex(base::sha256("secret"))}};
  Rig rig(options);
  for (const char* path : kFiles) {
    EXPECT_EQ(rig.get(path).status, 401) << path;
    EXPECT_EQ(rig.get(std::string(path) + "?key=secret").status, 401) << path;
    EXPECT_EQ(rig.get(path, "Authorization: Bearer secret\r\n").status, 200) << path;
  }
}

TEST(Dashboard, TheLicenceOfUplotIsInTheProgram) {
  Rig rig;
  EXPECT_NE(rig.get("/assets/uplot-license.txt").body.find("Copyright (c) 2022 Leon Sorokin"),
            std::string::npos);
  EXPECT_NE(rig.get("/assets/dashboard.js").body.find("uPlot (v1.6.32)"), std::string::npos);
}

}  // namespace
}  // namespace tally::serve
