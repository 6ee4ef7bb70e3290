#pragma once
// A server that says exactly what a test wants, when it wants, and remembers when it did.

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace tally::measure {

struct Heard {
  std::string method, path, body;
  std::chrono::steady_clock::time_point at;
};

// The server's end of one connection.
class Talk {
 public:
  explicit Talk(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
    boost::system::error_code ignored;
    socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  }

  bool hear(Heard& out) {
    boost::system::error_code ec;
    const size_t head =
        boost::asio::read_until(socket_, boost::asio::dynamic_buffer(buffer_), "\r\n\r\n", ec);
    if (ec) return false;
    out.method = buffer_.substr(0, buffer_.find(' '));
    const size_t path = out.method.size() + 1;
    out.path = buffer_.substr(path, buffer_.find(' ', path) - path);
    size_t length = 0;
    if (const size_t field = buffer_.find("Content-Length: "); field < head)
      std::from_chars(buffer_.data() + field + 16, buffer_.data() + head, length);
    if (buffer_.size() < head + length)
      boost::asio::read(socket_, boost::asio::dynamic_buffer(buffer_),
                        boost::asio::transfer_exactly(head + length - buffer_.size()), ec);
    if (ec) return false;
    out.body = buffer_.substr(head, length);
    buffer_.erase(0, head + length);
    out.at = std::chrono::steady_clock::now();
    return true;
  }

  bool send(std::string_view bytes) {
    boost::system::error_code ec;
    boost::asio::write(socket_, boost::asio::buffer(bytes), ec);
    return !ec;
  }
  void wait(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  void answer(int status, std::string_view body) {
    send(fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                     status, body.size(), body));
  }
  void begin_events() {
    send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  bool event(std::string_view data) {
    const std::string text = fmt::format("data: {}\n\n", data);
    return send(fmt::format("{:x}\r\n{}\r\n", text.size(), text));
  }
  bool token(std::string_view text = "a") {
    return event(fmt::format(R"({{"choices":[{{"index":0,"text":"{}"}}]}})", text));
  }
  void end_events(uint32_t prompt_tokens, uint32_t output_tokens) {
    event(R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})");
    event(fmt::format(R"({{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{}}}}})",
                      prompt_tokens, output_tokens));
    event("[DONE]");
    send("0\r\n\r\n");
  }
  void close() {
    boost::system::error_code ignored;
    socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
  }
  // Returns when the client has gone.
  void wait_for_end() {
    char byte = 0;
    boost::system::error_code ec;
    while (!ec) socket_.read_some(boost::asio::buffer(&byte, 1), ec);
  }

 private:
  boost::asio::ip::tcp::socket socket_;
  std::string buffer_;
};

class ScriptedServer {
 public:
  using Script = std::function<void(Talk&, const Heard&)>;  // called by several threads

  explicit ScriptedServer(Script script)
      : script_(std::move(script)),
        acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}),
        listener_([this] { listen(); }) {}
  ~ScriptedServer() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      for (const auto& talk : talks_) talk->close();
    }
    boost::system::error_code ignored;  // wakes accept()
    boost::asio::ip::tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);
    listener_.join();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}", acceptor_.local_endpoint().port()); }

 private:
  void listen() {
    for (;;) {
      boost::system::error_code ec;
      boost::asio::ip::tcp::socket socket = acceptor_.accept(ec);
      const std::lock_guard lock(mutex_);
      if (ec || is_over_) return;
      auto talk = std::make_shared<Talk>(std::move(socket));
      talks_.push_back(talk);
      threads_.emplace_back([this, talk] {
        for (Heard heard; talk->hear(heard);) script_(*talk, heard);
        talk->close();
      });
    }
  }

  Script script_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::mutex mutex_;
  bool is_over_ = false;
  std::list<std::shared_ptr<Talk>> talks_;
  std::list<std::thread> threads_;
  std::thread listener_;
};

}  // namespace tally::measure
