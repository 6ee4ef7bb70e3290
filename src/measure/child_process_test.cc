#include "measure/child_process.h"

#include "measure/scripted_server_test_support.h"
#include "measure/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace tally::measure {
namespace {

using std::chrono::milliseconds;

ChildProcess shell(const std::string& script) {
  auto out = ChildProcess::start({"/bin/sh", "-c", script});
  EXPECT_TRUE(out) << out.error().message;
  return std::move(*out);
}

int end_of(ChildProcess& child) {
  while (!child.exit_code()) std::this_thread::sleep_for(milliseconds(1));
  return *child.exit_code();
}

bool is_alive(int pid) { return ::kill(pid, 0) == 0; }

TEST(ChildProcess, TellsHowItEndedAndWhatItSaid) {
  ChildProcess child = shell("echo out; for i in 1 2 3 4; do echo line $i >&2; done; exit 7");
  EXPECT_EQ(end_of(child), 7);
  EXPECT_EQ(child.output(), "out\n");
  EXPECT_EQ(child.last_words(), "line 2 | line 3 | line 4");
  ChildProcess silent = shell("kill -9 $$");
  EXPECT_EQ(end_of(silent), 128 + SIGKILL);
  EXPECT_EQ(silent.last_words(), "it said nothing");
  auto none = ChildProcess::start({"/no/such/program"});
  ASSERT_TRUE(none);
  EXPECT_EQ(end_of(*none), 127);
}

TEST(ChildProcess, StopsByTermThenByKill) {
  ChildProcess polite = shell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  while (polite.output().empty()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(polite.stop(std::chrono::seconds(10)), 3);
  ChildProcess stubborn = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
  while (stubborn.output().empty()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(stubborn.stop(milliseconds(50)), 128 + SIGKILL);
}

TEST(ChildProcess, NeverOutlivesWhoStartedIt) {
  int pid = 0;
  {
    const ChildProcess child = shell("exec sleep 60");
    pid = child.pid();
    EXPECT_TRUE(is_alive(pid));
  }
  EXPECT_FALSE(is_alive(pid));  // the destructor

  // A parent that is killed itself: the pid of its child comes by a pipe.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto child = ChildProcess::start({"/bin/sleep", "60"});
    const int of_child = child ? child->pid() : 0;
    if (::write(ends[1], &of_child, sizeof of_child) < 0) ::_exit(1);
    ::pause();
  }
  ASSERT_EQ(::read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(is_alive(pid));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  const auto gone = [&] {  // nobody may have reaped it: a zombie is dead too
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string id, name, state;
    return !(stat >> id >> name >> state) || state == "Z";
  };
  for (int i = 0; i < 2000 && !gone(); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(gone());
  ::close(ends[0]), ::close(ends[1]);
}

// A program that is called as a server is, and does what a script says.
class FakeServer {
 public:
  explicit FakeServer(const std::string& script)
      : path_(::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::ofstream(path_) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~FakeServer() { std::filesystem::remove(path_); }
  ServerStart start() const { return {path_, "m.gguf", {"--kv-type=int8"}, 20}; }

 private:
  std::string path_;
};

TEST(ServerProcess, ServerThatDiesSaysWhy) {
  const FakeServer server("echo \"tally: $*: no\" >&2; exit 69");
  const auto out = ServerProcess::start(server.start(), [] { return true; });
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().message,
            "the server ended with exit code 69 before it was ready: tally: serve m.gguf --port 0 "
            "--kv-type=int8: no");
}

TEST(ServerProcess, GivesUpWhenAskedOrLate) {
  const FakeServer server("echo loading >&2; exec sleep 60");
  ServerStart how = server.start();
  EXPECT_EQ(ServerProcess::start(how, [] { return false; }).error().message, "interrupted");
  how.timeout_s = .3;
  EXPECT_EQ(ServerProcess::start(how, [] { return true; }).error().message,
            "the server was not ready within 0.3 s: loading");
}

TEST(ServerProcess, ReadyWhenItSaysSoAndStoppedInOrder) {
  int asked = 0;
  ScriptedServer pages([&](Talk& talk, const Heard& heard) {
    EXPECT_EQ(heard.path, "/readyz");
    talk.answer(++asked < 3 ? 503 : 200, "{}");
  });
  const FakeServer program("trap 'exit 0' TERM; echo \"listening on " + pages.url() +
                           "\"; while :; do sleep 0.01; done");
  auto server = ServerProcess::start(program.start(), [] { return true; });
  ASSERT_TRUE(server) << server.error().message;
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(server->url(), pages.url());
  EXPECT_TRUE(server->stop());

  const FakeServer weak("echo \"listening on " + pages.url() + "\"; echo oops >&2; sleep 0.2; exit 70");
  auto dying = ServerProcess::start(weak.start(), [] { return true; });
  ASSERT_TRUE(dying) << dying.error().message;
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(dying->stop().error().message, "the server ended by itself with exit code 70: oops");
}

}  // namespace
}  // namespace tally::measure
