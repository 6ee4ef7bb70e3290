// A TCP connection as a client, plain or under TLS. (Private to client.cc: Asio's TLS is heavy to include.)
//
// Trust: a server's certificate must be signed by what OpenSSL trusts on this machine (SSL_CERT_FILE and
// SSL_CERT_DIR name others), and be for the host of the URL. TLS 1.2 or later.
// Threads: the one of its io_context. Handlers take an error_code, those of read_some and write the bytes
// too.
#pragma once

#include "measure/client.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

namespace tally::measure {

// Errors: kInternal, where OpenSSL cannot read what it trusts.
base::Result<std::shared_ptr<boost::asio::ssl::context>> client_tls();

class Wire {
 public:
  using ErrorCode = boost::system::error_code;

  Wire(boost::asio::io_context& io, const Endpoint& endpoint) : endpoint_(endpoint), plain_(io) {}

  bool is_open() const { return tls_ ? tls_->next_layer().is_open() : plain_.is_open(); }

  void close() {
    ErrorCode ignored;
    socket().close(ignored);
  }

  // Connects anew, with the handshake. Requires: not open.
  template <class Handler>
  void open(Handler handler) {
    if (endpoint_.tls == nullptr)
      return plain_.async_connect(endpoint_.address, [this, handler = std::move(handler)](ErrorCode ec) {
        set_no_delay();
        handler(ec);
      });
    // What is under way on an earlier stream holds it: it must not be taken away below.
    tls_ = std::make_shared<Stream>(plain_.get_executor(), *endpoint_.tls);
    tls_->set_verify_callback(boost::asio::ssl::host_name_verification(endpoint_.name));
    if (!endpoint_.is_name_an_address)
      ::SSL_set_tlsext_host_name(tls_->native_handle(), endpoint_.name.c_str());
    const auto greet = [this, stream = tls_, handler = std::move(handler)](ErrorCode ec) {
      if (ec) return handler(ec);
      set_no_delay();
      stream->async_handshake(Stream::client, [stream, handler](ErrorCode shaken) { handler(shaken); });
    };
    tls_->next_layer().async_connect(endpoint_.address, greet);
  }

  template <class Handler>
  void write(boost::asio::const_buffer bytes, Handler handler) {
    if (!tls_) return boost::asio::async_write(plain_, bytes, std::move(handler));
    boost::asio::async_write(
        *tls_, bytes,
        [stream = tls_, handler = std::move(handler)](ErrorCode ec, size_t n) { handler(ec, n); });
  }

  // Some servers close without a word of TLS: that is stream_truncated.
  template <class Handler>
  void read_some(boost::asio::mutable_buffer into, Handler handler) {
    if (!tls_) return plain_.async_read_some(into, std::move(handler));
    tls_->async_read_some(
        into, [stream = tls_, handler = std::move(handler)](ErrorCode ec, size_t n) { handler(ec, n); });
  }

 private:
  using Socket = boost::asio::ip::tcp::socket;
  using Stream = boost::asio::ssl::stream<Socket>;

  Socket& socket() { return tls_ ? tls_->next_layer() : plain_; }
  void set_no_delay() {
    ErrorCode ignored;
    socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  }

  const Endpoint& endpoint_;
  Socket plain_;
  std::shared_ptr<Stream> tls_;  // null: plain, or not yet opened
};

}  // namespace tally::measure
