#pragma once
// A server over a fake engine on a free port, and a client that speaks raw bytes.

#include "serve/fake_engine_test_support.h"
#include "serve/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace tally::serve {

inline constexpr const char* kTinyModel = "tests/golden/tiny/tiny-f32.gguf";
inline constexpr const char* kTinyTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

inline const text::Tokenizer& tiny_tokenizer() {
  static const text::Tokenizer tokenizer = [] {
    auto file = gguf::File::open(kTinyModel);
    auto loaded = text::Tokenizer::load(file.value());
    return std::move(loaded).value();
  }();
  return tokenizer;
}

// An engine that writes `text`, token by token, and then the end token.
inline FakeOptions spelling(const std::string& text) {
  FakeOptions options;
  const std::vector<TokenId> ids = tiny_tokenizer().encode(text, false, false).value();
  options.next = [ids](const std::vector<TokenId>&, size_t i) {
    return i < ids.size() ? ids[i] : TokenId{2};
  };
  return options;
}

// The number `text` begins with, 0 if none.
inline size_t leading_number(std::string_view text, int base = 10) {
  size_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

struct Reply {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case
  std::string body;
  bool complete = false;

  std::string field(const std::string& name) const {
    for (const auto& [key, value] : fields)
      if (key == name) return value;
    return "";
  }
};

class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void shutdown_write() { ::shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  // Reads more into the buffer; false at the end, or after timeout_ms.
  bool read_some(int timeout_ms = 10'000) {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (::poll(&poll_fd, 1, timeout_ms) <= 0) return false;
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return at_end_ = true, false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // Everything until the other side closes.
  std::string read_all() {
    while (read_some()) {
    }
    return buffer_;
  }
  bool at_end() {
    while (!at_end_ && read_some()) {
    }
    return at_end_;
  }
  const std::string& buffer() const { return buffer_; }
  bool wait_for(std::string_view text) {
    while (buffer_.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }

  // One response; 100 Continue is skipped.
  Reply read_reply(bool head_only = false) {
    Reply reply;
    if (!wait_for("\r\n\r\n")) return reply;
    const size_t end = buffer_.find("\r\n\r\n");
    const std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    reply.status = static_cast<int>(leading_number(head.substr(9, 3)));
    if (reply.status == 100) return read_reply(head_only);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t eol = head.find("\r\n", at), colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      reply.fields.emplace_back(name, head.substr(colon + 2, eol - colon - 2));
      at = eol + 2;
    }
    if (head_only || reply.status == 204)
      reply.complete = true;
    else if (reply.field("transfer-encoding") == "chunked")
      read_chunks(reply);
    else if (const std::string length = reply.field("content-length"); !length.empty())
      reply.complete = take(leading_number(length), reply.body);
    else
      reply.body = read_all(), reply.complete = true;
    return reply;
  }

 private:
  bool take(size_t n, std::string& out) {
    while (buffer_.size() < n)
      if (!read_some()) return false;
    out += buffer_.substr(0, n);
    buffer_.erase(0, n);
    return true;
  }
  void read_chunks(Reply& reply) {
    for (;;) {
      if (!wait_for("\r\n")) return;
      const size_t eol = buffer_.find("\r\n");
      const size_t size = leading_number(buffer_.substr(0, eol), 16);
      buffer_.erase(0, eol + 2);
      std::string crlf;
      if (!take(size, reply.body) || !take(2, crlf)) return;
      if (size == 0) return void(reply.complete = true);
    }
  }

  int fd_;
  bool connected_ = false, at_end_ = false;
  std::string buffer_;
};

struct RigOptions {
  Settings settings;
  FakeOptions engine;
  bool loaded = true;
  uint32_t max_queue = 0;  // as the back end tells it
  std::string chat_template = kTinyTemplate;
  sample::ConstraintCompiler* constraints = nullptr;
};

class Rig {
 public:
  explicit Rig(RigOptions options = {})
      : engine(options.engine),
        max_queue_(options.max_queue),
        constraints_(options.constraints),
        accounts_(uint64_t{1} << 30),
        template_(std::move(text::ChatTemplate::parse(options.chat_template)).value()) {
    options.settings.port = 0;
    options.settings.model_name = "tiny";
    server = std::move(Server::bind(options.settings)).value();
    server_thread_ = std::thread([this] { exit_code_ = server->run(); });
    engine_thread_ = std::thread([this] { engine_ok_ = engine.run().has_value(); });
    if (options.loaded) load();
  }
  ~Rig() {
    server->stop();
    server->stop();
    join();
    server.reset();
    engine.frozen = false;
    engine.stop(0);
    engine_thread_.join();
  }

  void load() {
    Backend backend;
    backend.engine = &engine;
    backend.tokenizer = &tiny_tokenizer();
    backend.chat_template = &template_;
    backend.accounts = &accounts_;
    backend.weight_type = "F32";
    backend.max_queue = max_queue_;
    backend.constraints = constraints_;
    server->set_backend(backend);
  }
  // Waits for run() to return.
  int join() {
    if (server_thread_.joinable()) server_thread_.join();
    return exit_code_;
  }
  uint16_t port() const { return server->port(); }

  // One request on a connection of its own.
  Reply get(const std::string& path, const std::string& fields = "") const {
    Client client(port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
    return client.read_reply();
  }
  static std::string post_bytes(const std::string& path, const std::string& body,
                                const std::string& fields = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + fields +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  Reply post(const std::string& path, const std::string& body, const std::string& fields = "") const {
    Client client(port());
    client.send(post_bytes(path, body, fields));
    return client.read_reply();
  }

  FakeEngine engine;
  std::unique_ptr<Server> server;

 private:
  const uint32_t max_queue_;
  sample::ConstraintCompiler* const constraints_;
  base::Accounts accounts_;
  text::ChatTemplate template_;
  int exit_code_ = -1;
  bool engine_ok_ = false;
  std::thread server_thread_, engine_thread_;
};

// The JSON of each event; the end marker as the string "[DONE]".
inline std::vector<nlohmann::json> events(const std::string& body) {
  std::vector<nlohmann::json> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without its end";
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    out.push_back(event == "data: [DONE]" ? nlohmann::json("[DONE]")
                                          : nlohmann::json::parse(event.substr(6)));
    at = end + 2;
  }
  return out;
}

// Waits until `condition` holds, for at most a minute (instrumented builds on a busy machine are that slow).
template <class F>
bool eventually(F condition) {
  for (const int64_t end_us = base::now_us() + 60'000'000; base::now_us() < end_us;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

}  // namespace tally::serve
