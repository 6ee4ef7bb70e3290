#pragma once
// From a body to an answer under way: parse, tokenize, judge, submit. Runs on a worker.

#include "serve/compile_queue.h"
#include "serve/counters.h"
#include "serve/desk.h"
#include "serve/errors.h"
#include "serve/http/transport.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tally::serve {

// What generation needs, besides the request.
struct Kitchen {
  std::shared_ptr<Desk> desk;
  std::shared_ptr<Workers> workers;
  Counters& counters;
  CompileQueue& compile_queue;
  // Tells the client of an error after the functions below have returned.
  std::function<void(const std::shared_ptr<http::Exchange>&, const ApiError&)> refuse;
};

// Nothing: the answer is under way and will use `exchange`. Else the error to send.
std::optional<ApiError> generate_chat(const Kitchen& kitchen, const std::shared_ptr<http::Exchange>& exchange,
                                      std::vector<http::Field> fields);
std::optional<ApiError> generate_completion(const Kitchen& kitchen,
                                            const std::shared_ptr<http::Exchange>& exchange,
                                            std::vector<http::Field> fields);

// model_not_found, unless `model` is the served one.
std::optional<ApiError> judge_model(const Desk& desk, const std::string& model);

}  // namespace tally::serve
