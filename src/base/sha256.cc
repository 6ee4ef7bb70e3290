#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <fstream>
#include <memory>
#include <vector>

namespace tally::base {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

Context start() {
  Context c(EVP_MD_CTX_new());
  TALLY_CHECK(c != nullptr && EVP_DigestInit_ex(c.get(), EVP_sha256(), nullptr) == 1, "no SHA-256");
  return c;
}

Digest finish(const Context& c) {
  Digest d;
  TALLY_CHECK(EVP_DigestFinal_ex(c.get(), d.data(), nullptr) == 1, "SHA-256 failed");
  return d;
}

}  // namespace

Digest sha256(std::string_view bytes) {
  const Context c = start();
  EVP_DigestUpdate(c.get(), bytes.data(), bytes.size());
  return finish(c);
}

std::string hex(const Digest& digest) {
  std::string s;
  for (const uint8_t b : digest) s += fmt::format("{:02x}", b);
  return s;
}

Result<Digest> sha256_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{ErrorCode::kNoInput, fmt::format("cannot read {}", path)};
  const Context c = start();
  std::vector<char> buffer(size_t{1} << 17);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    EVP_DigestUpdate(c.get(), buffer.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) return Error{ErrorCode::kIo, fmt::format("reading {} failed", path)};
  return finish(c);
}

}  // namespace tally::base
