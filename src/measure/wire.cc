#include "measure/wire.h"

#include <fmt/format.h>

namespace tally::measure {

base::Result<std::shared_ptr<boost::asio::ssl::context>> client_tls() {
  namespace ssl = boost::asio::ssl;
  auto out = std::make_shared<ssl::context>(ssl::context::tls_client);
  boost::system::error_code ec;
  out->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, ec);
  if (!ec) out->set_verify_mode(ssl::verify_peer, ec);
  if (!ec) out->set_default_verify_paths(ec);
  if (ec)
    return base::Error{base::ErrorCode::kInternal, fmt::format("TLS cannot be set up: {}", ec.message())};
  return out;
}

}  // namespace tally::measure
