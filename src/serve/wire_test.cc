// Hostile and odd clients on real sockets. After each the server is alive and answers a good request.

#include "base/sha256.h"
#include "serve/rig_test_support.h"
#include "serve/routes.h"

namespace tally::serve {
namespace {

const std::string kGet = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";

void expect_alive(const Rig& rig) {
  EXPECT_EQ(rig.get("/livez").status, 200);
  EXPECT_EQ(rig.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":1})").status, 200);
}

RigOptions fast_limits() {
  RigOptions options;
  options.settings.limits.head_timeout_ms = 100;
  options.settings.limits.body_gap_ms = 100;
  options.settings.limits.idle_timeout_ms = 150;
  options.settings.limits.write_stall_ms = 200;
  return options;
}

RigOptions with_keys(std::vector<std::pair<std::string, std::string>> keys) {
  RigOptions options;
  for (auto& [name, key] : keys) options.settings.api_keys.emplace_back(name, base::hex(base::sha256(key)));
  return options;
}

// Sends bytes, expects this status and the end of the connection.
void expect_refused(const Rig& rig, const std::string& bytes, int status) {
  Client client(rig.port());
  client.send(bytes);
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, status) << bytes.substr(0, 100);
  EXPECT_EQ(reply.field("connection"), "close");
  EXPECT_NE(reply.body.find("\"error\":{\"message\""), std::string::npos);
  EXPECT_TRUE(client.at_end());
}

TEST(Wire, BadHeadsAndFraming) {
  Rig rig;
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  expect_refused(rig, "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(1 << 16, 'a') + "\r\n\r\n",
                 431);
  expect_refused(rig, "GET /" + std::string(64 << 10, 'a'), 414);
  expect_refused(rig, post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
  expect_refused(rig, post + "Transfer-Encoding: chunked, identity\r\n\r\n", 400);
  expect_refused(rig, post + "Transfer-Encoding: chunked\r\n\r\n-5\r\n", 400);
  expect_refused(rig, post + "Content-Length: 999999999\r\n\r\n", 413);
  expect_refused(rig, post + "Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n", 413);
  expect_refused(rig, "GET /livez HTTP/1.1\r\n\r\n", 400);
  expect_refused(rig, "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
  expect_refused(rig, "\x16\x03\x01\x02\x05", 400);
  expect_refused(rig, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
  expect_refused(rig, "get /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  expect_refused(rig, post + "Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n", 415);
  expect_refused(rig,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                 "text/plain\r\nContent-Length: 2\r\n\r\n{}",
                 415);
  expect_alive(rig);
}

TEST(Wire, W5And6ChunkedBodies) {
  RigOptions options;
  options.settings.limits.body_bytes = 2000;
  Rig rig(options);
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; "
      "charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
  Client client(rig.port());
  client.send(head + "8\r\n{\"prompt\r\n6\r\n\":\"x\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  expect_refused(rig, head + "7d0\r\n" + std::string(2000, ' ') + "\r\n1\r\n", 413);
}

TEST(Wire, W6ExpectGetsAContinueWhenAllIsWell) {
  Rig rig;
  Client client(rig.port());
  const std::string body = R"({"prompt":"x"})";
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: "
      "100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(client.wait_for("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Wire, W7SlowClients) {
  Rig rig(fast_limits());
  Client silent(rig.port()), head(rig.port()), body(rig.port());
  head.send("GET /livez HT");
  body.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "100\r\n\r\n{");
  for (Client* client : {&silent, &head, &body}) {
    EXPECT_EQ(client->read_reply().status, 408);
    EXPECT_TRUE(client->at_end());
  }
  expect_alive(rig);
}

TEST(Wire, W7TricklingBody) {
  RigOptions options;
  options.settings.limits.body_grace_ms = 100;
  Rig rig(options);
  Client client(rig.port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "100000\r\n\r\n");
  std::thread trickle([&client] {
    for (int i = 0; i < 60; ++i) {
      client.send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  trickle.join();
  EXPECT_EQ(client.read_reply().status, 408);
}

TEST(Wire, W8BodyOfAGetIsNeverARequest) {
  Rig rig;
  const std::string smuggled = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  Client client(rig.port());
  client.send("GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(smuggled.size()) +
              "\r\n\r\n" + smuggled + "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "ok");
  EXPECT_EQ(client.read_reply().body, R"({"status":"ok"})");
  Client large(rig.port());
  large.send("GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + smuggled);
  EXPECT_EQ(large.read_reply().field("connection"), "close");
  EXPECT_TRUE(large.at_end());
  EXPECT_TRUE(large.buffer().empty());
}

TEST(Wire, W9PipelinedRequestsAreAnsweredInOrder) {
  RigOptions options;
  options.settings.limits.requests_per_connection = 2000;
  Rig rig(options);
  Client client(rig.port());
  std::string all;
  for (int i = 0; i < 1000; ++i)
    all += "GET /v1/models/" + std::to_string(i) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < 1000; ++i) {
    const Reply reply = client.read_reply();
    ASSERT_EQ(reply.status, 404) << i;
    ASSERT_NE(reply.body.find("\\\"" + std::to_string(i) + "\\\""), std::string::npos) << reply.body;
  }
  sender.join();
}

TEST(Wire, W10OneByteASegment) {
  Rig rig;
  Client client(rig.port());
  for (char c : Rig::post_bytes("/tokenize", R"({"prompt":"x"})")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Wire, W13MethodsAndHead) {
  Rig rig;
  for (const char* method : {"TRACE", "PATCH", "DELETE", "PUT", "POST"}) {
    Client client(rig.port());
    client.send(std::string(method) + " /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 405) << method;
    EXPECT_EQ(reply.field("allow"), "GET, HEAD");
  }
  Client client(rig.port());
  client.send("HEAD /livez HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-0\r\n\r\n" + kGet);
  const Reply head = client.read_reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.field("content-length"), "2");
  EXPECT_EQ(client.read_reply().body, "ok");
  EXPECT_EQ(rig.get("/nowhere").status, 404);
  EXPECT_EQ(rig.get("/etc/passwd").status, 404);
}

TEST(Wire, W14ForeignHost) {
  RigOptions options;
  options.settings.allowed_hosts = {"tally.example"};
  Rig rig(options);
  const auto status = [&](const std::string& host) {
    Client client(rig.port());
    client.send("GET /livez HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.read_reply().status;
  };
  EXPECT_EQ(status("evil.example"), 421);
  EXPECT_EQ(status("localhost.evil.example"), 421);
  EXPECT_EQ(status("LOCALHOST:1234"), 200);
  EXPECT_EQ(status("[::1]:80"), 200);
  EXPECT_EQ(status("tally.example:443"), 200);
}

TEST(Wire, W15Origins) {
  RigOptions options = with_keys({{"a", "secret"}});
  options.settings.allowed_origins = {"https://good.example"};
  Rig rig(options);
  const auto preflight = [&](const std::string& origin) {
    Client client(rig.port());
    client.send(
        "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\nOrigin: " +
        origin + "\r\n\r\n");
    return client.read_reply();
  };
  for (const char* origin : {"https://evil.example", "null", "https://good.example.evil.example"}) {
    const Reply reply = preflight(origin);
    EXPECT_EQ(reply.status, 403);
    EXPECT_EQ(reply.field("access-control-allow-origin"), "");
  }
  const Reply good = preflight("https://good.example");
  EXPECT_EQ(good.status, 204);
  EXPECT_EQ(good.field("access-control-allow-origin"), "https://good.example");
  EXPECT_EQ(good.field("vary"), "Origin");
  EXPECT_EQ(good.field("access-control-allow-credentials"), "");
  EXPECT_EQ(rig.get("/livez", "Origin: https://good.example\r\n").field("access-control-allow-origin"),
            "https://good.example");
  EXPECT_EQ(rig.get("/livez", "Origin: https://evil.example\r\n").field("access-control-allow-origin"), "");
  Client client(rig.port());
  client.send(Rig::post_bytes("/v1/completions",
                              R"({"model":"tiny","prompt":"x","max_tokens":1,"stream":true})",
                              "Authorization: Bearer secret\r\nOrigin: https://good.example\r\n"));
  EXPECT_EQ(client.read_reply().field("access-control-allow-origin"), "https://good.example");
}

TEST(Wire, W18Keys) {
  Rig rig(with_keys({{"a", "secret"}, {"b", "other"}}));
  const auto reply = [&](const std::string& fields) { return rig.get("/v1/models", fields); };
  EXPECT_EQ(reply("Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(reply("authorization: bEARER other\r\n").status, 200);
  const std::string body = reply("").body;
  EXPECT_NE(body.find("invalid_api_key"), std::string::npos);
  for (const char* fields :
       {"", "Authorization: Basic secret\r\n", "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer \r\n", "Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n",
        "Authorization: secret\r\n"}) {
    const Reply refused = reply(fields);
    EXPECT_EQ(refused.status, 401) << fields;
    EXPECT_EQ(refused.body, body);
    EXPECT_EQ(refused.field("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(reply("Authorization: Bearer " + std::string(1 << 20, 'a') + "\r\n").status, 431);
}

TEST(Wire, W19EveryRouteAsksForAKey) {
  Rig rig(with_keys({{"admin-x", "root"}, {"user", "secret"}}));
  for (const Route& route : kRoutes) {
    const std::string path =
        std::string(route.path) + (route.path.size() > 1 && route.path.back() == '/' ? "tiny" : "");
    const auto status = [&](const std::string& fields) {
      Client client(rig.port());
      client.send(std::string(route.method) + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
                  "\r\n");
      return client.read_reply().status;
    };
    EXPECT_EQ(status(""), (route.flags & kProbe) ? 200 : 401) << path;
    if (route.flags & kAdmin) {
      EXPECT_EQ(status("Authorization: Bearer secret\r\n"), 403) << path;
      EXPECT_NE(status("Authorization: Bearer root\r\n"), 403) << path;
    }
  }
  EXPECT_EQ(rig.get("/nowhere").status, 401);
}

TEST(Wire, PublicMetricsNeedNoKey) {
  RigOptions options = with_keys({{"a", "secret"}});
  EXPECT_EQ(Rig(options).get("/metrics").status, 401);
  options.settings.metrics.open = true;
  Rig rig(options);
  EXPECT_EQ(rig.get("/metrics").status, 200);
  EXPECT_EQ(rig.get("/v1/models").status, 401);
}

TEST(Wire, W20TooManyConnections) {
  RigOptions options;
  options.settings.limits.connections = 8;
  Rig rig(options);
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(std::make_unique<Client>(rig.port()));
    silent.back()->send(kGet);
    ASSERT_EQ(silent.back()->read_reply().status, 200);
  }
  Client ninth(rig.port());
  ninth.send(kGet);
  EXPECT_EQ(ninth.read_reply().status, 0);
  silent.clear();
  EXPECT_TRUE(eventually([&] { return rig.get("/livez").status == 200; }));
}

TEST(Wire, W21RequestIds) {
  Rig rig;
  EXPECT_EQ(rig.get("/livez", "X-Request-Id: abc-1.2_3\r\n").field("x-request-id"), "abc-1.2_3");
  for (const char* id : {"a%0d%0aX: y", "a b", "\xC3\xA9", ""})
    EXPECT_EQ(rig.get("/livez", "X-Request-Id: " + std::string(id) + "\r\n").field("x-request-id").size(),
              32u)
        << id;
  EXPECT_EQ(rig.get("/livez", "X-Request-Id: " + std::string(65, 'a') + "\r\n").field("x-request-id").size(),
            32u);
  EXPECT_EQ(rig.get("/livez", "X-Request-Id: " + std::string(300 << 10, 'a') + "\r\n").status, 431);
  EXPECT_EQ(rig.get("/nowhere", "X-Request-Id: abc\r\n").field("x-request-id"), "abc");
}

TEST(Wire, W23KeepAliveEnds) {
  RigOptions options = fast_limits();
  options.settings.limits.requests_per_connection = 20;
  Rig rig(options);
  Client client(rig.port());
  for (int i = 1; i <= 20; ++i) {
    client.send(kGet);
    EXPECT_EQ(client.read_reply().field("connection"), i == 20 ? "close" : "");
  }
  EXPECT_TRUE(client.at_end());
  Client idle(rig.port());
  idle.send(kGet);
  idle.read_reply();
  EXPECT_TRUE(idle.at_end());
  Client old(rig.port());
  old.send("GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(old.read_reply().body, "ok");
  EXPECT_TRUE(old.at_end());
}

TEST(Wire, A28UnbuiltRoutes) {
  Rig rig;
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/v1/images/generations"}) {
    const Reply reply = rig.post(path, "{}");
    EXPECT_EQ(reply.status, 501);
    EXPECT_NE(reply.body.find("not_supported"), std::string::npos);
    EXPECT_EQ(reply.field("x-should-retry"), "false");
  }
}

}  // namespace
}  // namespace tally::serve
