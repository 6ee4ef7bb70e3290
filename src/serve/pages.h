#pragma once
// The small answers: models, tokenizer, version.

#include "serve/desk.h"
#include "serve/errors.h"

#include <string>

namespace tally::serve {

// A body, or what is wrong.
struct PageResult {
  std::string body;
  std::optional<ApiError> error;
};

PageResult page_model(const Desk& desk, const std::string& path, bool as_list);
PageResult page_tokenize(const Desk& desk, const std::string& body);
PageResult page_detokenize(const Desk& desk, const std::string& body);
PageResult page_tokenizer_info(const Desk& desk);
PageResult page_settings(const Desk& desk);
PageResult page_reset_prefix_cache(const Desk& desk);
std::string page_version(const Desk* desk);

}  // namespace tally::serve
