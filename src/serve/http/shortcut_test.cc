// Events past the I/O thread: whole, in order, and handed over as soon as the socket does not take them.
#include "serve/http/shortcut.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace tally::serve::http {
namespace {

struct Pair {
  Pair() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    const int bytes = 4096;
    EXPECT_EQ(::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  }
  ~Pair() {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  std::string read() const {
    std::string all(1 << 16, '\0');
    const ssize_t n = ::recv(ends[1], all.data(), all.size(), MSG_DONTWAIT);
    all.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return all;
  }
  std::string read_all() const {
    std::string all;
    for (std::string part = read(); !part.empty(); part = read()) all += part;
    return all;
  }
  std::array<int, 2> ends{};
};

TEST(Shortcut, IsClosedAtFirst) {
  Shortcut s;
  const auto rest = s.send("one");
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->bytes, "one");
  EXPECT_FALSE(rest->framed);
  EXPECT_EQ(s.sent_us(), 0);
}

TEST(Shortcut, WritesWhileItIsOpen) {
  Pair pair;
  Shortcut s;
  s.open(pair.ends[0], true);
  EXPECT_FALSE(s.send("one"));
  EXPECT_FALSE(s.send("twelve bytes"));
  EXPECT_FALSE(s.send("")) << "nothing to say ends no answer";
  EXPECT_EQ(pair.read(), "3\r\none\r\nc\r\ntwelve bytes\r\n");
  EXPECT_GT(s.sent_us(), 0);
  s.open(pair.ends[0], false);
  EXPECT_FALSE(s.send("plain"));
  EXPECT_EQ(pair.read(), "plain");
  s.close();
  EXPECT_TRUE(s.send("late"));
  EXPECT_EQ(pair.read(), "");
}

// What is handed over has to be written before anything else may pass it.
TEST(Shortcut, StaysClosedWhileSomethingIsOnItsWay) {
  Pair pair;
  Shortcut s;
  EXPECT_TRUE(s.send("one"));
  s.open(pair.ends[0], false);
  EXPECT_TRUE(s.send("two")) << "it would overtake the first";
  s.arrived();
  s.open(pair.ends[0], false);
  EXPECT_TRUE(s.send("three")) << "the second is still on its way";
  s.arrived(), s.arrived();
  s.open(pair.ends[0], false);
  EXPECT_FALSE(s.send("four"));
  EXPECT_EQ(pair.read(), "four");
}

TEST(Shortcut, AFullSocketHandsOverWhatItDidNotTake) {
  Pair pair;
  Shortcut s;
  s.open(pair.ends[0], true);
  std::string sent, received;
  std::optional<Shortcut::Rest> rest;
  for (int i = 0; i < 1000 && !rest; ++i) {
    const std::string event(1000, static_cast<char>('a' + i % 26));
    sent += "3e8\r\n" + event + "\r\n";
    rest = s.send(event);
  }
  ASSERT_TRUE(rest);
  EXPECT_TRUE(rest->framed);
  EXPECT_TRUE(s.send("next")->bytes == "next") << "and so is what follows";
  EXPECT_FALSE(s.close()) << "a heartbeat now would fall into the chunk";
  s.arrived();
  EXPECT_FALSE(s.close());
  s.arrived();
  EXPECT_TRUE(s.close());
  EXPECT_EQ(pair.read_all() + rest->bytes, sent);
}

TEST(Shortcut, AClosedPeerIsTheIoThreadsToFind) {
  Pair pair;
  Shortcut s;
  s.open(pair.ends[0], false);
  ::close(std::exchange(pair.ends[1], -1));
  const auto rest = s.send("one");
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->bytes, "one");
}

}  // namespace
}  // namespace tally::serve::http
