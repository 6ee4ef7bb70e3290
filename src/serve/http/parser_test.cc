// The parser alone: what is refused, and that any split of the bytes gives the same parse.

#include "serve/http/parser.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace tally::serve::http {
namespace {

// Requests (and perhaps a last error) as text, when the bytes come in pieces of the given sizes.
std::vector<std::string> parse(std::string_view bytes, const std::vector<size_t>& pieces,
                               const ParseLimits& limits = {}) {
  std::vector<std::string> out;
  RequestParser parser(limits);
  std::string waiting;
  size_t at = 0, piece = 0;
  while (at < bytes.size()) {
    const size_t n = piece < pieces.size() ? std::min(pieces[piece++], bytes.size() - at) : bytes.size() - at;
    waiting += bytes.substr(at, n);
    at += n;
    while (!waiting.empty()) {
      waiting.erase(0, parser.feed(waiting));
      if (parser.state() == RequestParser::State::kError) {
        out.push_back("error " + std::to_string(parser.error().status) + " " + parser.error().message);
        return out;
      }
      if (parser.state() != RequestParser::State::kDone) continue;
      const Request& r = parser.request();
      std::string text = r.method + " " + r.path + "?" + r.query + " 1." + std::to_string(r.minor_version);
      for (const Field& field : r.fields) text += "\n" + field.name + "=" + field.value;
      out.push_back(text + "\n" + (r.keep_alive ? "keep" : "close") + "\n" + r.body);
      parser.restart();
    }
  }
  return out;
}
std::vector<std::string> parse(std::string_view bytes, const ParseLimits& limits = {}) {
  return parse(bytes, {}, limits);
}

int status_of(std::string_view bytes, const ParseLimits& limits = {}) {
  const auto out = parse(bytes, limits);
  int status = 0;
  if (!out.empty() && out.back().starts_with("error "))
    std::from_chars(out.back().data() + 6, out.back().data() + 9, status);
  return status;
}

std::string with(const std::string& fields, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n" + body;
}

const std::string kGood =
    "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-Y:  some value \r\n\r\nhello"
    "\r\nGET /y HTTP/1.1\r\nhost: h\r\nConnection: close\r\n\r\n"
    "POST /z HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\nA "
    "\r\n0123456789\r\n0\r\nT: v\r\n\r\n";

TEST(Parser, ReadsRequests) {
  const auto out = parse(kGood);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0], "POST /v1/x?a=b 1.1\nhost=h\ncontent-length=5\nx-y=some value\nkeep\nhello");
  EXPECT_EQ(out[1], "GET /y? 1.1\nhost=h\nconnection=close\nclose\n");
  EXPECT_EQ(out[2], "POST /z? 1.1\nhost=h\ntransfer-encoding=Chunked\nkeep\nabc0123456789");
}

TEST(Parser, EverySplitAndEveryByteAloneIsTheSame) {
  const auto whole = parse(kGood);
  EXPECT_EQ(parse(kGood, std::vector<size_t>(kGood.size(), 1)), whole);
  for (size_t i = 1; i < kGood.size(); ++i)
    EXPECT_EQ(parse(kGood, std::vector<size_t>{i}), whole) << "split at " << i;
}

// Of good requests, and of damaged ones.
RC_GTEST_PROP(Parser, SplitsDoNotMatter,
              (const std::vector<uint8_t>& sizes, const std::vector<std::pair<uint16_t, char>>& damage)) {
  std::string bytes = kGood;
  for (const auto& [at, c] : damage) bytes[at % bytes.size()] = c;
  std::vector<size_t> pieces;
  for (uint8_t size : sizes) pieces.push_back(size % 17 + 1u);
  RC_ASSERT(parse(bytes, pieces) == parse(bytes));
}

TEST(Parser, W1HeaderBlocks) {
  EXPECT_EQ(status_of(with("X: " + std::string(1 << 20, 'a') + "\r\n")), 431);
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "a:b\r\n";
  EXPECT_EQ(status_of(with(many)), 431);
  for (const char* bad : {"no colon\r\n", "X : v\r\n", "X: a\r\n b\r\n", "X: a\rb\r\n", "X: a\nY: b\r\n",
                          " X: v\r\n", ": v\r\n", "X\x01: v\r\n", "X: \x7F\r\n"})
    EXPECT_EQ(status_of(with(bad)), 400) << bad;
  EXPECT_EQ(status_of(with(std::string("X: a\0b\r\n", 8))), 400);
  EXPECT_EQ(status_of(with("X: caf\xC3\xA9\t!\r\n")), 0);
}

TEST(Parser, W2RequestLines) {
  EXPECT_EQ(status_of("GET /" + std::string(64 << 10, 'a') + " HTTP/1.1\r\n"), 414);
  for (const char* target : {"http://h/x", "*", "h:80", "/a%00b", "/%2e%2e/etc", "//x", "/a\\b", "/a#b",
                             "/..%2f..%2fetc/passwd", "/a%2Fb"})
    EXPECT_EQ(status_of("GET " + std::string(target) + " HTTP/1.1\r\nHost: h\r\n\r\n"), 400) << target;
}

TEST(Parser, W3And4Framing) {
  for (const char* fields :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: +5\r\n", "Content-Length: 5, 5\r\n",
        "Content-Length: 0x5\r\n", "Content-Length: 18446744073709551616\r\n", "Content-Length: -1\r\n",
        "Content-Length: \r\n", "Content-Length: 9223372036854775808\r\n",
        "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: identity\r\n"})
    EXPECT_EQ(status_of(with(fields)), 400) << fields;
  EXPECT_EQ(status_of("POST /x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

TEST(Parser, W5Chunks) {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  for (const char* body :
       {"-5\r\n", "12345678901234567\r\n", "5\r\nhelloX\r\n", "\r\n", "g\r\n", " 5\r\n", "5\nhello"})
    EXPECT_EQ(status_of(with(chunked, body)), 400) << body;
  EXPECT_EQ(status_of(with(chunked, "5;" + std::string(64 << 10, 'x') + "\r\nhello\r\n0\r\n\r\n")), 400);
  ParseLimits small;
  small.body_bytes = 100;
  std::string ones;
  for (int i = 0; i < 100; ++i) ones += "1\r\nx\r\n";
  EXPECT_EQ(status_of(with(chunked, ones + "0\r\n\r\n"), small), 413);  // the framing alone passes the cap
  EXPECT_EQ(status_of(with(chunked, "ffffffffffffffff\r\n"), small), 413);
  EXPECT_EQ(status_of(with(chunked, "65\r\n"), small), 413);
  EXPECT_EQ(status_of(with(chunked, "64\r\n" + std::string(100, 'x') + "\r\n0\r\n\r\n"), small), 0);
}

TEST(Parser, W6BodyOverTheCap) {
  EXPECT_EQ(status_of(with("Content-Length: 8388609\r\n")), 413);
  EXPECT_EQ(status_of(with("Content-Length: 8388608\r\n")), 0);
}

TEST(Parser, W12NotHttp) {
  EXPECT_EQ(status_of("\x16\x03\x01\x02"), 400);
  EXPECT_EQ(status_of("PRI * HTTP/2.0\r\n"), 400);
  EXPECT_EQ(status_of("GET /\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.2\r\n"), 400);
  EXPECT_EQ(status_of("\r\n\r\n"), 400);
  std::string random;
  for (uint32_t i = 0, x = 1; i < 4096; ++i)
    random += static_cast<char>((x = x * 1664525u + 1013904223u) >> 24);
  EXPECT_EQ(status_of(random), 400);
}

TEST(Parser, W13Methods) {
  EXPECT_EQ(status_of("get / HTTP/1.1\r\n"), 400);
  EXPECT_EQ(status_of("PATCH / HTTP/1.1\r\nHost: h\r\n\r\n"), 0);  // a route's matter
  EXPECT_EQ(status_of("CONNECT h:80 HTTP/1.1\r\n"), 400);
}

TEST(Parser, W14Hosts) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
}

TEST(Parser, StopsAtTheHead) {
  RequestParser parser({});
  const std::string bytes = with("Content-Length: 3\r\nExpect: 100-Continue\r\n", "abc");
  const size_t head = parser.feed(bytes);
  EXPECT_EQ(head, bytes.size() - 3);
  EXPECT_EQ(parser.state(), RequestParser::State::kBody);
  EXPECT_TRUE(parser.request().expect_continue);
}

TEST(Parser, KeepAlive) {
  const auto keep = [](const std::string& version, const std::string& fields) {
    return parse("GET / HTTP/1." + version + "\r\nHost: h\r\n" + fields + "\r\n").at(0).find("\nkeep\n") !=
           std::string::npos;
  };
  EXPECT_TRUE(keep("1", ""));
  EXPECT_FALSE(keep("0", ""));
  EXPECT_TRUE(keep("0", "Connection: Keep-Alive\r\n"));
  EXPECT_FALSE(keep("1", "Connection: foo, Close\r\n"));
}

}  // namespace
}  // namespace tally::serve::http
