#include "serve/site.h"

#include "base/clock.h"
#include "base/log.h"
#include "serve/account_pages.h"
#include "serve/answer.h"
#include "serve/cache_pages.h"
#include "serve/dashboard.h"
#include "serve/generate.h"
#include "serve/metrics.h"
#include "serve/metrics_compat.h"
#include "serve/pages.h"

namespace tally::serve {
namespace {

constexpr int64_t kStepSilenceUs = 30'000'000;  // an engine with work and no step for so long is dead
constexpr uint32_t kLoadingRetryS = 5, kDrainingRetryS = 5;
constexpr int64_t kRefusalLogUs = 1'000'000;

// "application/json", whatever its parameters.
bool is_json(const std::string* type) {
  if (!type) return false;
  std::string name;
  for (char c : type->substr(0, type->find(';')))
    if (c != ' ' && c != '\t') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name == "application/json";
}

bool is_method(const Route& route, const std::string& method) {
  return route.method == method || (method == "HEAD" && route.method == "GET");
}

}  // namespace

TallySite::TallySite(const Settings& settings)
    : settings_(settings), workers_(std::make_shared<Workers>(settings.threads)) {}

// The workers end first: their tasks use all the rest.
TallySite::~TallySite() { end_tasks(); }

void TallySite::end_compilations() {
  compile_queue_.end();
  const auto desk_now = desk();
  if (desk_now && desk_now->backend.constraints) desk_now->backend.constraints->end();
}

void TallySite::end_tasks() {
  if (!tasks_ended_) end_compilations();
  tasks_ended_ = true;
  compile_queue_.stop();
  workers_->stop();
}

void TallySite::attach(http::Transport& transport) {
  transport_ = &transport;
  gate_ = std::make_unique<Gate>(settings_, transport.loopback());
}

void TallySite::set_backend(const Backend& backend) {
  auto desk = std::make_shared<Desk>(settings_, backend);
  {
    const std::lock_guard lock(mutex_);
    desk_ = std::move(desk);
  }
  Health loading = Health::kLoading;
  health_.compare_exchange_strong(loading, Health::kReady);
}

void TallySite::set_health(Health health) {
  Health now = health_.load();
  while (now != Health::kFailed && !health_.compare_exchange_weak(now, health)) {
  }
}

std::shared_ptr<Desk> TallySite::desk() const {
  const std::lock_guard lock(mutex_);
  return desk_;
}

void TallySite::tick(int64_t now_us) {
  compile_queue_.expire(now_us);
  if (on_tick) on_tick(now_us);
  const auto desk_now = desk();
  if (!desk_now || desk_now->backend.accounts == nullptr) return;
  if (desk_now->rates.due(now_us)) {
    const engine::Stats stats = desk_now->backend.engine->stats();
    desk_now->rates.look(now_us, computed_prompt_tokens(stats), stats.generation_tokens);
  }
  const size_t held = transport_->held_bytes();
  desk_now->backend.accounts->book(base::Account::kRuntime, "requests",
                                   static_cast<int64_t>(held) - static_cast<int64_t>(booked_bytes_));
  booked_bytes_ = held;
}

void TallySite::add_fields(const http::Request& request, std::vector<http::Field>& fields) const {
  if (!request.id.empty()) fields.push_back({"x-request-id", request.id});
  gate_->add_origin(request, fields);
}

http::Response TallySite::error(const http::Request& request, const ApiError& error) {
  http::Response response = error_response(error);
  add_fields(request, response.fields);
  response.fields.push_back({"Cache-Control", "no-store"});
  counters_.refused[static_cast<size_t>(error.code)].fetch_add(1);
  return response;
}

http::Response TallySite::refuse(int status, const std::string& message) {
  const Code code = status == 408                                     ? Code::kRequestTimeout
                    : status == 413 || status == 414 || status == 431 ? Code::kTooLarge
                                                                      : Code::kInvalidValue;
  http::Response response = error_response({.code = code, .message = message, .status = status});
  response.fields.push_back({"x-request-id", Gate::request_id({})});
  response.close = true;
  counters_.refused[static_cast<size_t>(code)].fetch_add(1);
  const int64_t now_us = base::now_us();
  if (now_us - refusal_logged_us_ >= kRefusalLogUs) {  // scanners must not fill the log
    base::log_warn("refused a request that is not HTTP as it should be: {} ({} more unlogged)", message,
                   refusals_unlogged_);
    refusal_logged_us_ = now_us;
    refusals_unlogged_ = 0;
  } else {
    ++refusals_unlogged_;
  }
  return response;
}

void TallySite::answered(const http::Request& request, int status) {
  const size_t route = request.route >= 0 ? static_cast<size_t>(request.route) : kRouteCount;
  const size_t status_class = status < 400 ? 0 : status < 500 ? 1 : 2;
  counters_.responses[route][status_class].fetch_add(1);
  base::log(base::LogLevel::kDebug, "{} {} {} {}", request.id, echo(request.method), echo(request.path),
            status);
}

std::optional<ApiError> TallySite::judge_route(const http::Request& request, std::string& allow) const {
  for (const Route& route : kRoutes)
    if (matches(route, request.path))
      allow += (allow.empty() ? "" : ", ") +
               (route.method == "GET" ? std::string("GET, HEAD") : std::string(route.method));
  if (allow.empty()) return ApiError{Code::kNotFound, "There is no such route."};
  if (request.route < 0) return ApiError{Code::kMethodNotAllowed, "This route does not take that method."};
  const Route& route = kRoutes[request.route];
  if ((route.flags & kAdmin) && !gate_->may_administrate(request.tenant))
    return ApiError{Code::kForbidden, "This route needs a key whose name starts with admin."};
  if (route.page == Page::kNotBuilt)
    return ApiError{Code::kNotSupported, "This route is not supported by this version."};
  const std::string* encoding = request.find("content-encoding");
  if (encoding && *encoding != "identity")
    return ApiError{Code::kMediaType, "Compressed bodies are not read here."};
  if ((route.flags & kJsonBody) && !is_json(request.find("content-type")))
    return ApiError{Code::kMediaType, "Content-Type must be application/json."};
  if (!(route.flags & kProbe)) return judge_health();
  return std::nullopt;
}

std::optional<ApiError> TallySite::judge_health() const {
  switch (health_.load()) {
    case Health::kLoading:
      return ApiError{.code = Code::kModelLoading,
                      .message = "The model is being loaded.",
                      .retry_after_s = kLoadingRetryS};
    case Health::kDraining:
      return ApiError{.code = Code::kShuttingDown,
                      .message = "The server is shutting down.",
                      .retry_after_s = kDrainingRetryS};
    case Health::kFailed:
      return ApiError{Code::kInternal, "The engine has failed."};
    case Health::kReady:
      break;
  }
  return std::nullopt;
}

std::optional<http::Response> TallySite::judge_head(http::Request& request) {
  request.id = Gate::request_id(request);
  for (size_t i = 0; i < kRouteCount; ++i)
    if (matches(kRoutes[i], request.path) && is_method(kRoutes[i], request.method))
      request.route = static_cast<int>(i);
  count_received(request);
  if (const auto wrong = gate_->judge_host(request)) return error(request, *wrong);
  if (auto preflight = gate_->preflight(request)) {
    add_fields(request, preflight->fields);
    return preflight;
  }
  const int flags = request.route >= 0 ? kRoutes[request.route].flags : kPlain;
  const bool open = (flags & kProbe) || ((flags & kMetricsKey) && settings_.metrics.open);
  if (!open)
    if (const auto wrong = gate_->judge_key(request)) return error(request, *wrong);
  std::string allow;
  const auto wrong = judge_route(request, allow);
  if (!wrong) return std::nullopt;
  http::Response response = error(request, *wrong);
  if (wrong->code == Code::kMethodNotAllowed) response.fields.push_back({"Allow", allow});
  return response;
}

void TallySite::count_received(const http::Request& request) {
  Received received = Received::kOther;
  if (request.route >= 0) {
    const Page page = kRoutes[request.route].page;
    if (page == Page::kChat) received = Received::kChat;
    if (page == Page::kCompletion) received = Received::kCompletions;
    if (page == Page::kTokenize || page == Page::kDetokenize) received = Received::kTokenize;
  }
  counters_.received[static_cast<size_t>(received)].fetch_add(1);
}

void TallySite::handle(std::shared_ptr<http::Exchange> exchange) {
  const http::Request& request = exchange->request();
  const Route& route = kRoutes[request.route];
  if (route.flags & kProbe) {
    http::Response response = probe(route);
    add_fields(request, response.fields);
    return exchange->respond(std::move(response));
  }
  workers_->post([this, exchange = std::move(exchange)] { run_page(exchange); });
}

http::Response TallySite::probe(const Route& route) const {
  http::Response response;
  response.fields.push_back({"Cache-Control", "no-store"});
  const Health health = health_.load();
  if (route.page == Page::kLivez) {
    const auto desk_now = desk();
    if (desk_now) {
      const engine::Stats stats = desk_now->backend.engine->stats();
      if (stats.work_runnable && base::now_us() - stats.last_step_us > kStepSilenceUs) response.status = 503;
    }
    response.content_type = "text/plain; charset=utf-8";
    response.body = response.status == 200 ? "ok" : "no engine step for 30 s";
    return response;
  }
  if (health == Health::kReady) {
    response.body = R"({"status":"ok"})";
    return response;
  }
  const auto error = judge_health();
  http::Response refused = error_response(*error);
  response.status = 503;
  response.fields.insert(response.fields.end(), refused.fields.begin(), refused.fields.end());
  const std::string_view status = health == Health::kLoading    ? "loading"
                                  : health == Health::kDraining ? "draining"
                                                                : "failed";
  response.body = R"({"status":")" + std::string(status) + R"(",)" + error_json(*error).substr(1);
  return response;
}

std::optional<ApiError> TallySite::run_generation(const Route& route,
                                                  const std::shared_ptr<http::Exchange>& exchange) {
  std::vector<http::Field> fields;
  add_fields(exchange->request(), fields);
  const auto refuse = [this](const std::shared_ptr<http::Exchange>& late, const ApiError& wrong) {
    late->respond(error(late->request(), wrong));
  };
  const Kitchen kitchen{desk(), workers_, counters_, compile_queue_, refuse};
  return route.page == Page::kChat ? generate_chat(kitchen, exchange, std::move(fields))
                                   : generate_completion(kitchen, exchange, std::move(fields));
}

void TallySite::run_page(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& request = exchange->request();
  const Route& route = kRoutes[request.route];
  if (exchange->gone()) return;
  if (route.page == Page::kChat || route.page == Page::kCompletion) {
    if (const auto wrong = run_generation(route, exchange)) exchange->respond(error(request, *wrong));
    return;
  }
  exchange->respond(page(route, request));
}

http::Response TallySite::page(const Route& route, const http::Request& request) {
  const auto desk_now = desk();
  const Desk& d = *desk_now;
  http::Response response;
  PageResult result;
  switch (route.page) {
    case Page::kModels:
      result = page_model(d, request.path, true);
      break;
    case Page::kModel:
      result = page_model(d, request.path, false);
      break;
    case Page::kTokenize:
      result = page_tokenize(d, request.body);
      break;
    case Page::kDetokenize:
      result = page_detokenize(d, request.body);
      break;
    case Page::kSettings:
      result = page_settings(d);
      break;
    case Page::kBlocks:
      result = page_blocks(d);
      break;
    case Page::kAccounts:
      result = page_accounts(d);
      break;
    case Page::kSteps:
      result = page_steps(d, request.query);
      break;
    case Page::kTokenizerInfo:
      result = page_tokenizer_info(d);
      break;
    case Page::kKvEvents:
      result = page_kv_events(d, request.query);
      break;
    case Page::kResetPrefixCache:
      result = page_reset_prefix_cache(d);
      break;
    case Page::kDashboard:
      if (auto file = dashboard_file(request.path))
        response = std::move(*file);
      else
        result.error = ApiError{Code::kNotFound, "There is no such file."};
      break;
    case Page::kVersion:
      result.body = page_version(&d);
      break;
    case Page::kMetrics:
      result.body = metrics_text(d, counters_, transport_->connections());
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      break;
    default:
      result.error = ApiError{Code::kNotFound, "There is no such route."};
  }
  if (result.error) return error(request, *result.error);
  if (route.page != Page::kDashboard) response.body = std::move(result.body);
  add_fields(request, response.fields);
  response.fields.push_back({"Cache-Control", "no-store"});
  return response;
}

}  // namespace tally::serve
